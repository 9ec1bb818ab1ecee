"""The gradient all-reduce during the backward pass: groups begin in the same order on all ranks."""

from contextlib import nullcontext, suppress

import pytest
import torch
from torch import nn

import fullgraph as fg
from fullgraph.exchange import Bounded, Except, Pipelined, Sync, Wire
from fullgraph.ops import spmm
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.sync import ENOUGH, GradSync, _groups
from fullgraph.transport import Key, SingleRank
from fullgraph.transport.wrappers import Recording
from tests.support import CASES, trainer_of


class Noting:
    """A transport that records when sums begin, and which gradients the model has at that time."""

    def __init__(self, inner, model):
        self.inner, self.model, self.begun = inner, model, []
        self.rank, self.size = inner.rank, inner.size

    def all_reduce(self, key, x):
        have = [name for name, parameter in self.model.named_parameters() if parameter.grad is not None]
        self.begun.append((key, x.numel(), have))
        return self.inner.all_reduce(key, x)


def stack(width=128, layers=3):
    """A stack of layers, equal on all ranks; ranks are threads, which share torch's generator."""
    model, draw = nn.Sequential(*(nn.Linear(width, width).double() for _ in range(layers))), torch.Generator()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=draw.manual_seed(0), dtype=torch.float64) / width)
    return model


def summed(transport, lost_on=None, frozen=False):
    """A step of a stack of layers on this rank's rows; one rank may skip the middle layer."""
    model = stack()
    if frozen:
        model[1].requires_grad_(False)
    noting = Noting(transport, model)
    sync, x = GradSync(noting), torch.full((4, 128), 1.0 + transport.rank, dtype=torch.float64)
    with sync.under_way(model, 7):
        used = [layer for index, layer in enumerate(model) if (transport.rank, index) != (lost_on, 1)]
        nn.Sequential(*used)(x).square().sum().backward()
    under_way = len(noting.begun)
    sync(model.parameters(), 7)
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    return grads, noting.begun, under_way


def alone(rank, *, without_middle=False):
    model = stack()
    used = [model[0], model[2]] if without_middle else list(model)
    nn.Sequential(*used)(torch.full((4, 128), 1.0 + rank, dtype=torch.float64)).square().sum().backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}


def added(*of_ranks):
    return {name: sum(grads[name] for grads in of_ranks) for name in of_ranks[0]}


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_begin_while_the_backward_pass_goes_on(ranks):
    expected = added(*(alone(rank) for rank in range(ranks)))
    for grads, begun, under_way in run_threads(ranks, summed):
        assert [key.chunk for key, _, _ in begun] == list(range(len(begun)))
        assert under_way == len(begun) == 3  # a matrix and a bias are enough for a message
        assert begun[0][2] == ["2.weight", "2.bias"]  # the others had no gradient yet
        for name, grad in grads.items():
            torch.testing.assert_close(grad, expected[name], rtol=1e-12, atol=0)


def test_a_gradient_that_one_rank_does_not_have():
    """Its groups equal those of the others, in the same order, but later."""
    expected = added(alone(0), alone(1, without_middle=True))
    (_, first, early), (_, second, late) = found = run_threads(2, summed, 1)
    assert (early, late) == (3, 1)
    assert [(key, size) for key, size, _ in first] == [(key, size) for key, size, _ in second]
    for grads, _, _ in found:
        for name, grad in grads.items():
            torch.testing.assert_close(grad, expected[name], rtol=1e-12, atol=0)


def test_frozen_weights_take_no_part():
    for grads, begun, _ in run_threads(2, summed, None, True):
        assert grads["1.weight"] is None
        assert sum(size for _, size, _ in begun) == 2 * (128 * 128 + 128)


def test_a_step_that_failed_leaves_nothing_to_the_next():
    def body(transport):
        model, x = stack(), torch.ones(4, 128, dtype=torch.float64)
        sync = GradSync(transport)
        with suppress(ZeroDivisionError), sync.under_way(model, 0):
            model(x).sum().backward()
            raise ZeroDivisionError
        model.zero_grad(set_to_none=True)
        with sync.under_way(model, 1):
            model(x).sum().backward()
        sync(model.parameters(), 1)
        model(x).sum().backward()  # and no hook is left, which would begin another sum
        return len(sync._pending)

    assert run_threads(2, body) == [0, 0]


def test_groups_follow_the_layers_not_the_order_of_their_names():
    """A norm is listed after all layers, and its gradient comes with those of its layer."""
    model = fg.nn.GraphSAGE(layers=3, hidden=128, norm="layer").build(10, 4)
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [[names[one] for one in group] for group in _groups(model)]
    last = ["convs.2.lin_neigh.weight", "convs.2.lin_self.bias", "convs.2.lin_self.weight"]
    norm = ["norms.1.bias", "norms.1.weight"]
    assert groups[:2] == [
        [*last, *norm, "convs.1.lin_neigh.weight"],
        ["convs.1.lin_self.bias", "convs.1.lin_self.weight"],
    ]
    assert {name for group in groups[2:] for name in group} == {name for name in names.values() if ".0." in name}


def test_a_layers_own_weights_have_gradients_before_the_product_is_walked_back(monkeypatch):
    """The product takes long: gradients known before it can be sent during it."""
    came = []

    def told(matrix, x, *add):
        out = spmm(matrix, x, *add)
        if out.grad_fn is not None and not add:
            out.grad_fn.register_prehook(lambda _: came.append("product"))
        return out

    monkeypatch.setattr("fullgraph.placement.partitioned.view.spmm", told)
    spec = fg.nn.GraphSAGE(layers=3, hidden=16, norm="none")
    trainer = trainer_of(SingleRank(), CASES["undirected"], spec, TrainConfig(), narrow_first=False)
    for name, parameter in trainer.model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    trainer.train_step()
    assert came.count("product") == 2
    last, middle = (index for index, name in enumerate(came) if name == "product")
    assert came.index("convs.2.lin_self.weight") < last < came.index("convs.1.lin_self.weight") < middle


def test_one_rank_sums_nothing():
    model = stack()
    sync = GradSync(SingleRank())
    with sync.under_way(model, 0):
        model(torch.ones(4, 128, dtype=torch.float64)).sum().backward()
    before = model[0].weight.grad.clone()
    sync(model.parameters(), 0)
    assert torch.equal(model[0].weight.grad, before)


def trained(transport, norm, early):
    spec = fg.nn.GraphSAGE(layers=3, hidden=96, dropout=0.5, norm=norm)
    config = TrainConfig(epochs=4, dtype="float64", eval_every=4)
    trainer = trainer_of(transport, CASES["undirected"], spec, config)
    if not early:
        trainer._sums_under_way = lambda: nullcontext()
    sums = []
    inner = trainer.grad_sync.transport.all_reduce
    trainer.grad_sync.transport = _Told(trainer.grad_sync.transport, sums, inner)
    trainer.fit([])
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}, len(sums)


class _Told:
    def __init__(self, transport, sums, inner):
        self.rank, self.size, self.sums, self.inner = transport.rank, transport.size, sums, inner

    def all_reduce(self, key: Key, x):
        self.sums.append(key)
        return self.inner(key, x)


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("run", [run_threads, run_processes])
def test_weights_are_those_of_one_sum_after_the_backward_pass(run, norm):
    """Batch norm sums statistics within the backward pass, between the gradient all-reduces."""
    for (early, many), (late, few) in zip(run(3, trained, norm, True), run(3, trained, norm, False), strict=True):
        assert many > few == 4
        assert ENOUGH < 96 * 96 * 8
        for name, value in late.items():
            torch.testing.assert_close(early[name], value, rtol=1e-7, atol=1e-9)


def order_of_messages(transport, wire, steps):
    """The messages of the last step, without its forward pass, in the order of sending."""
    noted = Recording(transport)
    spec, config = fg.nn.GraphSAGE(layers=3, hidden=96, norm="none"), TrainConfig(epochs=9, dtype="float64")
    trainer = trainer_of(noted, CASES["undirected"], spec, config, wire, narrow_first=False)
    for _ in range(steps):
        noted.notes = []
        trainer.train_step()
    keys = [note.key for note in noted.notes]
    return [key.channel for key in keys if key.use == "weights" or key.way == "backward"]


SUMS, HALOS = ["weights"] * 3, ["halo/layer2", "halo/layer1"]


@pytest.mark.parametrize(
    ("wire", "steps", "left"),
    [
        (Wire(schedule=Pipelined()), 3, [*SUMS, *HALOS]),
        (Wire(schedule=Pipelined(warm_up=3)), 3, None),
        (Wire(schedule=Bounded(refresh=3)), 2, [*SUMS, *HALOS]),
        (Wire(schedule=Bounded(refresh=3)), 3, None),
        (Wire(), 3, None),
    ],
    ids=["late", "warm-up", "late for once", "fresh for once", "fresh"],
)
def test_late_gradients_of_rows_leave_after_the_sums_that_all_wait_for(wire, steps, left):
    for found in run_threads(2, order_of_messages, wire, steps):
        assert sorted(found) == sorted([*SUMS, *HALOS])
        if left is None:  # what this step itself reads goes at once, and the last sum comes after the backward pass
            assert found[0] == HALOS[0]
            assert found[-1] == "weights"
        else:
            assert found == left


def test_a_fresh_message_does_not_wait_behind_a_late_one():
    wires = Except(wire=Wire(schedule=Sync()), layer=2, other=Wire(schedule=Pipelined()))
    for found in run_threads(2, order_of_messages, wires, 3):
        assert found[-1] == "halo/layer2"
        assert sorted(found[:-1]) == sorted(["halo/layer1", *SUMS])


def test_a_step_that_failed_sends_nothing_late():
    def body(transport):
        clock, sent = trainer_of(transport, CASES["undirected"], fg.nn.GCN(layers=2), TrainConfig()).shard.clock, []
        with suppress(ZeroDivisionError), clock.making_way():
            clock.later(lambda: sent.append("in it"))
            raise ZeroDivisionError
        clock.later(lambda: sent.append("after it"))
        return sent

    assert run_threads(2, body) == [["after it"]] * 2
