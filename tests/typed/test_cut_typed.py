"""Parts of typed graphs: every rank has its share of each type; a node crosses once, however many relations read it."""

import json
import re

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

import fullgraph as fg
from fullgraph.axes import MODELS
from fullgraph.data import TypedGraph, load_any, save_npz
from fullgraph.partition import PARTITIONERS, Assignment, Fennel, Metis, partition, quality
from tests.typed.oracle import SIZES, typed_graph

EXTRAS = ("kaminpar", "mtkahypar")
BALANCED = [name for name in PARTITIONERS if name != "banded"]


def two_worlds():
    """Types `left` and `right`: each is a ring whose nodes read the next five; few edges join the rings."""
    rng, sizes = np.random.default_rng(0), {"left": 400, "right": 400}
    edges = {}
    for kind, size in sizes.items():
        node = np.repeat(np.arange(size), 5)
        edges[kind, "near", kind] = np.stack([node, (node + np.tile(np.arange(1, 6), size)) % size])
    edges["left", "to", "right"] = np.stack([rng.integers(0, size, 5) for size in sizes.values()])
    return TypedGraph({kind: {"num_nodes": size} for kind, size in sizes.items()}, edges).with_reverses()


def largest_share(graph, part, parts):
    """Nodes of the part with most of a type over the mean part's, for the type where this is largest."""
    shares = [np.bincount(part[low:high], minlength=parts) for low, high in ranges(graph)]
    return max(share.max() / share.mean() for share in shares)


def ranges(graph):
    return list(zip(graph.types.starts, graph.types.starts[1:], strict=False))


@pytest.mark.parametrize("method", BALANCED)
def test_every_part_has_its_share_of_each_type(method):
    if method in EXTRAS:
        pytest.importorskip(method)
    graph = two_worlds().union
    for parts in (2, 5):
        found = partition(graph, parts, method, seed=1)
        assert largest_share(graph, found.part, parts) < 1.1, parts


@pytest.mark.parametrize("method", [Metis(), Fennel()], ids=["metis", "fennel"])
def test_weights_are_balanced_by_type_at_a_small_price(method):
    """Without types, most of a type is on one part; with them, types are even and the cut is still small."""
    graph = two_worlds().union
    assert largest_share(graph, method.search(graph, 2, 0), 2) > 1.3
    found = method.assign(graph, 2, seed=0).part
    degree = np.diff(graph.indptr)
    for low, high in ranges(graph):
        own = degree[low:high]
        load = np.bincount(found[low:high], own.mean() + own, 2)
        assert load.max() / load.mean() < 1.035
    dealt = quality(graph, partition(graph, 2, "random")).edge_cut
    assert quality(graph, Assignment(found, 2)).edge_cut < 0.3 * dealt


def test_metis_by_type_cuts_about_as_few_arcs_as_without():
    graph = load_any("typed:nodes=4000").union
    plain, even = (Assignment(part, 4) for part in (Metis().search(graph, 4, 0), partition(graph, 4, "metis").part))
    assert quality(graph, even).halo_rows < 1.15 * quality(graph, plain).halo_rows
    assert quality(graph, even).halo_rows < 0.9 * quality(graph, partition(graph, 4, "random")).halo_rows


@pytest.mark.parametrize("method", ["random", "contiguous"])
def test_dealt_types_differ_by_at_most_one_node(method):
    graph = typed_graph().union
    part = partition(graph, 3, method).part
    for low, high in ranges(graph):
        share = np.bincount(part[low:high], minlength=3)
        assert share.max() - share.min() <= 1


def test_quality_by_type_is_a_count_of_nodes():
    typed = typed_graph()
    graph, part = typed.union, np.random.default_rng(0).integers(0, 3, typed.num_nodes)
    found = {own.name: own for own in quality(graph, Assignment(part, 3)).types}
    first = dict(zip(typed.nodes, typed.starts, strict=False))
    read = [set(), set(), set()]
    for (source, _, target), edges in typed.edges.items():
        for j, i in edges.edge_index.T.tolist():
            rank = part[first[target] + i]
            if part[first[source] + j] != rank:
                read[rank].add((source, j))
    assert list(found) == list(SIZES)
    for kind, low, high in typed.ranges():
        nodes = [int((part[low:high] == rank).sum()) for rank in range(3)]
        assert found[kind].nodes == tuple(nodes)
        assert found[kind].halo == tuple(sum(own == kind for own, _ in seen) for seen in read)
        assert found[kind].node_imbalance == (pytest.approx(3 * max(nodes) / sum(nodes)) if sum(nodes) else 1.0)


def test_inspect_shows_shares_by_type(say, tmp_path):
    save_npz(typed_graph(), tmp_path / "typed.npz")
    code, out, _ = say("inspect", "typed.npz", "--parts", "3", "--json")
    assert code == 0
    types = json.loads(out)["partition"]["types"]
    assert [(own["name"], sum(own["nodes"])) for own in types] == list(SIZES.items())
    assert say("partition", "typed.npz", "--parts", "3", "--out", "parts")[0] == 0
    for of in (("typed.npz", "--parts", "3"), ("parts",)):
        out = say("inspect", *of)[1]
        assert "by node type, over ranks" in out
        rows = [line.split("│")[1:-1] for line in out.splitlines() if line.count("│") == 6]
        shown = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}
        for own in types:
            largest, smallest = max(own["nodes"]), min(own["nodes"])
            wanted = [str(smallest), str(largest), f"{own['node_imbalance']:.3f}", str(sum(own["halo"]))]
            assert shown[own["name"]] == wanted
    assert "by node type" not in say("inspect", "demo", "--parts", "2")[1]


def test_the_page_of_a_run_shows_shares_by_type(say, tmp_path):
    save_npz(typed_graph(), tmp_path / "typed.npz")
    small = ("--hidden", "8", "--epochs", "3", "--parts", "2", "--out", "run")
    assert say("train", "typed.npz", "--model", "rgcn", *small)[0] == 0
    types = json.loads((tmp_path / "run" / "profile.json").read_text())["types"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "By node type, over ranks" in page
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    crossing = sum(sum(own["halo"]) for own in types)
    for own in types:
        (cells,) = (row for row in rows if row and row[0] == own["name"])
        assert cells[1:3] == [str(min(own["nodes"])), str(max(own["nodes"]))]
        assert cells[4] == str(sum(own["halo"]))
        assert float(cells[5].rstrip(" %")) == pytest.approx(100 * sum(own["halo"]) / crossing, abs=0.6)


def read_thrice():
    """Nodes of type `a` that three relations into papers read, and one relation back."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    masks = {f"{name}_mask": np.arange(60) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    papers = {"x": rng.random((60, 4)), "y": y, **masks}
    ends = np.stack([rng.integers(0, 20, 240), rng.integers(0, 60, 240)])
    edges = {("a", f"r{number}", "p"): ends for number in range(3)} | {("p", "back", "a"): ends[::-1]}
    return TypedGraph({"a": {"num_nodes": 20}, "p": papers}, edges)


@pytest.mark.parametrize(
    ("model", "parts", "bits"),
    [("rgcn", 2, 32), ("rgcn", 3, 32), ("rgcn", 4, 32), ("rgcn", 3, 2), ("hetero-sage", 3, 32), ("hgt", 3, 32)],
)
def test_bytes_equal_the_formula(model, parts, bits, tmp_path):
    """Every layer sends each halo row once and its gradient back, however many relations read the row."""
    graph = read_thrice()
    strategy = fg.recipes.vanilla(cover=False) if bits == 32 else fg.recipes.sylvie_s(bits=bits)
    run = fg.train(
        graph, model=MODELS.make(model, layers=3, hidden=8), strategy=strategy, parts=parts, epochs=2, all_rows=True,
        partitioner="random", report=False, out=tmp_path / "run",
    )  # fmt: skip
    part = partition(graph.union, parts, "random", seed=0).part
    pairs = {
        (source + (kind == "p") * 20, part[target + (into == "p") * 20])
        for (kind, _, into), edges in graph.edges.items()
        for source, target in edges.edge_index.T.tolist()
    }
    halo = sum(part[node] != rank for node, rank in pairs)
    row = 8 * 4 if bits == 32 else 8 * bits // 8 + 4
    assert run.result["bytes_per_epoch"] == 2 * 3 * row * halo
    assert run.result["partition"]["halo_rows"] == halo


@pytest.mark.parametrize("parts", [2, 3])
def test_vanilla_sends_the_smallest_cover_by_relation(parts, tmp_path):
    """Per pair of ranks, as many rows and sums as a largest matching of sources and (target, relation) has edges."""
    graph = read_thrice()
    run = fg.train(
        graph, model=MODELS.make("rgcn", layers=2, hidden=8), parts=parts, epochs=2, all_rows=True,
        partitioner="random", report=False, out=tmp_path / "run",
    )  # fmt: skip
    part, sent = partition(graph.union, parts, "random", seed=0).part, 0
    number = {name: i for i, name in enumerate(graph.edges)}
    for reader, owner in ((a, b) for a in range(parts) for b in range(parts) if a != b):
        pairs = [
            (source + (name[0] == "p") * 20, (target + (name[2] == "p") * 20) * 4 + number[name])
            for name, edges in graph.edges.items()
            for source, target in edges.edge_index.T.tolist()
            if part[source + (name[0] == "p") * 20] == owner and part[target + (name[2] == "p") * 20] == reader
        ]
        rows, columns = np.array(sorted(set(pairs))).T
        crossing = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(80, 320))
        sent += int((maximum_bipartite_matching(crossing, perm_type="column") >= 0).sum())
    assert run.result["bytes_per_epoch"] == 2 * 2 * 8 * 4 * sent
    assert sent < run.result["partition"]["halo_rows"]
