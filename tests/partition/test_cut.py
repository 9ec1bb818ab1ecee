"""Laws of partitioning: together the parts are the graph, and both ends of every route agree."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fullgraph.errors import InputError
from fullgraph.partition import Assignment, cut_parts
from fullgraph.partition import cut as cut_module
from fullgraph.partition import layout as layout_module
from tests.support import CASES

PARTS = (1, 2, 3, 4, 5)
SEEDS = (0, 1, 2)


def global_arcs(part):
    """The part's arcs as (source, target, weight) with global ids."""
    names = torch.cat([part.ids, part.halo_ids])
    target = torch.repeat_interleave(part.ids, part.indptr.diff())
    weight = torch.ones(len(target)) if part.weight is None else part.weight
    return np.stack([names[part.indices.long()].numpy(), target.numpy(), weight.numpy()])


def ordered(arcs):
    return arcs[:, np.lexsort(arcs)]


def whole(graph):
    weight = np.ones(graph.num_arcs) if graph.edge_weight is None else graph.edge_weight
    return np.stack([*graph.edge_index, weight])


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", [True, False])
def test_every_arc_is_once_in_the_part_of_its_target(make_graph, scatter, parts, seed, weighted):
    graph = make_graph(seed, weighted=weighted)
    assignment = scatter(graph, parts)
    cut = [global_arcs(part) for part in cut_parts(graph, assignment)]
    for rank, arcs in enumerate(cut):
        assert (assignment.part[arcs[1].astype(int)] == rank).all()
    np.testing.assert_array_equal(ordered(np.concatenate(cut, axis=1)), ordered(whole(graph)))


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_ids_and_halo_are_what_the_assignment_says(make_graph, scatter, parts, seed):
    graph = make_graph(seed)
    assignment = scatter(graph, parts)
    source, target = graph.edge_index
    for part in cut_parts(graph, assignment):
        np.testing.assert_array_equal(part.ids, np.flatnonzero(assignment.part == part.rank))
        reads = source[assignment.part[target] == part.rank]
        remote = {int(u) for u in reads if assignment.part[u] != part.rank}
        expected = sorted(remote, key=lambda u: (assignment.part[u], u))
        assert part.halo_ids.tolist() == expected
        owners = np.bincount(assignment.part[expected], minlength=parts) if expected else np.zeros(parts)
        assert part.recv_counts == tuple(owners)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_sent_are_the_rows_the_peer_expects(make_graph, scatter, parts, seed):
    graph = make_graph(seed)
    cut = cut_parts(graph, scatter(graph, parts))
    for p in cut:
        for q in cut:
            assert p.send_counts[q.rank] == q.recv_counts[p.rank]
            sent = torch.split(p.send_rows, p.send_counts)[q.rank]
            expected = torch.split(q.halo_ids, q.recv_counts)[p.rank]
            assert torch.equal(p.ids[sent], expected)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("multilabel", [False, True])
def test_rows_of_features_labels_and_masks(make_graph, scatter, sparse, multilabel):
    graph = make_graph(sparse=sparse, multilabel=multilabel)
    for split in range(graph.num_splits):
        for part in cut_parts(graph, scatter(graph, 4), split=split):
            ids = part.ids.numpy()
            if sparse:
                csr = (part.x.values.numpy(), part.x.indices.numpy(), part.x.indptr.numpy())
                x = sp.csr_array(csr, shape=(len(ids), part.x.num_cols)).toarray()
                np.testing.assert_array_equal(x, graph.x[ids].toarray())
            else:
                np.testing.assert_array_equal(part.x, graph.x[ids])
            np.testing.assert_array_equal(part.y, graph.y[ids])
            for name in ("train_mask", "val_mask", "test_mask"):
                np.testing.assert_array_equal(getattr(part, name), getattr(graph, name)[ids, split])


def test_types_are_those_of_the_interface(make_graph, scatter):
    graph = make_graph()
    for part in cut_parts(graph, scatter(graph, 3)):
        assert {part.ids.dtype, part.halo_ids.dtype, part.indptr.dtype, part.send_rows.dtype} == {torch.int64}
        assert part.indices.dtype == torch.int32
        assert part.train_mask.dtype == torch.bool
        assert all(isinstance(count, int) for count in part.send_counts + part.recv_counts)


@pytest.mark.parametrize("block", [1, 3, 7])
def test_the_size_of_a_block_changes_nothing(make_graph, scatter, monkeypatch, block):
    graph = make_graph()
    for parts in (1, 4):
        assignment = scatter(graph, parts)
        expected = cut_parts(graph, assignment)
        with monkeypatch.context() as patch:
            patch.setattr(layout_module, "BLOCK_ARCS", block)
            got = cut_parts(graph, assignment)
        for a, b in zip(expected, got, strict=True):
            assert torch.equal(a.indices, b.indices)
            assert torch.equal(a.weight, b.weight)
            assert torch.equal(a.halo_ids, b.halo_ids)


def test_one_part_alone_equals_that_of_all(make_graph, scatter):
    graph = make_graph()
    assignment = scatter(graph, 4)
    for part in cut_parts(graph, assignment):
        alone = cut_parts(graph, assignment, part.rank)
        assert alone.rank == part.rank
        np.testing.assert_array_equal(global_arcs(alone), global_arcs(part))
        assert torch.equal(alone.send_rows, part.send_rows)


def test_one_part_has_no_halo(make_graph, scatter):
    graph = make_graph()
    (part,) = cut_parts(graph, scatter(graph, 1))
    assert len(part.halo_ids) == len(part.send_rows) == 0
    np.testing.assert_array_equal(part.indices, graph.indices)
    np.testing.assert_array_equal(part.indptr, graph.indptr)


def test_bad_assignments_are_one_line(make_graph, scatter):
    graph = make_graph()
    for bad in (np.full(40, 3), np.full(40, -1), np.zeros((2, 2), int), np.zeros(40)):
        with pytest.raises(InputError, match=r"^[^\n]+$"):
            Assignment(bad, 3)
    for position in (np.zeros(3, int), np.array([0, 1]), np.array([0.0, 1.0, 2.0]), np.array([1, 2, 3])):
        with pytest.raises(InputError, match="has each number from 0 to 2 once"):
            Assignment(np.zeros(3, int), 1, position=position)
    with pytest.raises(InputError, match="7 entries for 40 nodes"):
        cut_parts(graph, Assignment(np.zeros(7, int), 1))
    with pytest.raises(InputError, match="rank 2 of 2 parts"):
        cut_parts(graph, scatter(graph, 2), 2)
    with pytest.raises(InputError, match="split 9 does not exist"):
        cut_parts(graph, scatter(graph, 2), split=9)


@pytest.mark.parametrize(("module", "words"), [(layout_module, "a part of"), (cut_module, "part 0 reads")])
def test_parts_too_large_to_number_are_refused(module, words, monkeypatch):
    graph, assignment = CASES["undirected"](3)
    monkeypatch.setattr(module, "INT32_MAX", 10)
    with pytest.raises(InputError, match=f"{words}.*use more parts"):
        cut_parts(graph, assignment, 0)
