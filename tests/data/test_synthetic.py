"""Generated graphs: determined by their seed, without loops and duplicates, with the requested edges and classes."""

import time

import numpy as np
import pytest

from fullgraph.data import load
from fullgraph.data.sbm import SBM

SPECS = [
    "sbm:nodes=700,edges=4000,seed=1",
    "sbm:nodes=700,edges=4000,blocks=20,p_in=0.5,directed=1",
    "sbm:nodes=60,classes=3",
    "sbm:nodes=50,edges=0,classes=2",
    "sbm:nodes=64,edges=600,classes=1,blocks=1,p_in=1",
    "rmat:scale=9,edges=4000,seed=1",
    "rmat:nodes=700,edges=4000,directed=1",
    "rmat:nodes=40,edges=250,a=0.25,b=0.25,c=0.25,d=0.25,classes=2",
    "demo",
]


def same(a, b):
    names = ("indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_is_one_graph_without_loops_or_duplicates(spec):
    graph = load(spec)
    assert same(graph, load(spec))
    source, target = graph.edge_index.astype(np.int64)
    assert (source != target).all()
    assert np.unique(source * graph.num_nodes + target).size == graph.num_arcs
    if "directed=1" in spec:
        forth, back = source * graph.num_nodes + target, target * graph.num_nodes + source
        assert not np.isin(forth, back).any()
    else:
        assert graph.is_symmetric()
    for option in spec.partition(":")[2].split(","):
        key, _, value = option.partition("=")
        if key == "edges":
            assert graph.num_arcs == int(value) * (1 if "directed=1" in spec else 2)
        if key == "classes":
            assert np.array_equal(np.unique(graph.y), np.arange(int(value)))
    assert graph.num_nodes == (graph.train_mask | graph.val_mask | graph.test_mask).sum()


@pytest.mark.parametrize("kind", ["sbm", "rmat"])
def test_another_seed_is_another_graph(kind):
    assert not same(load(f"{kind}:nodes=500,seed=0"), load(f"{kind}:nodes=500,seed=1"))


@pytest.mark.parametrize("p_in", [0.0, 0.3, 0.9, 1.0])
def test_sbm_has_the_share_of_inner_edges_it_was_given(p_in):
    # one block a class, so an edge inside a block is an edge inside a class
    graph = load(f"sbm:nodes=600,edges=3000,classes=6,blocks=6,p_in={p_in}")
    source, target = graph.edge_index
    assert (graph.y[source] == graph.y[target]).mean() == pytest.approx(p_in, abs=1e-3)


def test_sbm_blocks_stay_roomy_and_cover_the_classes():
    for nodes in (20, 100, 1000, 100_000):
        for classes in (2, 10):
            options = SBM(nodes=nodes, classes=classes)
            assert classes <= options.num_blocks <= 64
            pairs = options.num_blocks * (nodes / options.num_blocks) ** 2 / 2
            assert options.p_in * options.num_edges <= 0.3 * pairs


def test_sbm_features_carry_the_class_under_noise():
    quiet = load("sbm:nodes=300,classes=3,noise=0")
    for label in range(3):
        rows = quiet.x[quiet.y == label]
        assert np.array_equal(rows, np.repeat(rows[:1], rows.shape[0], axis=0))
        assert np.linalg.norm(rows[0]) == pytest.approx(1, abs=1e-5)


def test_rmat_has_hubs_and_sbm_has_none():
    heavy, flat = load("rmat:scale=12"), load("sbm:nodes=4096")
    assert np.diff(heavy.indptr).max() > 10 * np.diff(heavy.indptr).mean()
    assert np.diff(flat.indptr).max() < 4 * np.diff(flat.indptr).mean()


@pytest.mark.parametrize("kind", ["sbm", "rmat"])
def test_a_million_edges_take_seconds(kind):
    begin = time.process_time()
    graph = load(f"{kind}:nodes=100000,edges=1000000,features=16")
    assert graph.num_arcs == 2_000_000
    assert time.process_time() - begin < 10
