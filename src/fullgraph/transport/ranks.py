"""Run one function on many ranks: in threads, which are fast, or in processes, which are real."""

import gc
import multiprocessing as mp
import os
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fullgraph.device import available
from fullgraph.environ import MEETING
from fullgraph.errors import PeerLost
from fullgraph.transport.base import Transport
from fullgraph.transport.groups import SingleRank
from fullgraph.transport.job import join
from fullgraph.transport.threads import Hub
from fullgraph.transport.wrappers import OrderChecking

Body = Callable[..., Any]  # body(transport, *args) -> value
PRELOADED = ["fullgraph.run", "fullgraph.ops.kernels_cpu"]  # modules that most bodies import; named, not imported here


class StillRuns(AssertionError):
    """Ranks did not end in time."""


def run_threads(size: int, body: Body, *args: Any, timeout: float = 60.0, work: float | None = None) -> list[Any]:
    """Run body(transport, *args) on `size` simulated ranks; return the values in rank order.

    work: limit in seconds of processor time, instead of `timeout`: a busy machine then cannot cause a failure, and
    ranks that all wait for one another fail at once.
    """
    if size == 1:
        return [body(SingleRank(), *args)]
    hub = Hub(size, timeout if work is None else None)
    values: list[Any] = [None] * size
    errors: dict[int, BaseException] = {}

    def rank(transport: Transport) -> None:
        try:
            # A GPU has one thread for the backward passes of all ranks: a waiting rank would block the others.
            with torch.autograd.set_multithreading_enabled(False):
                values[transport.rank] = _checked(body, transport, args)
        except BaseException as error:
            errors[transport.rank] = error
            hub.fail(f"rank {transport.rank} failed with {type(error).__name__}: {error}")
        hub.end(transport.rank)

    threads = [threading.Thread(target=rank, args=(t,), name=f"rank {t.rank}", daemon=True) for t in hub.ranks()]
    for thread in threads:
        thread.start()
    now, limit = (time.monotonic, timeout) if work is None else (time.process_time, work)
    deadline = now() + limit
    for thread in threads:
        while thread.is_alive() and now() < deadline:
            thread.join(min(1.0, max(0.1, deadline - now())))
        if thread.is_alive():
            waits = hub.waits()
            hub.fail(f"the other ranks still run after {limit:g} s")
            raise StillRuns(f"{thread.name} still runs after {limit:g} s: {waits or 'no rank waits for another'}")
    if errors:
        # Raise the first cause, not a peer's PeerLost.
        raise next((e for e in errors.values() if not isinstance(e, PeerLost)), next(iter(errors.values())))
    return values


def run_processes(
    size: int, body: Body, *args: Any, timeout: float = 120.0, silence: float = 30.0, device: str = "cpu",
    backend: str = "gloo",
) -> list[Any]:  # fmt: skip
    """Run body(transport, *args) on `size` processes, forked from one that has imported torch.

    A child's traceback becomes the text of the failure. silence: seconds without a heartbeat after which a rank counts
    as dead. device: of the ranks' rows. On a machine with a GPU, ranks are not forked, not even those on the CPU: the
    GPU's driver does not survive a fork, and an import may have started it.
    """
    context = mp.get_context("spawn") if available() else mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    meeting = tempfile.mkdtemp(prefix="fullgraph-test-")
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    children = [
        context.Process(
            target=_child,
            args=(rank, size, meeting, silence, (device, backend), dict(os.environ), pipes[rank][1], body, args),
            daemon=True,
        )
        for rank in range(size)
    ]
    for child in children:
        child.start()
    for _, write in pipes:
        write.close()
    try:
        return _collect([read for read, _ in pipes], time.monotonic() + timeout, timeout)
    finally:
        for child in children:
            child.join(5)
            if child.is_alive():
                child.kill()
                child.join()
            child.close()
        for read, _ in pipes:
            read.close()
        shutil.rmtree(meeting, ignore_errors=True)


def anew(transport: OrderChecking, body: Body, *args: Any) -> Any:
    """Run another body in the same ranks, which may use all keys again: starting processes takes seconds."""
    return _checked(body, transport.inner, args)


def _collect(pipes: list[Connection], deadline: float, timeout: float) -> list[Any]:
    values: dict[int, Any] = {}
    failures: dict[int, str] = {}
    waiting = dict(enumerate(pipes))
    while waiting:
        ready = mp.connection.wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
        assert ready, f"ranks {sorted(waiting)} still run after {timeout:g} s"
        for rank, pipe in [(r, p) for r, p in waiting.items() if p in ready]:
            del waiting[rank]
            try:
                good, value = pipe.recv()
            except EOFError:
                good, value = False, "the process died without a message"
            (values if good else failures)[rank] = value
        if failures and deadline > time.monotonic() + 10:
            deadline = time.monotonic() + 10
    assert not failures, "\n".join(f"rank {rank}:\n{text}" for rank, text in sorted(failures.items()))
    return [_to_torch(values[rank]) for rank in range(len(pipes))]


def _child(
    rank: int, size: int, meeting: str, silence: float, medium: tuple[str, str], environ: dict[str, str],
    pipe: Connection, body: Body, args: tuple[Any, ...],
) -> None:  # fmt: skip
    gc.freeze()  # keep the server's imports out of collection
    os.environ.clear()  # a server's variables are those of its first use
    os.environ.update(environ)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
        GLOO_SOCKET_IFNAME="lo", **{MEETING: meeting},
    )  # fmt: skip
    torch.set_num_threads(1)
    try:
        device, backend = medium
        transport = join(backend=backend, timeout=silence, device=torch.device(device))
        value = _to_numpy(_checked(body, transport, args))
        transport.close()
        pipe.send((True, value))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def _checked(body: Body, transport: Transport, args: tuple[Any, ...]) -> Any:
    ordered = OrderChecking(transport)
    value = body(ordered, *args)
    ordered.check()
    return value


def _to_numpy(value: Any) -> Any:
    return _walk(value, Tensor, lambda t: ("tensor", t.detach().numpy()))


def _to_torch(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "tensor":
        return torch.from_numpy(value[1])
    return _walk(value, (), lambda v: v, again=_to_torch)


def _walk(value: Any, kind: Any, change: Callable[[Any], Any], again: Callable[[Any], Any] | None = None) -> Any:
    again = again or (lambda v: _walk(v, kind, change))
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: again(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(again(item) for item in value)
    return value
