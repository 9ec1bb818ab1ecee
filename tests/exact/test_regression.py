"""Regression: losses, gradients, outputs and scores equal one process's equations, on any number of ranks."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph import nn
from fullgraph.errors import InputError
from fullgraph.partition import Assignment
from fullgraph.placement import Mixture, Partitioned
from fullgraph.tasks import Regression
from fullgraph.testing import run_processes, run_threads
from tests.support import assert_same, dense_trace, random_graph, train_trace
from tests.support import whole_logits as whole_out

SPECS = {
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True, norm="layer"),
    "gcn": nn.GCN(layers=3, hidden=12, dropout=0.2, input_dropout=True),
    "gat": nn.GAT(layers=2, hidden=16, heads=2),
}
PLAIN = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}
NODES, STEPS = 80, 4


def with_numbers(parts, *, columns=0, seed=0, **options):
    """A graph with real numbers as labels, unknown for every node outside the masks."""
    base = random_graph(nodes=NODES, arcs=200, seed=seed, **options)
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((NODES, columns) if columns else NODES)
    role = rng.integers(0, 4, NODES)
    y[role == 3] = np.nan
    weight = base.edge_weight
    graph = fg.Graph(base.edge_index, base.x, y, (role == 0, role == 1, role == 2), edge_weight=weight, name="case")
    return graph, Assignment(rng.integers(0, parts, NODES).astype(np.int32), parts, "case", 0)


def objective(graph, loss):
    rows = torch.from_numpy(graph.train_mask[:, 0].copy())
    y = torch.from_numpy(np.array(graph.y, dtype=np.float64)).view(NODES, -1)
    return lambda step, out: PLAIN[loss](out[rows], y[rows])


def oracle(case, spec, loss="mse"):
    graph, _ = case(1)
    model = spec.build(graph.num_features, graph.num_classes, seed=3, dtype=torch.float64)
    return dense_trace(graph, spec, STEPS, model=model, objective=objective(graph, loss))


@pytest.mark.parametrize("columns", [0, 3])
@pytest.mark.parametrize("model", SPECS)
def test_any_number_of_ranks_equals_one_process(model, columns):
    case, spec = partial(with_numbers, columns=columns), SPECS[model]
    want = oracle(case, spec)
    outs, scores = [], []
    for ranks in (1, 2, 3):
        traces = run_threads(ranks, partial(train_trace, options={"metric": "r2"}), case, spec, STEPS)
        assert_same(traces, *want, tolerance=1e-9)
        outs.append(whole_out(traces, NODES))
        scores.append(traces[0]["scores"])
    for out, score in zip(outs[1:], scores[1:], strict=True):
        torch.testing.assert_close(out, outs[0], rtol=1e-9, atol=1e-9)
        assert score == pytest.approx(scores[0], abs=1e-9)
    graph, _ = case(1)
    y = np.array(graph.y).reshape(NODES, -1)
    for split, mask in (("val", graph.val_mask[:, 0]), ("test", graph.test_mask[:, 0])):
        error, spread = (y - outs[0].numpy())[mask], y[mask] - y[mask].mean(0)
        want_r2 = (1 - (error**2).sum(0) / (spread**2).sum(0)).mean()
        assert scores[0][split] == pytest.approx(want_r2, abs=1e-9)


@pytest.mark.parametrize("loss", ["mae", "huber"])
def test_other_losses(loss):
    case = partial(with_numbers, columns=2, directed=True, weighted=True)
    traces = run_threads(3, partial(train_trace, options={"loss": loss}), case, SPECS["gcn"], STEPS)
    assert_same(traces, *oracle(case, SPECS["gcn"], loss), tolerance=1e-9)


@pytest.mark.parametrize(
    "placement", [partial(Partitioned, hops=SPECS["sage"].hops), Mixture], ids=["live rows", "mixture"]
)
def test_other_ways_to_lay_out(placement):
    traces = run_threads(3, partial(train_trace, placement=placement), with_numbers, SPECS["sage"], STEPS)
    assert_same(traces, *oracle(with_numbers, SPECS["sage"]), tolerance=1e-9)


def test_a_pipeline_of_one_chunk_is_exact():
    strategy = fg.recipes.gnnpipe(chunks=1)
    spec = nn.GCN(layers=3, hidden=12, dropout=0.0)
    traces = run_threads(2, partial(train_trace, strategy=strategy), with_numbers, spec, STEPS)
    assert_same(traces, *oracle(with_numbers, spec), tolerance=1e-9)


def test_real_processes():
    traces = run_processes(2, train_trace, with_numbers, SPECS["gcn"], STEPS)
    assert_same(traces, *oracle(with_numbers, SPECS["gcn"]), tolerance=1e-9)


def test_whole_numbers_may_be_real_ones():
    """Classes [N] as one number per node, on request."""

    def case(parts):
        graph = random_graph(nodes=NODES, arcs=200)
        return graph, Assignment((np.arange(NODES) % parts).astype(np.int32), parts, "case", 0)

    graph, spec = case(1)[0], SPECS["gcn"]
    model = spec.build(graph.num_features, 1, seed=3, dtype=torch.float64)
    want = dense_trace(graph, spec, STEPS, model=model, objective=objective(graph, "mse"))
    assert_same(run_threads(2, partial(train_trace, options={"task": "regression"}), case, spec, STEPS), *want)


def test_the_smaller_error_is_the_better_one(tmp_path):
    """The best epoch has the smallest validation error; patience and predictions use this epoch."""
    graph, _ = with_numbers(1, columns=2)
    options = {"model": SPECS["gcn"], "parts": 2, "eval_every": 1, "out": tmp_path / "run", "lr": 0.05}
    run = fg.train(graph, epochs=60, patience=5, dtype="float64", metric="mae", **options)
    errors = [record.val for record in run.metrics]
    best = int(np.argmin(errors))
    assert run.result["val"] == errors[best]
    assert run.result["epochs"] == best + 6 < 60
    assert (run.result["task"], run.result["metric"], run.result["smaller_is_better"]) == ("regression", "mae", True)
    mask = graph.test_mask[:, 0]
    assert run.predictions.shape == (NODES, 2)
    assert np.abs(run.predictions - graph.y)[mask].mean() == pytest.approx(run.result["test"], abs=1e-6)
    assert fg.Run.read(run.folder).train.task == Regression()


def test_what_cannot_be_is_one_line(tmp_path):
    graph, _ = with_numbers(1)
    with pytest.raises(InputError, match="case has real numbers for labels: use --task regression, or give y as"):
        fg.train(graph, task="classification", out=tmp_path / "run")
    with pytest.raises(InputError, match="metric 'accuracy' does not fit real numbers; use one of: rmse, mae, r2"):
        fg.train(graph, metric="accuracy", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
