"""Starts ranks on this machine with torch's elastic launcher, and says which one failed."""

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from fullgraph.errors import InputError

EXIT_INPUT = 2  # a rank's exit status when the user's input is wrong


# What a rank runs with unless the user says otherwise. Ranks of one machine talk over loopback. Idle threads sleep,
# since a spinning one takes a core another rank needs. Large tensors lie on huge pages: faulting in small ones was
# a quarter of a CPU epoch.
DEFAULTS = {
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_WAIT_POLICY": "passive",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


class RankFailed(RuntimeError):
    """A rank died; the text is one line that names it."""


def launch(parts: int, module: str, args: list[str]) -> None:
    """Run `python -m module args...` as `parts` ranks; returns when all are done."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Not in the run's folder: a rank must be able to say that its disk is full.
    scratch = tempfile.mkdtemp(prefix="fullgraph-")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=parts,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=scratch),
    )
    try:
        with _environment(**{**DEFAULTS, **os.environ}), _signals(), _quiet("torch.distributed"):
            elastic_launch(config, sys.executable)("-u", "-m", module, *args)
    except ChildFailedError as error:
        raise _explain(error) from None
    except SignalException as error:
        raise KeyboardInterrupt(str(error)) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _explain(error: "ChildFailedError") -> Exception:  # type: ignore[name-defined]  # noqa: F821
    """The first cause: a rank that a signal ended, else bad input, else the earliest failure."""
    failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
    for rank, failure in failures:
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            name = signal.Signals(-failure.exitcode).name
            return RankFailed(f"rank {rank} (pid {failure.pid}) was ended by {name}; the other ranks were stopped")
    for _, failure in failures:
        if failure.exitcode == EXIT_INPUT:
            return InputError(failure.message)
    rank, failure = failures[0]
    return RankFailed(f"rank {rank} failed with exit status {failure.exitcode}: {failure.message}")


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """These variables for a while; afterwards all are as before (the launcher sets some too)."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _signals() -> Iterator[None]:
    """The launcher's signal handlers for a while; afterwards the caller's own."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """The launcher reports every signal it sends; we say it in one line of our own."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
