"""Work side by side in processes that live on for the next piece: one that fails or dies takes no other along."""

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
    """A piece of work that came to nothing, in one line."""


def side_by_side(
    work: Callable[[T], R], items: Sequence[T], *, jobs: int, limit_s: float = inf, pinned: bool = False
) -> Iterator[tuple[T, R | Failed]]:
    """Each item and what `work` made of it, as they end; after `limit_s` seconds no other is begun.

    work: a function of a module, or `functools.partial` of one: it is called in other processes. pinned: each process
    stays on one core, where threads that all want Python's lock are done twice as soon as on several.
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
    """A process that is started with its first piece of work, and anew after one of which it died."""

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
    """Do what comes until nobody asks any more."""
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
