"""Feature scaling: blocks equal the whole, and each kind is its equation."""

import numpy as np
import pytest
import scipy.sparse as sp

from fullgraph.data import FEATURE_KINDS, Graph, fit_features
from fullgraph.errors import InputError


def graph_of(sparse, dtype=np.float64, splits=2):
    rng = np.random.default_rng(0)
    x = np.where(rng.random((50, 150)) < 0.5, 100 + rng.standard_normal((50, 150)), 0).astype(dtype)
    x[7] = 0  # a row of zeros
    x[:, 2] = 0.1  # a constant column
    x[:, 3] = 0
    role = np.stack([rng.permutation(50) % 3 for _ in range(splits)], axis=1)
    edges = rng.integers(0, 50, (2, 10))
    masks = (role == 0, role == 1, role == 2)
    return Graph(edges, sp.csr_array(x) if sparse else x, np.zeros(50, dtype=int), masks), x


def dense(block):
    return block.toarray() if sp.issparse(block) else block


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", FEATURE_KINDS)
@pytest.mark.parametrize("step", [1, 7, 50])
def test_streamed_blocks_equal_the_whole(sparse, kind, step):
    graph, _ = graph_of(sparse)
    before = dense(graph.x).copy()
    scaler = fit_features(graph, kind)
    whole = scaler.apply(graph.x)
    assert sp.issparse(whole) == sparse
    blocks = [dense(scaler.apply(graph.x[start : start + step])) for start in range(0, 50, step)]
    assert np.array_equal(np.concatenate(blocks), dense(whole))
    assert np.array_equal(dense(graph.x), before)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("split", [0, 1])
def test_each_kind_is_its_equation(sparse, split):
    graph, x = graph_of(sparse)
    assert fit_features(graph, "none").apply(graph.x) is graph.x
    total = np.abs(x).sum(axis=1, keepdims=True)
    by_row = np.divide(x, total, out=np.zeros_like(x), where=total > 0)
    np.testing.assert_allclose(dense(fit_features(graph, "row").apply(graph.x)), by_row, rtol=1e-12)
    train = x[graph.train_mask[:, split]]
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    mean[[2, 3]], deviation[[2, 3]] = 0, 1  # constant columns stay as they are
    expected = x / deviation if sparse else (x - mean) / deviation
    np.testing.assert_allclose(dense(fit_features(graph, "standard", split).apply(graph.x)), expected, rtol=1e-9)


@pytest.mark.parametrize(("kind", "order"), [(">f8", "C"), ("<f8", "F"), (">f8", "F")])
def test_the_layout_of_features_changes_no_digit(kind, order):
    """Bytes in the other order, or columns instead of rows: the same numbers and the same type."""
    x = np.random.default_rng(0).standard_normal((50, 7)) * 1e3
    masks = [np.arange(50) // 20 == role for role in range(3)]
    graphs = [Graph(np.zeros((2, 1), int), rows, np.zeros(50, int), masks)
              for rows in (x, np.array(x, kind, order=order))]  # fmt: skip
    plain, other = (fit_features(graph, "standard").apply(graph.x) for graph in graphs)
    assert other.dtype == plain.dtype == np.float64
    assert np.array_equal(plain, other)


def test_precision_is_kept_and_half_is_widened():
    for dtype, out in ((np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)):
        graph, _ = graph_of(False, dtype)
        for kind in ("row", "standard"):
            scaled = fit_features(graph, kind).apply(graph.x)
            assert scaled.dtype == out
            assert np.isfinite(scaled).all()


def test_a_memory_mapped_matrix_is_read_in_blocks(tmp_path):
    graph, x = graph_of(False)
    np.save(tmp_path / "x.npy", x)
    mapped = Graph(
        graph.edge_index,
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        graph.y,
        {"train": graph.train_mask, "val": graph.val_mask, "test": graph.test_mask},
    )
    a, b = fit_features(graph, "standard"), fit_features(mapped, "standard")
    assert np.array_equal(a.apply(graph.x), b.apply(mapped.x))


def test_unknown_kind_or_split_is_refused():
    graph, _ = graph_of(False)
    with pytest.raises(InputError, match="none, row, standard"):
        fit_features(graph, "minmax")
    with pytest.raises(InputError, match="0 to 1"):
        fit_features(graph, "standard", split=2)
