"""Which threads wait for copies, and the order of staging; nccl with device buffers, and steps that never wait."""

import math
import threading
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fullgraph import nn, recipes
from fullgraph.testing import anew, run_processes
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Key, SingleRank
from fullgraph.transport.stage import OnHost
from tests.support import CASES, trainer_of


class Spy(OnHost):
    """Records which thread did what, and inside which context."""

    def __init__(self):
        self.notes, self.inside = [], threading.local()

    def note(self, what):
        self.notes.append((what, threading.current_thread().name, getattr(self.inside, "name", "")))

    @contextmanager
    def _within(self, name):
        self.inside.name = name
        yield
        self.inside.name = ""

    def mark(self):
        self.note("mark")

    def leaving(self, ready):
        return self._within("leaving")

    def arriving(self):
        return self._within("arriving")

    def to_wire(self, x):
        self.note("to_wire")
        return x

    def left(self):
        self.note("left")

    def keep(self, tensors):
        self.note(f"keep {len(list(tensors))}")

    def empty_wire(self, nbytes):
        self.note("empty_wire")
        return super().empty_wire(nbytes)

    def from_wire(self, wire):
        self.note("from_wire")
        return wire

    def take(self, tensors, arrived):
        self.note("take")


class Rows:
    """A coding of rows that are bytes."""

    def nbytes(self, peer, rows):
        return rows.numel()

    def encode(self, peer, rows):
        return rows + 1

    def decode(self, peer, wire):
        return wire * 2


def staged(transport):
    link, other = transport.inner, 1 - transport.rank
    link.stage = Spy()
    rows = torch.full((10,), transport.rank, dtype=torch.uint8)
    got = link.begin(Key("halo/layer0", 0), {other: rows}, {other: 10}, Rows()).wait()
    return got[other], list(link.stage.notes)  # without what the runner does after this


def test_only_the_transports_threads_wait_for_copies():
    """The computing thread marks a moment and later takes the received rows; memory for messages is allocated on
    streams of the transport, and sent memory is kept until the backend is done with it.
    """
    for rank, (rows, notes) in enumerate(run_processes(2, staged)):
        assert rows.tolist() == [2 * (1 - rank + 1)] * 10
        of_thread = {}
        for what, thread, inside in notes:
            of_thread.setdefault(thread, []).append((what, inside))
        assert of_thread == {
            "MainThread": [("mark", ""), ("take", "")],
            "fullgraph-sender": [("empty_wire", "leaving"), ("to_wire", "leaving"), ("left", "leaving")],
            "fullgraph-receiver": [("keep 1", "arriving"), ("from_wire", "arriving"), ("mark", "arriving")],
        }


class HostReads(TorchDispatchMode):
    """Records every operation whose result a host reads, or whose size depends on a device's numbers."""

    READS = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal"})

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        masked = name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if name in self.READS or masked:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("model", "case"),
    [
        (nn.GraphSAGE(layers=2, hidden=4, norm="layer"), "sparse"),
        (nn.GCN(layers=2, hidden=4), "weighted"),
        (nn.GAT(layers=2, hidden=2, heads=1), "undirected"),
    ],
)
def test_a_step_reads_nothing_back(model, case):
    """As on a GPU: after the first step the host asks for no result, so nothing waits."""
    trainer = trainer_of(SingleRank(), CASES[case], model, TrainConfig(epochs=5))
    trainer.train_step()
    trainer.shard.clock.tick()
    with HostReads() as reads:  # Adam's step count is on the host and is read there
        trainer.shard.executor.step(trainer.model, trainer.shard, trainer.task.loss)
    assert reads.found == []


def test_host_reads_are_seen():
    with HostReads() as reads:
        x = torch.arange(3.0)
        x[x > 1].sum().item()
    assert reads.found == ["index", "_local_scalar_dense"]


STRATEGIES = ["vanilla", "pipegcn", "sylvie-s", "sylvie-a"]
SPEC = nn.GraphSAGE(layers=3, hidden=8, norm="layer")


def without_waiting(transport):
    """Steps in which torch refuses any operation that makes the host wait for the device."""
    losses = {}
    for name in STRATEGIES:
        made = partial(trainer_of, strategy=recipes.STRATEGIES.make(name))
        trainer = anew(transport, made, CASES["undirected"], SPEC, TrainConfig(epochs=6, device="cuda"))
        for _ in range(2):
            trainer.train_step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = [trainer.train_step()[0] for _ in range(3)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        losses[name] = [float(loss) for loss in found]
        trainer.shard.state()  # receives what is still on its way, before another trainer uses the same keys
    return losses


@pytest.mark.gpu
@pytest.mark.timeout(240)
def test_gpu_steps_never_wait_on_the_host():
    for losses in run_processes(2, without_waiting, timeout=200, device="cuda"):
        assert all(math.isfinite(loss) for of_name in losses.values() for loss in of_name)


def to_itself(transport):
    """Many messages to itself over nccl: encoded on the device, in the order of their keys, beside computing."""
    link = transport.inner
    assert not link.host_wires
    x = torch.arange(4 << 20, device="cuda") % 251
    busy = torch.randn(2000, 2000, device="cuda")
    pending = []
    for step in range(20):
        busy = busy @ busy / 2000
        rows = (x + step).to(torch.uint8)
        pending.append(link.begin(Key("halo/self", step), {0: rows}, {0: rows.numel()}, Rows()))
        del rows  # its memory is free for the next tensor, as far as the computing stream knows
        torch.randint(0, 255, (4 << 20,), device="cuda", dtype=torch.uint8)
    wrong = []
    for step, message in enumerate(pending):
        wanted = ((x + step).to(torch.uint8) + 1) * 2
        wrong.append(int((message.wait()[0] != wanted).sum()))
    total = link.all_reduce(Key("sum", 0), torch.arange(5.0, device="cuda")).wait()
    host = link.all_reduce(Key("sum", 1), torch.arange(5)).wait()
    return wrong, total.cpu(), host


@pytest.mark.gpu
@pytest.mark.timeout(120)
def test_gpu_nccl_sends_to_itself():
    """One GPU allows only one rank: two nccl ranks need two."""
    ((wrong, total, host),) = run_processes(1, to_itself, timeout=100, device="cuda", backend="nccl")
    assert wrong == [0] * 20
    assert total.tolist() == [0, 1, 2, 3, 4]
    assert host.tolist() == [0, 1, 2, 3, 4]
