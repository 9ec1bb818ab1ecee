"""Late rows that lose nothing: an exact end, fresh rows while they move much, and the last change continued."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from fullgraph import nn, recipes
from fullgraph.codec import LowBit
from fullgraph.errors import InputError
from fullgraph.exchange import Extrapolate, Pipelined, Steady, Wire
from fullgraph.recipes import STRATEGIES
from fullgraph.testing import run_processes, run_threads
from fullgraph.transport import Counting
from tests.exact.test_resume import CONFIG, assert_resumes_anywhere
from tests.support import CASES, assert_same, coded, stale_trace, train_trace
from tests.support.halos import HaloRules, halo_trace
from tests.support.oracles import dense_arcs

STEPS = 10
CASE = CASES["directed"]
GCN = nn.GCN(layers=3, hidden=12, dropout=0.0)
DROPPED = nn.GraphSAGE(layers=4, hidden=12, dropout=0.4)  # the input of the second layer has no dropout before it
NOISY = nn.GraphSAGE(layers=3, hidden=12, dropout=0.5, input_dropout=True)


def of(ranks, case=CASE):
    graph, assignment = case(ranks)
    return graph, torch.from_numpy(assignment.part.copy())


def yesterday(step):
    return step - 1 if step else None


class Moved:
    """|x(t) - x(t-1)| / |x(t) - m(t)| over all messages of `layers`; m is the mean row of a message."""

    def __init__(self, graph, part, layers, bound):
        needs = dense_arcs(graph, weighted=False) != 0
        pairs = [(p, q) for p in part.unique() for q in part.unique() if p != q]
        self.sent = [((part == p) & needs[part == q].any(0)).nonzero().flatten() for p, q in pairs]
        self.layers, self.bound = layers, bound
        self.rows, self.ratios = {}, []

    def see(self, step, layer, rows):
        self.rows[step, layer] = rows.detach()

    def read(self, step):
        if step > 1:
            off = whole = 0.0
            for layer in self.layers:
                for at in self.sent:
                    now, before = self.rows[step - 1, layer][at], self.rows[step - 2, layer][at]
                    off += float((now - before).square().sum())
                    whole += float((now - now.mean(0)).square().sum())
            self.ratios.append((off / whole) ** 0.5)
        return step - 1 if step > 1 and self.ratios[-1] <= self.bound else step


def steady_oracle(model, layers, bound, ranks, codec=None):
    graph, part = of(ranks)
    moved = Moved(graph, part, layers, bound)
    cross = (lambda step, layer, rows: rows) if codec is None else coded(graph, part, codec, codec)

    def seen(step, layer, rows):
        moved.see(step, layer, rows)
        return cross(step, layer, rows)

    trace = stale_trace(graph, part, model, moved.read, STEPS, narrow_first=False, cross=seen)
    return trace, moved.ratios


def trace(transport, strategy, model):
    return train_trace(transport, CASE, model, STEPS, strategy=strategy)


@pytest.mark.parametrize("bits", [0, 2], ids=["full", "two bits"])
@pytest.mark.parametrize(
    ("model", "layers", "bound"), [(GCN, (1, 2), 0.3), (DROPPED, (1,), 0.3)], ids=["no dropout", "dropout"]
)
def test_rows_are_late_while_they_hardly_move(model, layers, bound, bits):
    """The rows are compared before any rounding, so few bits do not look like movement."""
    codec = {"codec": "lowbit", "bits": str(bits)} if bits else {"codec": "full"}
    strategy = STRATEGIES.make("free", schedule="steady", drift=str(bound), **codec)
    (losses, grads), ratios = steady_oracle(model, layers, bound, 3, LowBit(bits) if bits else None)
    assert min(ratios) < bound < max(ratios), ratios
    traces = run_threads(3, trace, strategy, model)
    assert_same(traces, losses, grads)
    for ran in traces:
        assert ran["drifts"] == traces[0]["drifts"], "ranks would decide differently"
        assert ran["drifts"][0] is None
        torch.testing.assert_close(ran["drifts"][1:-1], ratios, rtol=1e-5, atol=0)


def test_processes_decide_alike():
    (losses, grads), _ = steady_oracle(GCN, (1, 2), 0.3, 2)
    strategy = STRATEGIES.make("free", schedule="steady", drift="0.3", codec="full")
    assert_same(run_processes(2, trace, strategy, GCN), losses, grads)


def test_rows_that_always_have_dropout_are_never_late():
    """Nothing can be compared if dropout comes before every exchange, so every step is fresh."""
    steady, fresh = (
        run_threads(3, trace, STRATEGIES.make("free", schedule=schedule, codec="full", **more), NOISY)
        for schedule, more in (("steady", {"drift": "9"}), ("sync", {}))
    )
    assert torch.equal(steady[0]["losses"], fresh[0]["losses"])
    assert steady[0]["drifts"] == [None] * STEPS


@pytest.mark.parametrize("kinds", ["f", "g", "gf"])
def test_extrapolation_equals_its_equation(kinds):
    graph, part = of(3)
    oracle = stale_trace(graph, part, NOISY, yesterday, STEPS, narrow_first=False, ahead=kinds)
    assert_same(run_threads(3, trace, recipes.pipegcn(smooth=kinds, extrapolate=True), NOISY), *oracle)


def test_continued_rows_and_fresh_ones():
    """Fresh rows stay as they are; late ones continue the last change."""
    wire = Wire(schedule=Pipelined(warm_up=4), smooth=Extrapolate(gradients=False))
    graph, part = of(3)
    oracle = stale_trace(graph, part, GCN, lambda t: t if t < 4 else t - 1, STEPS, narrow_first=False, ahead="f")
    options = (STEPS, wire, False, True, "cpu", 0.05, False)
    assert_same(run_threads(3, train_trace, CASE, GCN, *options), *oracle)


MOST = {
    "fresh": ({"schedule": "sync", "codec": "full"}, HaloRules(most=0.3)),
    "late, two bits, fed back": (
        {"schedule": "pipelined", "bits": "2", "feedback": "true"},
        HaloRules(most=0.3, read=yesterday, bits=2, feedback=True),
    ),
}


@pytest.mark.parametrize("name", MOST)
@pytest.mark.parametrize("model", [NOISY, nn.GAT(layers=2, hidden=8, heads=2)], ids=["sage", "gat"])
def test_rows_that_moved_most_cross(name, model):
    options, rules = MOST[name]
    oracle = halo_trace(*of(3), model, rules, STEPS)
    assert_same(run_threads(3, trace, STRATEGIES.make("free", most="0.3", **options), model), *oracle)


def test_a_budget_of_rows_is_a_budget_of_bytes():
    """In every later step, a message is one bit per row, and the numbers of the rows that cross."""
    most, layers, width = 0.3, 2, 12 * 8

    def sent(transport):
        sizes = []
        note = lambda key, size: sizes.append(size) if key.use == "rows" and key.step == 2 else None  # noqa: E731
        strategy = STRATEGIES.make("free", most=str(most), schedule="sync", codec="full")
        train_trace(Counting(transport, note), CASE, GCN, 3, strategy=strategy)
        return sum(sizes)

    graph, part = of(3)
    messages = [len(at) for at in Moved(graph, part, (), 0).sent]
    want = 2 * layers * sum(math.ceil(most * n) * width + math.ceil(n / 8) for n in messages if n)
    assert sum(run_threads(3, sent)) == want


SMOOTH = {"gamma_features": 0.8, "gamma_gradients": 0.8}
ENDED = {
    "pipegcn": ({}, yesterday, None, {}),
    "pipegcn-gf": ({"gamma": "0.8"}, yesterday, None, SMOOTH),
    "sylvie-a": ({"bits": "2"}, yesterday, LowBit(2), {}),
    "sylvie-s": ({}, lambda t: t, LowBit(1), {}),
}


@pytest.mark.parametrize("name", ENDED)
def test_the_end_is_fresh_and_in_full_precision(name):
    options, read, codec, smoothing = ENDED[name]
    graph, part = of(3)
    start = 7  # 0.7 of ten steps
    coarse = coded(graph, part, codec, codec) if codec else lambda step, layer, rows: rows
    oracle = stale_trace(
        graph, part, NOISY, lambda t: read(t) if t < start else t, STEPS, narrow_first=False, exact=start,
        cross=lambda step, layer, rows: coarse(step, layer, rows) if step < start else rows, **smoothing,
    )  # fmt: skip
    strategy = STRATEGIES.make(name, exact_from="0.7", **options)
    assert_same(run_threads(3, trace, strategy, NOISY), *oracle)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if isinstance(STRATEGIES.make(name), recipes.Published)])
def test_exact_from_the_start_is_vanilla(name):
    """Whatever would cross before, sampled, skipped, in turns or in columns, nothing of it is left after the start."""
    exact = run_threads(2, trace, recipes.vanilla(cover=False), NOISY)
    ended = run_threads(2, trace, STRATEGIES.make(name, exact_from="0", narrow="true", cover="false"), NOISY)
    assert torch.equal(ended[0]["losses"], exact[0]["losses"])


def test_a_schedule_is_read_without_a_run():
    assert [str(Steady().turn(step)) for step in range(4)] == [
        "send, read 0", "send, read 1", "send, read 1", "send, read 2",
    ]  # fmt: skip


@pytest.mark.parametrize("epochs", [7])
def test_a_resumed_run_decides_alike(epochs):
    """The measurements are in the records, and the rows that the next one compares are in the checkpoint."""
    config = replace(CONFIG, epochs=epochs, lr=0.05)
    wire = Wire(schedule=Steady(0.3), codec=LowBit(2), exact_step=6)
    assert_resumes_anywhere(2, CASE, GCN, config, wire, False)


def test_an_own_strategy_with_wires_refuses_an_exact_end():
    @dataclass(frozen=True, kw_only=True)
    class Own(recipes.Published):
        def wires(self, *, epochs, layers):
            return Wire(schedule=Pipelined())

    assert Own().wires(epochs=4, layers=2) == Wire(schedule=Pipelined())
    with pytest.raises(InputError, match=r"write sending\(\) in its place"):
        Own(exact_from=0.5)
