"""Ring 2 and 3: `vanilla` on any number of ranks equals one process, and both equal dense algebra."""

import pytest
import torch

from fullgraph import nn
from fullgraph.codec import Half, LowBit
from fullgraph.exchange import Pipelined, Wire
from fullgraph.testing import anew, run_processes, run_threads
from tests.support import CASES, assert_same, dense_trace, train_trace, whole_logits

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
SPECS = {
    "gcn": nn.GCN(layers=3, hidden=16, dropout=0.5, input_dropout=True),
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True),
    "gin": nn.GIN(layers=3, hidden=16, dropout=0.3, input_dropout=True),
    "gat": nn.GAT(layers=3, hidden=16, heads=2, dropout=0.5, input_dropout=True),
}
SHAPES = {
    "batch norm, residual": nn.GraphSAGE(
        layers=4, hidden=16, dropout=0.2, input_dropout=True, norm="batch", residual=True
    ),
    "layer norm, linear": nn.GCN(layers=4, hidden=16, dropout=0.2, input_dropout=True, norm="layer", linear_layers=2),
    "wide": nn.GraphSAGE(layers=2, hidden=8, dropout=0.5, input_dropout=True),
    "one layer": nn.GIN(layers=1, dropout=0.0),
    "batch norm, deep": nn.ResGCN(layers=4, hidden=8, dropout=0.3, norm="batch"),
}
DEEP = {
    "gcnii": nn.GCNII(layers=4, hidden=8, dropout=0.3, alpha=0.2, norm="layer"),
    "resgcn": nn.ResGCN(layers=4, hidden=8, dropout=0.3),
}


@pytest.mark.sweep
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("case", CASES)
def test_ranks_equal_dense_algebra(case, model):
    spec, make = SPECS[model], CASES[case]
    losses, grads = dense_trace(make(1)[0], spec)
    reference = None
    for ranks in (1, 2, 3, 4):
        graph = make(ranks)[0]
        if case == "no training nodes":  # its training nodes depend on the number of ranks
            losses, grads = dense_trace(graph, spec)
        traces = run_threads(ranks, train_trace, make, spec)
        assert_same(traces, losses, grads)
        logits = whole_logits(traces, graph.num_nodes)
        if reference is not None and case != "no training nodes":
            torch.testing.assert_close(logits, reference, **TIGHT)
        reference = logits


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precompute", [True, False])
def test_shapes_equal_dense_algebra(shape, precompute):
    make = CASES["directed"]
    losses, grads = dense_trace(make(1)[0], SHAPES[shape], precompute=precompute)
    for ranks in (1, 3):
        traces = run_threads(ranks, train_trace, make, SHAPES[shape], 5, None, False, precompute)
        assert_same(traces, losses, grads)


@pytest.mark.parametrize("model", DEEP)
@pytest.mark.parametrize("case", ["directed", "weighted", "sparse"])
def test_deep_models_equal_dense_algebra(case, model):
    make, spec = CASES[case], DEEP[model]
    losses, grads = dense_trace(make(1)[0], spec)
    for ranks in (1, 2, 3):
        assert_same(run_threads(ranks, train_trace, make, spec), losses, grads)


@pytest.mark.parametrize("case", ["undirected", "weighted", "sparse", "no training nodes"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_inductive_equals_the_subgraph(case, ranks):
    """Training sees only the subgraph of training nodes; dropout still counts nodes as the whole graph does."""
    graph, _ = CASES[case](ranks)
    mask = graph.train_mask[:, 0]
    spec = SPECS["gcn"]
    ids = torch.from_numpy(mask.copy()).nonzero().flatten()
    losses, grads = dense_trace(graph.subgraph(mask), spec, ids=ids)
    assert_same(run_threads(ranks, train_trace, CASES[case], spec, 5, None, True), losses, grads)


def in_turn(transport, runs):
    return [anew(transport, train_trace, *run) for run in runs]


# Three ranks on cases that stress routes with every model; two with one model on every case.
RUNS = {
    3: [(CASES[case], spec) for spec in SPECS.values() for case in ("weighted", "empty parts")],
    2: [(make, SHAPES["batch norm, residual"]) for make in CASES.values()],
}


@pytest.mark.parametrize("ranks", RUNS)
def test_processes_equal_dense_algebra(ranks):
    """The same body over gloo, all runs in one set of processes, because starting them takes seconds."""
    for (make, spec), *traces in zip(RUNS[ranks], *run_processes(ranks, in_turn, RUNS[ranks]), strict=True):
        assert_same(traces, *dense_trace(make(ranks)[0], spec))


@pytest.mark.gpu
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("case", ["undirected", "weighted", "sparse"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_gpu_equals_dense_algebra(ranks, case, model):
    """The same body with the rows of all simulated ranks on one CUDA device."""
    make, spec = CASES[case], SPECS[model]
    traces = run_threads(ranks, train_trace, make, spec, 5, None, False, True, "cuda")
    assert_same(traces, *dense_trace(make(ranks)[0], spec))


WIRES = [Wire(), Wire(schedule=Pipelined(), codec=LowBit(2)), Wire(codec=Half())]
GPU_RUNS = [
    (CASES[case], spec, 5, None) for spec in SPECS.values() for case in ("undirected", "weighted", "empty parts")
]
GPU_RUNS.append((CASES["weighted"], SHAPES["batch norm, residual"], 5, None))


def on_gpu(transport, runs):
    return [anew(transport, train_trace, *run, False, True, "cuda") for run in runs]


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, 3])
def test_gpu_processes_equal_dense_algebra(ranks):
    """Ranks that share one GPU, with messages through host memory; all runs in one set of processes.

    Simulated ranks would share the one thread that runs a device's backward passes, and wait for one another there.
    """
    done = run_processes(ranks, on_gpu, GPU_RUNS, timeout=280, device="cuda")
    for (make, spec, *_), *traces in zip(GPU_RUNS, *done, strict=True):
        assert_same(traces, *dense_trace(make(ranks)[0], spec))


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_gpu_wires_equal_those_of_a_cpu():
    """Late rows, and rows with few bits, are equal for every kernel that encodes them and every stream they take."""
    runs = [(CASES["directed"], SPECS["sage"], 5, wire) for wire in WIRES]
    there = run_processes(2, on_gpu, runs, timeout=280, device="cuda")
    here = run_processes(2, in_turn, runs)
    for mine, theirs in zip(there, here, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one["losses"], other["losses"], rtol=1e-6, atol=1e-8)
