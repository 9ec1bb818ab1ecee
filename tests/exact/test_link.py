"""Link prediction: losses, gradients, rows and scores equal one process's equations, on any number of ranks."""

import zlib
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph import nn
from fullgraph.axes import STRATEGIES
from fullgraph.codec import LowBit
from fullgraph.data.pairs import drawn
from fullgraph.errors import InputError
from fullgraph.exchange import Pipelined, Wire
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement import Mixture, Partitioned
from fullgraph.tasks import Link
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from tests.support import (
    assert_same,
    coded,
    dense_trace,
    differing,
    random_graph,
    resumed_epochs,
    stale_trace,
    train_trace,
    whole_logits,
)

sklearn = pytest.importorskip("sklearn.metrics")
SPECS = {
    "sage": nn.GraphSAGE(layers=2, hidden=16, dropout=0.5, input_dropout=True, norm="layer"),
    "gcn": nn.GCN(layers=2, hidden=12, dropout=0.2, input_dropout=True),
    "gat": nn.GAT(layers=2, hidden=16, heads=2),
}
NODES, STEPS, SEED = 90, 4, 3  # SEED is that of train_trace
OWN, GIVEN = Link(embedding=6, negatives=2, val=0.1, test=0.2, candidates=7), Link(embedding=6, candidates=7)


class Bilinear(torch.nn.Module):
    """A user's decoder: s = a^T W b + c."""

    def __init__(self, width, scale: float = 1.0):
        super().__init__()
        self.lin, self.scale = torch.nn.Linear(width, width), scale

    def forward(self, a, b):
        return self.scale * (a * self.lin(b)).sum(1)


class Dropping(Bilinear):
    def forward(self, a, b):
        return super().forward(F.dropout(a, 0.5), b)


class Normed(Bilinear):
    def forward(self, a, b):
        return super().forward(a - a.mean(0), b)


def cut(graph, parts, seed=1):
    part = np.random.default_rng(seed).integers(0, parts, graph.num_nodes).astype(np.int32)
    return graph, Assignment(part, parts, "case", 0)


def own_edges(parts, **options):
    """Pairs are drawn from the edges."""
    return cut(OWN.prepared(random_graph(nodes=NODES, arcs=150, **options), SEED), parts)


def given_pairs(parts, *, near=40, pairs=60, **options):
    """Pairs with labels between a few nodes only, so that layers leave out rows."""
    graph = random_graph(nodes=NODES, arcs=70, **options)
    rng = np.random.default_rng(5)
    split = np.arange(pairs) % 3
    arrays = {"pairs": rng.integers(0, near, (2, pairs)), "pair_y": (np.arange(pairs) // 3) % 2}
    arrays |= {f"pair_{name}_mask": split == number for number, name in enumerate(("train", "val", "test"))}
    graph = fg.Graph(graph.edge_index, graph.x, pairs=arrays, edge_weight=graph.edge_weight)
    return cut(GIVEN.prepared(graph, SEED), parts)


# --- the equations, without our machinery: whole numbers, loops over pairs, dense matrices

M64 = 2**64 - 1


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def hashed(first, second):
    return mix((mix((first + 0x9E3779B97F4A7C15) & M64) + second) & M64) & (2**63 - 1)


def key_of(seed, epoch, what):
    key = 0
    for part in (seed, epoch, zlib.crc32(what.encode())):
        key = mix((key + part + 0x9E3779B97F4A7C15) & M64)
    return key >> 1


def others(stream, pair, first, count):
    """`count` nodes drawn for a pair, none of them its first node."""
    found = [hashed(hashed(pair, key_of(*stream)), number) % (NODES - 1) for number in range(count)]
    return [node + (node >= first) for node in found]


def labelled(graph, split, stream, count):
    """All pairs of a split with their labels, including drawn ones."""
    pairs = graph.pairs
    rows = []
    drawing = not (pairs.y[pairs.split == split] == 0).any()
    for number in np.flatnonzero(pairs.split == split).tolist():
        u, v = pairs.ends[number].tolist()
        rows.append((u, v, int(pairs.y[number])))
        rows += [(u, w, 0) for w in others(stream, number, u, count)] if drawing else []
    return torch.tensor(rows)


def objective(graph, task, decode=lambda a, b: (a * b).sum(1)):
    def loss(step, out):
        u, v, y = labelled(graph, 0, (SEED, step, "training"), task.negatives).unbind(1)
        return F.binary_cross_entropy_with_logits(decode(out[u], out[v]), y.double())

    return loss


def model_of(graph, spec, task):
    return spec.build(graph.num_features, task.embedding, seed=SEED, dtype=torch.float64)


def oracle(case, spec, task):
    graph, _ = case(1)
    return dense_trace(graph, spec, STEPS, model=model_of(graph, spec, task), objective=objective(graph, task))


def traces_of(ranks, case, spec, task, run=run_threads, metric="roc_auc", **options):
    body = partial(train_trace, options={"task": task, "metric": metric}, **options)
    return run(ranks, body, case, spec, STEPS)


CASES = {"own edges": (own_edges, OWN), "given": (given_pairs, GIVEN)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", SPECS)
def test_any_number_of_ranks_equals_one_process(model, case):
    make, task = CASES[case]
    want, rows = oracle(make, SPECS[model], task), []
    for ranks in (1, 2, 3):
        traces = traces_of(ranks, make, SPECS[model], task)
        assert_same(traces, *want, tolerance=1e-9)
        rows.append(whole_logits(traces, NODES))
    for others_rows in rows[1:]:
        torch.testing.assert_close(others_rows, rows[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{"directed": True, "weighted": True}, {"sparse": True}, {"isolated": 9}], ids=str)
def test_other_graphs(options):
    make = partial(own_edges, **options)
    assert_same(traces_of(3, make, SPECS["sage"], OWN), *oracle(make, SPECS["sage"], OWN), tolerance=1e-9)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_live_rows(case, ranks):
    """Layers compute exactly the rows that training pairs read, directly or through later layers."""
    make, task = CASES[case]
    spec = SPECS["sage"]
    traces = traces_of(ranks, make, spec, task, placement=partial(Partitioned, hops=spec.hops))
    assert_same(traces, *oracle(make, spec, task), tolerance=1e-9)
    graph, _ = make(ranks)
    near = np.zeros(NODES, bool)
    near[graph.pairs.ends[graph.pairs.split == 0].reshape(-1)] = True

    def body(transport):
        part = cut_parts(*make(ranks), transport.rank)
        placement = Partitioned(hops=spec.hops, dtype=torch.float64)
        return placement.place(part, transport, Wire(), spec.aggregation).train.view.rows(1).targets

    assert sum(run_threads(ranks, body)) == (near.sum() if case == "given" else NODES)
    assert case != "given" or near.sum() < 40


@pytest.mark.parametrize("case", CASES)
def test_a_mixture(case):
    make, task = CASES[case]
    traces = traces_of(3, make, SPECS["gcn"], task, placement=Mixture)
    assert_same(traces, *oracle(make, SPECS["gcn"], task), tolerance=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_late_rows_between_layers(case):
    """Halo rows are one step late, as in PipeGCN; the rows of pairs are always fresh."""
    make, task = CASES[case]
    graph, assignment = make(3)
    part, spec = torch.from_numpy(assignment.part.copy()), SPECS["gcn"]
    read = lambda step: step - 1 if step else None  # noqa: E731
    want = stale_trace(
        graph, part, spec, read, STEPS, model=model_of(graph, spec, task), objective=objective(graph, task)
    )
    assert_same(traces_of(3, make, spec, task, wire=Wire(schedule=Pipelined())), *want, tolerance=1e-9)


def test_few_bits_between_layers():
    graph, assignment = own_edges(3)
    part, spec, codec = torch.from_numpy(assignment.part.copy()), SPECS["gcn"], LowBit(4)
    seen = coded(graph, part, codec, codec)
    model = model_of(graph, spec, OWN)
    want = dense_trace(graph, spec, STEPS, part=part, seen=seen, model=model, objective=objective(graph, OWN))
    traces = traces_of(3, own_edges, spec, OWN, wire=Wire(codec=codec), narrow_first=False)
    assert_same(traces, *want, tolerance=1e-9)


@pytest.mark.parametrize("strategy", ["none", "pipegcn", "sylvie-s", "sylvie-a", "varco", "fixed", "mixgcn"])
def test_every_strategy_trains(strategy):
    """Ranks agree on the loss, which is finite and falls."""
    options = {"strategy": STRATEGIES.make(strategy)}
    losses = [trace["losses"] for trace in run_threads(
        2, partial(train_trace, options={"task": OWN}, **options), own_edges, SPECS["gcn"], 12
    )]  # fmt: skip
    torch.testing.assert_close(losses[0], losses[1])
    assert losses[0][-4:].mean() < losses[0][:4].mean()


def test_real_processes():
    traces = traces_of(2, own_edges, SPECS["gcn"], OWN, run=run_processes)
    assert_same(traces, *oracle(own_edges, SPECS["gcn"], OWN), tolerance=1e-9)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_decoder_of_ones_own(ranks):
    task = Link(embedding=6, negatives=2, val=0.1, test=0.2, decoder=f"{__file__}:Bilinear")
    graph, spec = own_edges(1)[0], SPECS["gcn"]
    model = model_of(graph, spec, task)
    task.equip(model, seed=SEED, dtype=torch.float64)
    want = dense_trace(graph, spec, STEPS, model=model, objective=objective(graph, task, model.pair_decoder))
    assert any("pair_decoder" in name for name in want[1][0])
    assert_same(traces_of(ranks, own_edges, spec, task), *want, tolerance=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_rows(case):
    make, task = CASES[case]
    graph, _ = make(1)
    found = {}
    for metric in ("roc_auc", "mrr"):
        traces = [traces_of(ranks, make, SPECS["gcn"], task, metric=metric) for ranks in (1, 2, 3)]
        found[metric], rows = traces[0][0]["scores"], whole_logits(traces[0], NODES)
        for trace in (trace for of_ranks in traces for trace in of_ranks):
            assert trace["scores"] == pytest.approx(found[metric], abs=1e-9)
    for number, split in enumerate(("train", "val", "test")):
        u, v, y = labelled(graph, number, (SEED, 0, f"scored {split}"), OWN.negatives if number == 0 else 1).unbind(1)
        positives = []
        for pair in np.flatnonzero((graph.pairs.split == number) & (graph.pairs.y == 1)).tolist():
            first, second = graph.pairs.ends[pair].tolist()
            nodes = [second, *others((SEED, 0, f"candidates {split}"), pair, first, 7)]
            edge, *rest = (rows[first] @ rows[nodes].T).tolist()
            positives.append(1 / (1 + sum(s > edge for s in rest) + sum(s == edge for s in rest) / 2))
        if split != "train":  # of which a sample is scored
            auc = sklearn.roc_auc_score(y, (rows[u] * rows[v]).sum(1))
            assert found["roc_auc"][split] == pytest.approx(float(auc), abs=1e-9)
            assert found["mrr"][split] == pytest.approx(np.mean(positives), abs=1e-9)
        assert 0 < found["roc_auc"][split] <= 1
        assert 0 < found["mrr"][split] <= 1


@pytest.mark.parametrize("case", CASES)
def test_a_run_resumed_is_the_same_run(case):
    make, task = CASES[case]
    config = TrainConfig(epochs=4, checkpoint_every=1, lr=0.05, seed=SEED, dtype="float64", task=task, eval_every=2)
    run = (make, SPECS["sage"], config, Wire(schedule=Pipelined()))
    for (losses, saved), *again in run_threads(2, resumed_epochs, *run):
        for start, (resumed, kept) in enumerate(again):
            assert resumed == losses[start:]
            assert differing(kept[-1], saved[-1]) == []


@pytest.mark.parametrize("decoder", ["Dropping", "Normed"])
def test_a_decoder_that_looks_beyond_a_pair_is_refused(decoder):
    text = rf"test_link\.py:\d+: {decoder} scores a pair differently among other pairs: leave out"
    with pytest.raises(InputError, match=text):
        Link(decoder=f"{__file__}:{decoder}").equip(torch.nn.Module(), seed=0, dtype=torch.float32)


# --- pairs from edges


@pytest.mark.parametrize("directed", [False, True])
def test_edges_are_held_out_whole(directed):
    graph = random_graph(nodes=NODES, arcs=300, directed=directed)
    pairs, held_out = drawn(graph.indptr, graph.indices, 0.1, 0.2, 0)
    edges = {frozenset(arc) for arc in graph.edge_index.T.tolist() if arc[0] != arc[1]}
    assert len(pairs) == len(edges)
    assert {frozenset(pair) for pair in pairs.ends.tolist()} == edges
    assert all((np.array(pair)[:, None] == graph.edge_index).all(0).any() for pair in pairs.ends.tolist())
    assert np.bincount(pairs.split).tolist() == [
        len(edges) - round(0.1 * len(edges)) - round(0.2 * len(edges)), round(0.1 * len(edges)), round(0.2 * len(edges))
    ]  # fmt: skip
    hidden = {frozenset(pair) for pair in pairs.ends[pairs.split > 0].tolist()}
    assert held_out.tolist() == [frozenset(arc) in hidden for arc in graph.edge_index.T.tolist()]
    seen = Link(val=0.1, test=0.2).prepared(graph, 0)
    assert {frozenset(arc) for arc in seen.edge_index.T.tolist() if arc[0] != arc[1]} == edges - hidden
    np.testing.assert_array_equal(seen.edge_index, graph.edge_index[:, ~held_out])


def test_another_seed_holds_out_other_edges():
    graph = random_graph(nodes=NODES, arcs=300)
    one, same, other = (drawn(graph.indptr, graph.indices, 0.1, 0.2, seed)[0].split for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()


def test_negatives_are_fresh_every_epoch_and_never_the_node_itself():
    graph, _ = own_edges(1)
    rounds = [labelled(graph, 0, (SEED, step, "training"), 2) for step in range(3)]
    assert (rounds[0] != rounds[1]).any()
    assert all((found[:, 0] != found[:, 1]).all() for found in rounds)
