"""Real ranks: processes connected by torch.distributed (gloo, or nccl between GPUs)."""

import queue
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fullgraph.device import is_accelerator, module_of
from fullgraph.errors import PeerLost, one_line
from fullgraph.transport.base import PLAIN, ByPeer, Coding, Pending, Sizes
from fullgraph.transport.key import Key
from fullgraph.transport.stage import Mark, OnDevice, OnHost
from fullgraph.transport.sums import add_up, swaps
from fullgraph.transport.watchdog import PATIENCE_S, Watchdog

T = TypeVar("T")
# Only the watchdog ends a wait. A timeout of the backend would also end all other messages.
_BACKEND_TIMEOUT = timedelta(seconds=2 * PATIENCE_S)


class _Lane:
    """A daemon thread that runs calls in the order in which they were submitted."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._calls = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, call, args))
        return future

    def _run(self) -> None:
        while (task := self._calls.get()) is not None:
            future, call, args = task
            try:
                future.set_result(call(*args))
            except BaseException as error:
                future.set_exception(error)
            del task, future, call, args  # else the last message's rows would stay in memory until the next message

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join(10)


class _Exchange:
    """The sends and receives of one key, which progress in the backend's threads."""

    def __init__(
        self, owner: "ProcessTransport", key: Key, works: list[tuple[str, dist.Work]],
        wires: ByPeer, sent: list[Tensor],
    ) -> None:  # fmt: skip
        self.owner, self.key, self.works, self.wires = owner, key, works, wires
        self.sent = sent  # `wait` waits for sends too: these buffers must outlive them

    def wait(self) -> ByPeer:
        for whom, work in self.works:
            with self.owner.naming(self.key, whom):
                work.wait(_BACKEND_TIMEOUT)
        self.owner.stage.keep(self.sent)
        self.works, self.sent = [], []
        return self.wires


class _PendingResult(Generic[T]):
    """A result that another thread computes; after `wait`, the computing stream may use it."""

    def __init__(self, owner: "ProcessTransport", text: str, future: Future[tuple[T, Mark]]) -> None:
        self.owner, self.text, self.future = owner, text, future

    def wait(self) -> T:
        if not self.future.done():
            self.owner.watch.wait(lambda seconds: bool(wait_for([self.future], seconds).done), self.text)
        value, arrived = self.future.result()
        tensors = [value] if isinstance(value, Tensor) else list(value.values())  # type: ignore[attr-defined]
        self.owner.stage.take(tensors, arrived)
        return value


class _PendingSum:
    """An all-reduce that the backend runs, on a tensor in memory that the backend can read."""

    def __init__(self, owner: "ProcessTransport", text: str, work: dist.Work, x: Tensor) -> None:
        self.owner, self.text, self.work, self.x = owner, text, work, x
        self.done = False

    def wait(self) -> Tensor:
        if not self.done:
            if not is_accelerator(self.x.device):  # on a GPU the device waits for the backend, not this thread
                over = threading.Event()
                self.work.get_future().add_done_callback(lambda _: over.set())
                self.owner.watch.wait(over.wait, self.text)
            with _Naming(f"{self.owner.watch} lost {self.text}"):
                self.work.wait()
            self.done = True
        return self.x


class _SumLane(NamedTuple):
    """A process group and the thread that runs its sums, in the order in which they began."""

    group: dist.ProcessGroup
    lane: _Lane


class ProcessTransport:
    """One rank among processes.

    It has three communicators. A sum therefore never waits behind halo rows, and a sum inside the backward pass never
    waits behind a gradient all-reduce that other ranks have not reached.

    Encoding and decoding run beside the training thread: the sender thread encodes and posts, the receiver thread waits
    for messages and decodes them, both in the order of `begin`. Two more threads add up swapped tensors (see sums.py)
    and copy a GPU's tensors for sums: one for the gradient all-reduce, one for all other sums. One more thread posts
    heartbeats (see watchdog.py). On a GPU, sender and receiver have one stream each, and sums have one (see stage.py).

    gloo cannot send a GPU's tensors: they pass through pinned host memory. nccl sends them from the GPU, all messages
    of a key as one group. nccl was tested with one rank that sends to itself, never with several GPUs.
    """

    def __init__(self, watch: Watchdog, *, device: torch.device | None = None) -> None:
        assert dist.is_initialized(), "join() first"
        self.rank, self.size, self.watch = dist.get_rank(), dist.get_world_size(), watch
        self.device = device or torch.device("cpu")
        self.host_wires = dist.get_backend() == "gloo"
        on_device = is_accelerator(self.device)
        self.stage, self.sum_stage = (
            OnDevice(self.device, host_wires=self.host_wires) if on_device else OnHost() for _ in range(2)
        )
        self.halo = dist.new_group()
        if not self.host_wires:
            if self.device.index is not None:
                module_of(self.device).set_device(self.device)  # nccl uses the current device
            # The first call on an nccl communicator must include all ranks; a message may involve only two.
            self.halo.allreduce([torch.zeros(1, device=self.device)]).wait()
        self.sender, self.receiver = _Lane("fullgraph-sender"), _Lane("fullgraph-receiver")
        self.sums = {name: _SumLane(dist.new_group(), _Lane(f"fullgraph-{name}")) for name in ("weights", "sums")}
        self.forks: list[ProcessTransport] = []

    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
        self.watch.doing(f"sent {key}")
        posted = self.sender.submit(self._post, key, outgoing, incoming, coding, self.stage.mark())
        peers = ", ".join(map(str, incoming)) or "nobody"
        return _PendingResult(self, f"{key} from rank {peers}", self.receiver.submit(self._receive, posted, coding))

    def _post(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding, ready: Mark) -> _Exchange:
        with self.stage.leaving(ready):
            # Allocate here, on this stream: the computing stream may still read memory that it freed.
            wires = {peer: self.stage.empty_wire(nbytes) for peer, nbytes in incoming.items()}
            sent = {peer: self.stage.to_wire(coding.encode(peer, rows)) for peer, rows in outgoing.items()}
            self.stage.left()
            works = self._move(key, self.halo, wires, sent)
        # gloo reads the host copies; nccl reads the tensors on the GPU, encoded or not.
        kept = list(sent.values()) if self.host_wires else [*sent.values(), *outgoing.values()]
        return _Exchange(self, key, works, wires, kept)

    def _move(self, key: Key, group: dist.ProcessGroup, wires: ByPeer, sent: ByPeer) -> list[tuple[str, dist.Work]]:
        """Post receives into `wires` and sends of `sent`, both by peer."""
        moves: list[tuple[str, Callable[..., dist.Work | None], Tensor, int]]
        moves = [(f"from rank {peer}", dist.irecv, wire, peer) for peer, wire in wires.items()]
        moves += [(f"to rank {peer}", dist.isend, wire, peer) for peer, wire in sent.items()]
        works = []
        if self.host_wires:
            for whom, move, wire, peer in moves:
                with self.naming(key, whom):
                    works.append((whom, _work(move(wire, peer, group=group, tag=key.tag))))
        elif moves:
            # nccl has no tags, and deadlocks if sends are posted one by one.
            operations = [dist.P2POp(move, wire, peer, group) for _, move, wire, peer in moves]
            works = [("with its peers", work) for work in dist.batch_isend_irecv(operations)]
        return works

    def _receive(self, posted: "Future[_Exchange]", coding: Coding) -> tuple[ByPeer, Mark]:
        exchange = posted.result()
        with self.stage.arriving():
            wires = exchange.wait()
            if coding is not PLAIN:  # plain bytes are read on the host
                wires = {peer: self.stage.from_wire(wire) for peer, wire in wires.items()}
            return {peer: coding.decode(peer, wire) for peer, wire in wires.items()}, self.stage.mark()

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        self.watch.doing(f"adding {key}")
        text = f"{key} summed over all ranks"
        if is_accelerator(x.device) == self.host_wires:  # the backend cannot read x in its memory
            return _PendingResult(
                self, text, self._sums(key).lane.submit(self._sum_staged, key, x, self.sum_stage.mark())
            )
        if self._swaps(x):
            return _PendingResult(self, text, self._sums(key).lane.submit(self._add_up, self._swap(key, x), x))
        return _PendingSum(self, text, self._ring(key, x), x)

    def _sums(self, key: Key) -> _SumLane:
        return self.sums["weights" if key.use == "weights" else "sums"]

    def _swaps(self, wire: Tensor) -> bool:
        return self.host_wires and swaps(wire.nbytes, self.size)

    def _swap(self, key: Key, wire: Tensor) -> _Exchange:
        """Send this rank's tensor to all others, and expect theirs."""
        wire = wire.detach().contiguous()  # the backend reads memory in storage order
        others = {peer: torch.empty_like(wire) for peer in range(self.size) if peer != self.rank}
        works = self._move(key, self._sums(key).group, others, dict.fromkeys(others, wire))
        return _Exchange(self, key, works, others, [wire])

    def _add_up(self, parts: _Exchange, wire: Tensor) -> tuple[Tensor, Mark]:
        return add_up(wire, self.rank, parts.wait()), self.sum_stage.mark()

    def _ring(self, key: Key, wire: Tensor) -> dist.Work:
        options = dist.AllreduceOptions()
        options.timeout = _BACKEND_TIMEOUT
        with self.naming(key, "summed over all ranks"):
            return _work(self._sums(key).group.allreduce([wire], options))

    def _sum_staged(self, key: Key, x: Tensor, ready: Mark) -> tuple[Tensor, Mark]:
        with self.sum_stage.leaving(ready):
            wire = self.sum_stage.to_wire(x)
            self.sum_stage.left()
            if self._swaps(wire):
                self._add_up(self._swap(key, wire), wire)
            else:
                with self.naming(key, "summed over all ranks"):
                    self._ring(key, wire).wait()
            with torch.inference_mode():  # this thread writes x, whatever mode the computing thread uses
                x.copy_(wire, non_blocking=is_accelerator(x.device))
            return x, self.sum_stage.mark()

    def away(self, text: str) -> AbstractContextManager[None]:
        return self.watch.away(text)

    def fork(self) -> "ProcessTransport":
        self.forks.append(ProcessTransport(self.watch, device=self.device))
        return self.forks[-1]

    def close(self) -> None:
        for transport in (self, *self.forks):
            for lane in (transport.sender, transport.receiver, *(sums.lane for sums in transport.sums.values())):
                lane.close()
        self.watch.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def naming(self, key: Key, whom: str) -> "_Naming":
        return _Naming(f"{self.watch} lost {key} {whom}")


class _Naming:
    """Turns a backend's error into one line that names the message."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, PeerLost):
            raise PeerLost(f"{self.text}: {cause_of(error)}") from error


def cause_of(error: BaseException) -> str:
    """Return the cause alone: gloo puts a source line before it and advice after it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return one_line(re.sub(r"^\[[^]]*\]\s*", "", lines[0]).split(". This is typically")[0])


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not in the group"
    return work
