"""Adaptive wires: the trend of the loss, bits by in-degree, the switch; a whole run equals its equations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fullgraph import nn
from fullgraph.codec import Graded, LowBit, quartiles
from fullgraph.exchange import Adaptive, Wire
from fullgraph.exchange.adaptive import Switch, Trend
from fullgraph.placement import Mixture, Partitioned
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Counting, Key
from tests.support import CASES, assert_same, coded, dense_trace, train_trace, trainer_of
from tests.support.oracles import dense_arcs

CONVEX = [2.0**-t for t in range(12)]


def test_the_trend_compares_falls():
    """With alpha = 0 the smoothed loss is the loss: falls of 4, 3, 2 and then 5 over two steps each."""
    losses = [0, 20.0, 0, 16.0, 0, 13.0, 0, 11.0, 0, 6.0]
    trend = Trend(losses, tau=2, alpha=0.0)
    assert [len(trend.slower(step)) for step in range(11)] == [0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3]
    assert trend.slower(10) == [True, True, False]
    assert [trend.bits(1, step) for step in (0, 5, 6, 8, 10)] == [1, 1, 2, 4, 2]
    assert trend.bits(8, 8) == 8, "never more than 8 bits"
    assert Trend([9.0, 8.0, 6.0, 3.0], tau=1, alpha=0.0).bits(1, 4) == 1, "never fewer than 1"


def test_the_trend_smooths():
    losses = np.random.default_rng(0).random(50).tolist()
    smoothed = [losses[0]]
    for loss in losses[1:]:
        smoothed.append(0.9 * smoothed[-1] + (1 - 0.9) * loss)
    marks = smoothed[4::5]
    want = [marks[k - 1] - marks[k] < marks[k - 2] - marks[k - 1] for k in range(2, len(marks))]
    assert Trend(losses, tau=5, alpha=0.9).slower(50) == want
    assert len(set(want)) == 2


def test_what_a_step_knows_does_not_depend_on_later_losses():
    """A resumed run has all its losses at once; it must draw what the first run drew."""
    losses = np.random.default_rng(1).random(40).tolist()
    growing: list[float] = []
    live, resumed = Trend(growing, tau=3, alpha=0.5), Trend(losses, tau=3, alpha=0.5)
    for step in range(40):
        assert live.slower(step) == resumed.slower(step)
        growing.append(losses[step])


def test_the_switch_follows_the_trend():
    trend = Trend(CONVEX, tau=2, alpha=0.0)  # falls more and more slowly
    assert [str(Switch(trend).turn(step)) for step in (0, 5, 6)] == [
        "send, read nothing",
        "send, read 4",
        "send, read 6",
    ]


def test_grades_are_quartiles():
    degrees = torch.arange(100)[torch.randperm(100, generator=torch.Generator().manual_seed(0))]
    grades = quartiles(degrees, degrees)
    assert grades.bincount().tolist() == [25] * 4
    assert quartiles(torch.tensor([5, 5, 5, 9]), torch.tensor([5, 5, 5, 9])).tolist() == [0, 0, 0, 3]
    assert [quartiles(torch.arange(n), torch.arange(n)).tolist() for n in (0, 1, 2)] == [[], [0], [0, 3]]
    assert quartiles(torch.tensor([0, 1, 3, 40]), torch.arange(4)).tolist() == [0, 1, 3, 3]
    assert quartiles(torch.tensor([7, 8]), torch.zeros(0)).tolist() == [0, 0], "no node is read by another rank"


@pytest.mark.parametrize("base", [1, 2, 8])
@pytest.mark.parametrize("shape", [(9, 16), (9, 3, 5), (0, 16)], ids=str)
def test_every_grade_is_coded_in_its_bits(base, shape):
    grades = torch.tensor([0, 3, 1, 1, 2, 0, 3, 2, 2][: shape[0]])
    codec = Graded(lambda step: base, lambda key: grades)
    key = Key("halo/layer1", 4, ends=(0, 1))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    wire = codec.encode(x, key)
    width = x[0].numel() if len(x) else 16
    bits = [min(8, base * 2**g) for g in grades.tolist()]
    assert wire.numel() == codec.nbytes(shape, x.dtype, key) == sum((b * width + 7) // 8 + 4 for b in bits)
    back = codec.decode(wire, shape, x.dtype, key)
    for row, b in enumerate(bits):
        step = (x[row].max() - x[row].min()) / (2**b - 1)
        assert (back[row] - x[row]).abs().max() <= 1.02 * step + 0.01


class ByNode:
    """For the oracle: a codec that looks up every row's node in the whole graph."""

    def __init__(self, graph, part, bits_at):
        self.needs = dense_arcs(graph, weighted=False) != 0
        self.part, self.bits_at = part, bits_at
        degree = torch.from_numpy(np.diff(graph.indptr).copy())
        boundary = torch.stack([(part != p) & self.needs[part == p].any(0) for p in part.unique()]).any(0)
        assert not boundary.all()
        ranked = sorted(degree[boundary].tolist())
        bounds = [ranked[max(len(ranked) * quarter // 4 - 1, 0)] for quarter in (1, 2, 3)]
        self.grade = torch.tensor([sum(value > bound for bound in bounds) for value in degree.tolist()])

    def encode(self, x, key):
        return x, key

    def decode(self, wire, shape, dtype, key):
        rows, key = wire
        owner, reader = key.ends if key.way == "forward" else key.ends[::-1]
        grade = self.grade[(self.part == owner) & self.needs[self.part == reader].any(0)]
        out = torch.empty_like(rows)
        for g in range(4):
            codec = LowBit(min(8, self.bits_at(key.step) * 2**g))
            name = replace(key, chunk=g)
            group = rows[grade == g]
            if len(group):
                out[grade == g] = codec.decode(codec.encode(group, name), tuple(group.shape), dtype, name)
        return out


@pytest.mark.parametrize("runner", [run_threads, run_processes], ids=["threads", "processes"])
def test_adaptive_wires_equal_their_equations(runner):
    """tau = 1: the bits change during the run, depending on its losses."""
    spec, steps = nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True), 8
    graph, assignment = CASES["directed"](2)
    part = torch.from_numpy(assignment.part.copy())
    wire = Adaptive(bits=1, tau=1, alpha=0.3)
    traces = runner(2, train_trace, CASES["directed"], spec, steps, wire, False, True, "cpu", 0.05, False)
    told = Trend(traces[0]["losses"].tolist(), tau=1, alpha=0.3)
    used = [told.bits(1, step) for step in range(steps)]
    assert len(set(used)) > 1, used
    codec = ByNode(graph, part, used.__getitem__)
    losses, grads = dense_trace(graph, spec, steps, part=part, seen=coded(graph, part, codec, codec))
    assert_same(traces, losses, grads)


def asked_for_grades(transport, wire, placement):
    """Whether grades cross when a rank is set up."""
    channels = set()
    counting = Counting(transport, lambda key, nbytes: channels.add(key.channel))
    spec = nn.GraphSAGE(layers=2, hidden=4)
    trainer_of(counting, CASES["directed"], spec, TrainConfig(epochs=1), wire, placement=placement)
    return any("grades" in channel for channel in channels)


@pytest.mark.parametrize("placement", [Partitioned, Mixture])
def test_grades_are_computed_only_if_a_wire_asks(placement):
    assert run_threads(2, asked_for_grades, Adaptive(), placement) == [True, True]
    assert run_threads(2, asked_for_grades, Wire(codec=LowBit(1)), placement) == [False, False]
