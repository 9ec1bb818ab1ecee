"""Routes and channels: the adjoint law, overlap in both passes, codecs on the wire, versions of a schedule."""

import time

import pytest
import torch

from fullgraph.codec import BFloat16, Full, Half
from fullgraph.errors import Damaged
from fullgraph.exchange import Bounded, Clock, Pipelined, Skip, Smooth, Sync, Wire, settled, table
from fullgraph.partition import cut_parts
from fullgraph.plan import HaloRoute
from fullgraph.testing import adjoint_pair, assert_schedule_law, run_processes, run_threads
from tests.support import CASES
from tests.support.delaying import Delaying


def route_of(transport, case):
    part = cut_parts(*CASES[case](transport.size), transport.rank)
    return part, HaloRoute(part.send_rows, part.send_counts, part.recv_counts, len(part.ids))


def adjoint(transport, case):
    _, route = route_of(transport, case)
    return adjoint_pair(transport, route, route.num_owned)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_backward_is_the_transpose(case, ranks):
    for left, right in run_threads(ranks, adjoint, case):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_backward_is_the_transpose_in_processes():
    for left, right in run_processes(3, adjoint, "directed"):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def halo_ids(transport, case, codec, relu):
    part, route = route_of(transport, case)
    channel = Wire(codec=codec).build(name="halo/layer0", route=route, transport=transport, clock=Clock())
    sign = torch.where(part.ids % 2 == 0, 1, -1)
    _, token = channel.begin((sign * part.ids)[:, None].double(), relu=relu)
    return part.halo_ids, channel.end(token)[:, 0]


@pytest.mark.parametrize("codec", [Full(), Half(), BFloat16()])
@pytest.mark.parametrize("relu", [False, True])
def test_halo_rows_are_the_owners_rows(codec, relu):
    """Ids below 256 survive every codec used here."""
    for ids, got in run_threads(4, halo_ids, "directed", codec, relu):
        want = torch.where(ids % 2 == 0, ids, torch.zeros_like(ids) if relu else -ids)
        assert torch.equal(got, want.double())


def relu_gradient(transport, case):
    """Sending relu(x) by `relu=True` equals applying it first, in both passes."""
    _, route = route_of(transport, case)
    results = []
    for early in (True, False):
        x = torch.randn(
            route.num_owned, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        ).requires_grad_()
        clock = Clock(int(early))
        channel = Wire().build(name="halo/layer0", route=route, transport=transport, clock=clock)
        passed, token = channel.begin(x.relu() if early else x, relu=not early)
        passed = passed if early else passed.relu()
        halo = channel.end(token)
        (halo.square().sum() + passed.pow(3).sum()).backward()
        results.append((halo.detach(), x.grad))
    return results


def test_relu_on_the_wire_has_the_right_gradient():
    for first, second in run_threads(3, relu_gradient, "directed"):
        for a, b in zip(first, second, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def overlap(transport, seconds):
    """Time a forward and backward pass whose local work takes as long as the messages."""
    _, route = route_of(transport, "undirected")
    slow = Delaying(transport, latency=seconds)
    channel = Wire().build(name="halo/layer0", route=route, transport=slow, clock=Clock())
    x = torch.randn(route.num_owned, 4).requires_grad_()
    start = time.perf_counter()
    passed, token = channel.begin(x)
    passed = Nap.apply(passed, seconds)
    (channel.end(token).sum() + passed.sum()).backward()
    return time.perf_counter() - start


class Nap(torch.autograd.Function):
    """Local work of a known length in both passes."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None


def test_the_wire_hides_behind_local_work_in_both_passes():
    """Two passes of 0.3 s work and 0.3 s messages: 0.6 s with overlap, 1.2 s without."""
    run_threads(2, overlap, 0.0)  # the first backward pass of a process imports a part of torch
    assert max(run_threads(2, overlap, 0.3)) < 0.95


def versions(transport):
    _, route = route_of(transport, "undirected")
    clock = Clock()
    channel = Wire(schedule=Pipelined()).build(name="halo/layer0", route=route, transport=transport, clock=clock)
    seen = []
    for step in range(4):
        clock.step = step
        x = torch.full((route.num_owned, 1), float(step + 1)).requires_grad_()
        passed, token = channel.begin(x)
        halo = channel.end(token)
        seen.append(halo.detach().unique().tolist())
        (halo.sum() * (step + 1) + passed.sum() * 0).backward()
        sent = torch.zeros(route.num_owned).index_add_(0, route.send_rows, torch.ones(len(route.send_rows)))
        assert torch.equal(x.grad[:, 0], sent * step), "gradients are one step old too"
    assert len(channel.features.versions) == 1
    return seen


def test_a_channel_reads_the_version_its_schedule_names():
    for seen in run_threads(2, versions):
        assert seen == [[0.0], [1.0], [2.0], [3.0]]


def resumed_gradient(transport, backwards):
    """The gradient of a step after a resume, from a state whose names are in either order."""
    _, route = route_of(transport, "directed")
    clock, wire, grads = Clock(), Wire(schedule=Pipelined()), []
    state = {}
    for step in range(2):
        clock.tick()
        channel = wire.build(name="halo/layer0", route=route, transport=transport, clock=clock)
        channel.load_state(dict(sorted(state.items(), reverse=backwards)))
        x = torch.randn(route.num_owned, 4, generator=torch.Generator().manual_seed(step)).requires_grad_()
        passed, token = channel.begin(x, relu=True)
        (channel.end(token).exp().sum() + passed.sum()).backward()
        state = settled(channel.held())
        grads.append(x.grad)
    return torch.stack(grads)


def test_a_state_is_its_names_in_any_order():
    """Files sort names as text, which puts peer 10 before peer 2."""
    for one, other in zip(*(run_threads(3, resumed_gradient, backwards) for backwards in (False, True)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "schedule", [Sync(), Pipelined(), Pipelined(3), Pipelined(2, 2), Bounded(1), Bounded(4), Skip(1), Skip(5)]
)
def test_schedules_read_what_was_sent(schedule):
    assert_schedule_law(schedule)


def test_schedules_print_as_tables():
    assert table(Pipelined(), 3).splitlines() == ["0: send, read nothing", "1: send, read 0", "2: send, read 1"]
    assert table(Bounded(3), 6).splitlines()[2:] == [
        "2: send, read 2", "3: send, read 2", "4: send, read 3", "5: send, read 5",
    ]  # fmt: skip
    assert table(Skip(2), 4).splitlines() == [
        "0: send, read 0",
        "1: keep, read 0",
        "2: send, read 2",
        "3: keep, read 2",
    ]


def refused(transport, change):
    """The error of a channel with a changed state, when it next sends."""
    _, route = route_of(transport, "directed")
    wire = Wire(schedule=Pipelined(), smooth=Smooth(gamma=0.8), codec=Half(), feedback=True)
    x = torch.randn(route.num_owned, 5)

    def step(state, number):
        channel = wire.build(name="halo/layer0", route=route, transport=transport, clock=Clock(number))
        channel.load_state(state)
        channel.end(channel.begin(x)[1])
        return settled(channel.held())

    state: dict[str, torch.Tensor] = {}
    for number in range(3):
        state = step(state, number)
    name = next(name for name in state if name.startswith(f"forward.{change}"))
    value = state[name]
    for other in (
        value[:-1],
        torch.cat([value, value[:1]]),
        value.double() if value.is_floating_point() else value[:0],
    ):
        with pytest.raises(Damaged, match="does not fit this run"):
            step({**state, name: other}, 3)
    return step(state, 3)


@pytest.mark.parametrize("change", ["version.2.", "average", "average.", "residual."])
def test_a_state_of_other_shapes_is_refused(change):
    """One row too few, one too many, another type: each is refused at once, so none fails later or fits by chance."""
    assert all(run_threads(2, refused, change))
