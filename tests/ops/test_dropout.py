"""Laws of keyed dropout.

The statistical tests use fixed keys, so they cannot fail by chance; a bound of 5.5 standard deviations means that a
perfect generator would exceed it for one key in 10**4 even over the largest family below (2016 pairs).
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops import Structure, act_dropout, dropout_arcs, dropout_key
from fullgraph.ops.hashing import draws, row_keys

MakeStructure = Callable[..., Structure]
SIGMAS = 5.5


def kept(key: int, ids: Tensor, width: int, p: float = 0.5) -> Tensor:
    """The mask as 0/1 in float64."""
    return act_dropout(torch.ones(len(ids), width), ids, key=key, p=p, act="none").ne(0).double()


def worst_correlation(columns: Tensor) -> float:
    """The largest |correlation| between two columns, in standard deviations."""
    z = (columns - columns.mean(0)) / columns.std(0, correction=0)
    pairs = (z.T @ z / len(z)).fill_diagonal_(0)
    return float(pairs.abs().max()) * len(z) ** 0.5


@pytest.mark.usefixtures("backend")
class TestLaws:
    @pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
    def test_a_kept_number_is_scaled_and_a_dropped_one_is_zero(self, dtype: torch.dtype, p: float) -> None:
        x, ids = torch.randn(300, 41, dtype=dtype), torch.arange(300)
        mask = act_dropout(torch.ones_like(x), ids, key=5, p=p, act="none").ne(0)
        for act, plain in (("none", x), ("relu", x.relu())):
            y = act_dropout(x, ids, key=5, p=p, act=act)
            assert torch.equal(y, torch.where(mask, plain * (1 / (1 - p)), 0))

    @pytest.mark.parametrize("act", ["none", "relu"])
    def test_the_mask_belongs_to_the_node_not_to_its_place(self, dtype: torch.dtype, act: str) -> None:
        x, ids = torch.randn(500, 33, dtype=dtype), torch.randint(0, 2**40, (500,))
        whole = act_dropout(x, ids, key=7, p=0.3, act=act)
        order = torch.randperm(500)
        assert torch.equal(act_dropout(x[order], ids[order], key=7, p=0.3, act=act), whole[order])
        ranks = order.split([0, 1, 99, 400])
        parts = [act_dropout(x[rows], ids[rows], key=7, p=0.3, act=act) for rows in ranks]
        assert torch.equal(torch.cat(parts), whole[order])
        assert torch.equal(act_dropout(x[:, :20], ids, key=7, p=0.3, act=act), whole[:, :20])

    @pytest.mark.parametrize("act", ["none", "relu"])
    def test_gradients(self, backend: str, act: str) -> None:
        fast = backend == "triton"
        x, ids = torch.randn(8, 5, dtype=torch.float64, requires_grad=True), torch.arange(8)
        assert torch.autograd.gradcheck(lambda a: act_dropout(a, ids, key=1, p=0.4, act=act), x, fast_mode=fast)
        strided = torch.randn(5, 8, dtype=torch.float64).T.requires_grad_()
        assert torch.autograd.gradcheck(lambda a: act_dropout(a, ids, key=1, p=0.4, act=act), strided, fast_mode=fast)

    def test_sparse_entries_fare_as_dense_ones(self, make_structure: MakeStructure, dtype: torch.dtype) -> None:
        s, ids = make_structure(40, 30, 200), torch.randperm(40)
        values = torch.randn(200, dtype=dtype, requires_grad=True)
        y = dropout_arcs(s, ids, values, key=11, p=0.6)
        mask = act_dropout(torch.ones(40, 30, dtype=dtype), ids, key=11, p=0.6, act="none").ne(0)
        taken = mask[s.rows, s.indices.long()]
        assert torch.equal(y, torch.where(taken, values * (1 / (1 - 0.6)), 0))
        (grad,) = torch.autograd.grad(y.sum(), values)
        assert torch.equal(grad, torch.where(taken, torch.full_like(values, 1 / (1 - 0.6)), 0))

    def test_no_dropout_is_the_activation(self, make_structure: MakeStructure) -> None:
        x, ids = torch.randn(6, 4), torch.arange(6)
        assert act_dropout(x, ids, key=1, p=0.0, act="none") is x
        assert torch.equal(act_dropout(x, ids, key=1, p=0.0, act="relu"), x.relu())
        s, values = make_structure(6, 4, 9), torch.randn(9)
        assert dropout_arcs(s, ids, values, key=1, p=0.0) is values

    @pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
    def test_empty_shapes(self, shape: tuple[int, int]) -> None:
        x = torch.randn(shape, requires_grad=True)
        for act in ("none", "relu"):
            y = act_dropout(x, torch.arange(shape[0]), key=1, p=0.5, act=act)
            assert torch.autograd.grad(y.sum(), x)[0].shape == shape

    def test_a_nan_is_not_hidden(self, dtype: torch.dtype) -> None:
        x, ids = torch.full((50, 40), torch.nan, dtype=dtype), torch.arange(50)
        mask = kept(3, ids, 40).bool()
        for act in ("none", "relu"):
            assert torch.equal(act_dropout(x, ids, key=3, p=0.5, act=act).isnan(), mask)


@pytest.mark.parametrize("other", ["numba", "triton"])
def test_all_implementations_draw_the_same_bits(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, other: str
) -> None:
    if other == "triton":
        request.getfixturevalue("interpreted")
    half = 15 if other == "triton" else 150
    x = torch.randn(2 * half, 130, dtype=dtype)
    ids = torch.cat([torch.arange(half), torch.randint(-(2**62), 2**62, (half,))])
    for key in (0, 1, 2**63 - 1, dropout_key(1, 2, 3)):
        for p in (0.01, 0.5, 1 - 2**-20):
            for act in ("none", "relu"):
                results = []
                for choice in (other, "torch"):
                    monkeypatch.setenv("FULLGRAPH_KERNELS", choice)
                    torch.set_num_threads(2 if choice == "numba" else 1)  # two: so that the loop runs in chunks
                    results.append(act_dropout(x, ids, key=key, p=p, act=act))
                assert torch.equal(*results)


class TestQuality:
    """Keep rates, and independence of columns, rows, keys, steps and layers."""

    @pytest.mark.parametrize("p", [0.05, 1 / 3, 0.5, 0.9])
    def test_rate(self, p: float) -> None:
        for key in (0, 1, dropout_key(0, 0, 0)):
            mask = kept(key, torch.arange(20_000), 128, p)
            spread = (p * (1 - p)) ** 0.5
            assert abs(float(mask.mean()) - (1 - p)) < SIGMAS * spread / mask.numel() ** 0.5
            assert float((mask.mean(0) - (1 - p)).abs().max()) < SIGMAS * spread / 20_000**0.5
            # rows are too short for a normal bound each; their counts must scatter as a binomial's do
            ratio = float(mask.sum(1).var()) / (128 * p * (1 - p))
            kurtosis = 2 + (1 - 6 * p * (1 - p)) / (128 * p * (1 - p))
            assert abs(ratio - 1) < SIGMAS * (kurtosis / 20_000) ** 0.5

    @pytest.mark.parametrize("stride", [1, 64, 2**32])
    def test_columns_and_rows_are_uncorrelated(self, stride: int) -> None:
        assert worst_correlation(kept(3, torch.arange(20_000) * stride, 64)) < SIGMAS
        assert worst_correlation(kept(3, torch.arange(64) * stride, 20_000).T) < SIGMAS

    def test_keys_steps_layers_and_seeds_are_uncorrelated(self) -> None:
        ids = torch.arange(300)
        keys = [*range(16), *(dropout_key(0, step, 0) for step in range(16))]
        keys += [*(dropout_key(0, 0, layer) for layer in range(1, 17)), *(dropout_key(s, 0, 0) for s in range(1, 17))]
        masks = torch.stack([kept(key, ids, 128).flatten() for key in keys], 1)
        assert worst_correlation(masks) < SIGMAS

    def test_keys_do_not_collide(self) -> None:
        keys = {dropout_key(a, b, c) for a in range(20) for b in range(50) for c in range(20)}
        assert len(keys) == 20_000
        assert all(0 <= key < 2**63 for key in keys)

    def test_every_bit_is_fair_and_follows_every_input(self) -> None:
        ids, columns = torch.randint(0, 2**40, (20_000,)), torch.randint(0, 1024, (20_000,))

        def bits(key: int, ids: Tensor, columns: Tensor) -> Tensor:
            return (draws(*row_keys(key, ids), columns)[:, None] >> torch.arange(32)) & 1

        start = bits(9, ids, columns)
        flips = [bits(9, ids, columns ^ (1 << k)) for k in range(10)]
        flips += [bits(9, ids ^ (1 << k), columns) for k in (0, 1, 20, 39, 62)]
        flips += [bits(9 ^ (1 << k), ids, columns) for k in (0, 1, 20, 39, 62)]
        shares = torch.stack([start.double().mean(0), *((start ^ f).double().mean(0) for f in flips)])
        assert float((shares - 0.5).abs().max()) < SIGMAS * 0.5 / 20_000**0.5

    def test_neighbouring_columns_are_jointly_uniform(self) -> None:
        a, b = row_keys(4, torch.arange(10_000))
        top = draws(a[:, None], b[:, None], torch.arange(65)) >> 28
        for left, right in pairwise(range(0, 65, 8)):
            cells = torch.bincount(top[:, left] * 16 + top[:, right], minlength=256).double()
            mean = 10_000 / 256
            excess = float(((cells - mean) ** 2 / mean).sum()) - 255
            assert abs(excess) < SIGMAS * (2 * 255) ** 0.5


def test_wrong_operands_are_refused(make_structure: MakeStructure) -> None:
    x, ids = torch.ones(3, 2), torch.arange(3)
    for p in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match="dropout"):
            act_dropout(x, ids, key=0, p=p, act="none")
    with pytest.raises(InputError, match="ids"):
        act_dropout(x, ids[:2], key=0, p=0.5, act="none")
    with pytest.raises(InputError, match="ids"):
        act_dropout(x, ids.int(), key=0, p=0.5, act="none")
    with pytest.raises(InputError, match="activation"):
        act_dropout(x, ids, key=0, p=0.5, act="tanh")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="values"):
        dropout_arcs(make_structure(3, 3, 5), ids, torch.ones(4), key=0, p=0.5)
