"""Run work in parallel, long-lived processes; one that fails or dies does not affect the others."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
SPAWN = get_context("spawn")  # a forked process could not use the GPU


class Failed(Exception):
    """A failed piece of work, in one line."""


def side_by_side(
    work: Callable[[T], R], items: Sequence[T], *, jobs: int, limit_s: float = inf, pinned: bool = False
) -> Iterator[tuple[T, R | Failed]]:
    """Yield each item with its result of `work`, in order of completion; after `limit_s` seconds no other item begins.

    work: a function of a module, or `functools.partial` of one: other processes call it. pinned: each process stays on
    one core, where threads that need Python's lock are twice as fast as on several cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    deadline = time.monotonic() + limit_s
    waiting, lock = iter(items), Lock()
    ended: SimpleQueue[tuple[T, R | Failed] | None] = SimpleQueue()

    def following() -> T | None:
        with lock:
            return next(waiting, None) if time.monotonic() < deadline else None

    def keep_busy(worker: Worker[T, R]) -> None:
        while (item := following()) is not None:
            ended.put((item, worker.do(item)))
        ended.put(None)

    places = [cores[index % len(cores)] if pinned else None for index in range(min(jobs, len(items)))]
    workers = [Worker(work, core) for core in places]
    threads = [Thread(target=partial(keep_busy, worker), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        busy = len(threads)
        while busy:
            pair = ended.get()
            if pair is None:
                busy -= 1
            else:
                yield pair
    finally:
        for worker in workers:
            worker.end()


class Worker(Generic[T, R]):
    """A process that starts with its first piece of work, and again after a piece that killed it."""

    def __init__(self, work: Callable[[T], R], core: int | None = None) -> None:
        self.work, self.core = work, core
        self.child: Any = None
        self.pipe: Connection | None = None

    def do(self, item: T) -> R | Failed:
        if self.pipe is None:
            self._start()
        assert self.pipe is not None
        try:
            self.pipe.send(item)
            good, value = self.pipe.recv()
        except (EOFError, OSError):
            self.child.join()
            code = self.child.exitcode
            self.end()
            return Failed(f"its process died, exit code {code}")
        return value if good else Failed(value)

    def _start(self) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.child = SPAWN.Process(target=_serve, args=(theirs, self.work, self.core), daemon=True)
        self.child.start()
        theirs.close()

    def end(self) -> None:
        if self.pipe is not None:
            self.child.terminate()
            self.child.join()
            self.pipe.close()
            self.pipe = None


def _serve(pipe: Connection, work: Callable[[T], R], core: int | None) -> None:
    """Do the requested work until no more is requested."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        while True:
            item = pipe.recv()
            try:
                pipe.send((True, work(item)))
            except (Exception, SystemExit) as error:
                text = str(error).strip() or type(error).__name__
                name = "" if isinstance(error, SystemExit) else f"{type(error).__name__}: "
                pipe.send((False, f"{name}{text}"))
    except (EOFError, KeyboardInterrupt):
        pass
