"""The cover of two parts' edges: every edge is served, and no cover is smaller."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fullgraph import load
from fullgraph.axes import PARTITIONERS
from fullgraph.partition import write_parts
from fullgraph.partition.cover import auction, count_cover, cover_columns, covered_rows, covered_rows_in
from fullgraph.partition.layout import halo_rows
from tests.support import CASES

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def drawn(seed):
    """Edges (row, column), sorted by row, and the columns by owner; some rows and columns have many edges."""
    rng = np.random.default_rng(seed)
    rows, columns, edges = (*rng.integers(1, 30, 2).tolist(), int(rng.integers(0, 90)))
    skew = rng.choice([1.0, 3.0])
    row = np.sort((rows * rng.random(edges) ** skew).astype(np.int64))
    column = (columns * rng.random(edges) ** skew).astype(np.int64)
    cuts = np.sort(rng.integers(0, columns + 1, 2))
    return rows, row, column, tuple(np.diff([0, *cuts, columns]).tolist())


def largest_matching(pairs):
    """The size of a largest matching, by augmenting paths: with König's theorem, of the smallest cover."""
    of_row = {}
    for row, column in pairs:
        of_row.setdefault(row, []).append(column)
    held = {}

    def placed(row, seen):
        for column in of_row[row]:
            if column not in seen:
                seen.add(column)
                if column not in held or placed(held[column], seen):
                    held[column] = row
                    return True
        return False

    return sum(placed(row, set()) for row in of_row)


@pytest.mark.parametrize("exact_edges", [1 << 20, 0])
def test_a_cover_serves_every_edge_with_the_fewest_rows(exact_edges):
    excess = least = 0
    for seed in range(200):
        rows, row, column, counts = drawn(seed)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
        alone = cover_columns(indptr, column, counts, exact_edges=exact_edges)
        owner = np.repeat(np.arange(3), counts)
        left = {(int(r), int(owner[c])) for r, c in zip(row, column, strict=True) if not alone[c]}
        fewest = [
            largest_matching([(r, c) for r, c in zip(row.tolist(), column.tolist(), strict=True) if owner[c] == peer])
            for peer in range(3)
        ]
        found = [int(alone[owner == peer].sum()) + sum(of == peer for _, of in left) for peer in range(3)]
        counted = count_cover(row, column, counts, exact_edges=exact_edges)
        assert counted.rows.tolist() == found  # the sums serve every edge that no row serves
        assert counted.asked.sum() == alone.sum() + (~alone[column]).sum()
        assert counted.left == alone[column].sum() + len(left)
        assert all(size >= few for size, few in zip(found, fewest, strict=True))
        if exact_edges:
            assert found == fewest
        excess, least = excess + sum(found) - sum(fewest), least + sum(fewest)
    assert excess <= 0.02 * least


def test_an_auction_s_matching_is_one():
    edges = sp.csr_array(sp.random_array((300, 200), density=0.03, rng=np.random.default_rng(0)))
    edges = edges[np.diff(edges.indptr) > 0]
    matched = auction(edges)
    taken = matched[matched >= 0]
    assert len(np.unique(taken)) == len(taken)
    rows = np.flatnonzero(matched >= 0)
    assert (edges.toarray()[rows, matched[rows]] != 0).all()


@pytest.mark.parametrize("skew", [1, 2, 4])
def test_large_pairs_lose_little(skew):
    """A cover in linear time, with a few nodes that have most of the edges, too."""
    rng = np.random.default_rng(skew)
    row, column = (np.minimum(2999, 3000 * rng.random((2, 12_000)) ** skew)).astype(np.int64)
    halo, column = np.unique(column, return_inverse=True)
    exact, quick = (count_cover(row, column, (len(halo),), exact_edges=edges).rows.sum() for edges in (1 << 20, 0))
    assert exact <= quick <= 1.02 * exact
    assert quick <= len(halo)


@pytest.mark.skipif(not SHARED.exists(), reason="needs the real graphs")
@pytest.mark.parametrize("name", ["squirrel", "tolokers", "minesweeper", "fb100_amherst41"])
def test_real_graphs_lose_little(name):
    """On these graphs, taking the end of each edge that has more edges gives covers that are up to half larger."""
    graph = load(str(SHARED / f"{name}.npz"))
    for method in ("metis", "random"):
        assignment = PARTITIONERS.make(method).assign(graph, 2, seed=0)
        exact, quick = (sum(covered_rows(graph, assignment, exact_edges=edges)) for edges in (1 << 20, 0))
        assert exact <= quick <= 1.02 * exact
        assert quick <= halo_rows(graph, assignment)


@pytest.mark.parametrize("case", ["directed", "weighted", "empty parts", "no halo"])
def test_a_folder_and_its_graph_have_the_same_count(case, tmp_path):
    graph, assignment = CASES[case](3)
    write_parts(tmp_path / "parts", graph, assignment)
    counts = covered_rows(graph, assignment)
    assert covered_rows_in(tmp_path / "parts") == counts
    assert sum(counts) <= halo_rows(graph, assignment)
