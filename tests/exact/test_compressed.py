"""Compressed wires: a subset of columns equals its equations; many bits come close; bytes equal the formula."""

import math

import pytest
import torch

import fullgraph as fg
from fullgraph import nn, recipes
from fullgraph.codec import BFloat16, Full, Half, Linear, LowBit, Subsample
from fullgraph.exchange import Bounded, Clock, Except, Pipelined, Smooth, Wire
from fullgraph.partition import cut_parts
from fullgraph.placement import Partitioned
from fullgraph.plan import HaloRoute
from fullgraph.testing import run_threads
from fullgraph.transport import Key
from tests.support import CASES, assert_same, coded, dense_trace, random_graph, train_trace

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
SAGE = nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True)
STEPS = 6


def columns_of(codec, step, layer, width):
    """The mask of a step and layer, as both ends derive it."""
    key, shape = Key(f"halo/layer{layer}", step, run=3), (1, width)
    return codec.decode(codec.encode(torch.ones(shape, dtype=torch.float64), key), shape, torch.float64, key)


@pytest.mark.parametrize("rate", [3.0, Linear(steps=STEPS, c_max=16, slope=2)], ids=str)
@pytest.mark.parametrize(
    "model", [SAGE, nn.GCN(layers=3, hidden=16, dropout=0.2, input_dropout=True), nn.GIN(layers=3, hidden=16)], ids=str
)
def test_a_subset_of_columns_equals_its_equations(rate, model):
    """Other parts see H_t times the mask; their gradients get the same mask, by the chain rule."""
    codec = Subsample(rate)

    def seen(step, layer, rows):
        return rows if layer == 2 else rows * columns_of(codec, step, layer, rows.shape[1])

    graph, assignment = CASES["directed"](3)
    part = torch.from_numpy(assignment.part.copy())
    losses, grads = dense_trace(graph, model, STEPS, part=part, seen=seen)
    wire = Except(wire=Wire(codec=codec), layer=2, other=Wire())
    options = (STEPS, wire, False, True, "cpu", 0.05, False)
    assert_same(run_threads(3, train_trace, CASES["directed"], model, *options), losses, grads)


@pytest.mark.parametrize(
    "codecs", [(LowBit(1), None), (LowBit(4), None), (Full(), LowBit(2)), (Half(), BFloat16())], ids=str
)
@pytest.mark.parametrize(
    "model",
    [SAGE, nn.GCN(layers=3, hidden=16), nn.GAT(layers=3, hidden=8, heads=2, dropout=0.3, input_dropout=True)],
    ids=str,
)
def test_coded_wires_equal_their_equations(codecs, model):
    """Sylvie's algebra: rows are quantised when sent, and so are their gradients; nothing else changes."""
    graph, assignment = CASES["directed"](3)
    part = torch.from_numpy(assignment.part.copy())
    seen = coded(graph, part, codecs[0], codecs[1] or codecs[0])
    losses, grads = dense_trace(graph, model, STEPS, part=part, seen=seen)
    options = (STEPS, Wire(codec=codecs[0], backward=codecs[1]), False, True, "cpu", 0.05, False)
    assert_same(run_threads(3, train_trace, CASES["directed"], model, *options), losses, grads)


def test_the_recipes_wires():
    wires = recipes.varco(c_max=64, slope=4).wires(epochs=101, layers=3)
    assert wires.at(2) == Wire()
    assert [wires.at(0).codec.num_columns(128, step) for step in (0, 25, 100)] == [2, 128, 128]
    assert recipes.sylvie_a(bits=2, refresh=5).wires(epochs=9, layers=3) == Wire(schedule=Bounded(5), codec=LowBit(2))
    assert recipes.sylvie_a(refresh=0).wires(epochs=9, layers=3).schedule == Pipelined()


@pytest.mark.parametrize(
    "wire",
    [Wire(codec=LowBit(8)), Wire(schedule=Bounded(2), codec=LowBit(8)),
     Wire(schedule=Pipelined(), codec=Subsample(2.0), backward=LowBit(4), smooth=Smooth(gamma=0.5), feedback=True)],
    ids=["lowbit", "bounded lowbit", "everything"],
)  # fmt: skip
def test_a_rerun_sends_the_same_bytes(wire):
    """Random bits come from the message's key: two runs are bit-identical."""
    first, second = (run_threads(3, train_trace, CASES["directed"], SAGE, STEPS, wire) for _ in range(2))
    assert torch.equal(first[0]["losses"], second[0]["losses"])
    for a, b in zip(first[0]["grads"], second[0]["grads"], strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_eight_bits_stay_close_to_exact():
    spec = nn.GraphSAGE(layers=3, hidden=16, dropout=0.0)
    exact, lossy = (
        run_threads(3, train_trace, CASES["undirected"], spec, 1, Wire(codec=codec) if codec else None)
        for codec in (None, LowBit(8))
    )
    for name, want in exact[0]["grads"][0].items():
        error = (lossy[0]["grads"][0][name] - want).norm() / want.norm()
        assert error < 0.05, f"{name}: {error:.3f}"


@pytest.mark.parametrize("bits", [1, 4])
def test_bytes_equal_the_formula(bits, tmp_path):
    graph = random_graph(nodes=300, arcs=1500, features=10)
    model = nn.GraphSAGE(layers=3, hidden=24)
    run = fg.train(
        graph, model=model, strategy=recipes.sylvie_s(bits=bits), parts=3, epochs=3, all_rows=True, out=tmp_path / "run"
    )
    row = math.ceil(bits * 24 / 8) + 4  # layers 1 and 2 both send their inputs, 24 wide; layer 0 is precomputed
    assert run.result["bytes_per_epoch"] == 2 * 2 * row * run.result["partition"]["halo_rows"]
    assert run.result["bytes_total"] == run.result["epochs"] * run.result["bytes_per_epoch"]


def fed_back(transport, codec):
    """The sum of all arrived rows over some steps, the sum of all sent rows, and the remaining error."""
    part = cut_parts(*CASES["directed"](transport.size), transport.rank)
    route = HaloRoute(part.send_rows, part.send_counts, part.recv_counts, len(part.ids))
    clock = Clock()
    channel = Wire(codec=codec, feedback=True).build(name="law", route=route, transport=transport, clock=clock)
    arrived, sent = 0, dict.fromkeys(route.pack(part.ids[:, None]), 0)
    for step in range(8):
        clock.tick()
        x = torch.randn(route.num_owned, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        sent = {peer: sent[peer] + rows for peer, rows in route.pack(x).items()}
        arrived = arrived + channel.end(channel.begin(x)[1])
    owed = channel.features.extras.residuals.rows
    settled = {peer: sent[peer] - owed[peer] for peer in sent}
    there = transport.begin(
        Key("settled", 0), {p: r.reshape(-1).view(torch.uint8) for p, r in settled.items()},
        {p: math.prod(shape) * 8 for p, shape in route.shapes((5,)).items()},
    ).wait()  # fmt: skip
    want = {p: there[p].view(torch.float64).view(shape) for p, shape in route.shapes((5,)).items()}
    return arrived, route.unpack(want, torch.zeros_like(arrived))


@pytest.mark.parametrize("codec", [LowBit(1), Subsample(3.0)], ids=str)
def test_error_feedback_loses_nothing(codec):
    """The sum of arrived rows is the sum of sent rows minus the remaining error."""
    for arrived, want in run_threads(3, fed_back, codec):
        torch.testing.assert_close(arrived, want, **TIGHT)


def crossed(transport, codec, seed):
    """Rows as a peer receives them in the first step of a run with this seed; no weights are drawn here."""
    graph, assignment = CASES["undirected"](transport.size)
    placement = Partitioned(seed=seed, precompute=False)
    shard = placement.place(cut_parts(graph, assignment, transport.rank), transport, Wire(codec=codec), "sum")
    shard.clock.tick()
    return shard.train.view.send(shard.train.x.clone(), 1).sources()


@pytest.mark.parametrize("codec", [LowBit(1), Subsample(4.0)], ids=str)
def test_the_seed_of_a_run_reaches_its_codecs(codec):
    once, again, other = (run_threads(2, crossed, codec, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(once, other, strict=True))
