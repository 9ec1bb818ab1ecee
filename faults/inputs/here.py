"""Run commands in this process, with threads as ranks: starting Python and torch for each case would take a day."""

import contextlib
import errno
import os
import resource
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from faults.inputs.case import MEMORY, Case, Ended
from fullgraph import api, cli, jobs, own_code, predicting, worker
from fullgraph.errors import InputError, Interrupted
from fullgraph.own_code import told_by_rank
from fullgraph.report import Phases
from fullgraph.testing import run_threads
from fullgraph.train.launch import RankFailed
from fullgraph.train.rank_io import Stop
from fullgraph.transport import PeerLost, Transport

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {  # audit events that change files -> the arguments that name a path, and the folder of relative paths
    "os.mkdir": ((0, 2),), "os.rmdir": ((0, 1),), "os.remove": ((0, 1),), "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),), "os.symlink": ((1, 2),), "os.truncate": ((0, None),), "os.chmod": ((0, 2),),
}  # fmt: skip
_INDUCTOR = os.path.join(tempfile.gettempdir(), "torchinductor_")  # torch creates it at the first import of PyG
_ALLOWED = ("/dev/", "/proc/self/", f"/proc/{os.getpid()}/", _INDUCTOR)


# The first backward pass searches for a GPU, which claims much address space on a machine with one.
torch.zeros(1, requires_grad=True).sum().backward()


class Hang(BaseException):
    """A case exceeded its time limit."""


class _Watch:
    """Records, and forbids, changes to files outside one folder, and names that a pickle requests."""

    def __init__(self) -> None:
        self.folder: str | None = None  # None: not watching
        self.outside: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "pickle.find_class" and arguments[0] == "posix":  # numba's cache may use pickles
            self.outside.append(f"pickle asked for {arguments}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
            self._note(event, arguments[0], None)
        elif event in _PATHS:
            for place, base in _PATHS[event]:
                self._note(event, arguments[place], None if base is None else arguments[base])

    def _note(self, event: str, path: Any, base: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.fsdecode(path)
        if isinstance(base, int) and base >= 0 and not os.path.isabs(name):
            name = os.path.join(os.readlink(f"/proc/self/fd/{base}"), name)
        folder, full = self.folder, os.path.abspath(name)
        inside = os.path.realpath(os.path.dirname(full)).startswith(str(folder)) or full == folder
        if not inside and not full.startswith(_ALLOWED) and "__pycache__" not in full:
            self.outside.append(f"{event} {full}")
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)


WATCH = _Watch()


def _no_fork_server(device: str, **more: Any) -> Any:
    """Replace the fork server: threads need none."""
    return contextlib.nullcontext()


def _ranks_here(
    parts: int, args: Sequence[str], *, inherit: Sequence[int] = (), phases: Phases | None = None, fork_server: Any,
    classes: str = "",
) -> None:  # fmt: skip
    """Replace `launch`: run ranks as threads."""
    folder, job, order = (*args, "")[:3]

    def body(transport: Transport) -> None:
        worker.work(Path(folder), job, order, transport, Stop(), Phases())

    try:
        run_threads(parts, body, work=100.0)  # of processor time: a busy machine is no hang
    except InputError as error:
        raise told_by_rank(str(error), getattr(error, "trace", "")) from None
    except PeerLost as error:
        raise RankFailed(f"rank failed: {error}") from None
    except Interrupted:
        raise
    except Exception as error:
        sys.stderr.write(traceback.format_exc())
        raise RankFailed(f"rank failed: {type(error).__name__}: {error}") from None


def run_here(case: Case, here: Path, scratch: Path) -> Ended:
    """Run the command in this process, in the folder `here`; `scratch` holds its output."""
    code: Any = None
    before, beyond = _memory(), 0
    with (
        _streams(scratch) as texts, _environ(case, here), _limits(case.limit_s), warnings.catch_warnings(),
        patch.object(cli, "_exit", sys.exit), contextlib.ExitStack() as stack,  # also where RANK is set
    ):  # fmt: skip
        # The replacement of `launch` must not count as user code.
        stack.enter_context(patch.object(own_code, "LIBRARIES", (*own_code.LIBRARIES, os.path.dirname(__file__))))
        for module in (jobs, predicting):
            stack.enter_context(patch.object(module, "launch", _ranks_here))
        for module in (api, cli, jobs, predicting):
            stack.enter_context(patch.object(module, "ForkServer", _no_fork_server))
        _default_warnings()
        sys.argv = ["fullgraph", *case.arguments]
        WATCH.outside, WATCH.folder = [], os.path.realpath(here.parent)
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        except Hang:
            code = f"no end within {case.limit_s:g} s"
        except BaseException:  # as the interpreter would handle it
            traceback.print_exc()
            code = 1
        finally:
            WATCH.folder = None
            beyond = _memory("VmHWM") - before
    err = texts[1].read_text(errors="replace")
    if isinstance(code, str):
        err, code = f"{err}\n{code}", -1
    return Ended(here, code or 0, texts[0].read_text(errors="replace"), err, beyond, list(WATCH.outside))


def used_up() -> bool:
    """Whether this process should end, because threads of an interrupted case still run."""
    names = [thread.name for thread in threading.enumerate()]
    return any(name.startswith(("rank ", "fullgraph-")) for name in names)


@contextlib.contextmanager
def _streams(scratch: Path) -> Iterator[tuple[Path, Path]]:
    """Redirect standard output and error to files, including output of libraries below Python."""
    texts = scratch / "out", scratch / "err"
    kept = [os.dup(1), os.dup(2)]
    streams = sys.stdout, sys.stderr
    try:
        for number, path in zip((1, 2), texts, strict=True):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            os.dup2(handle, number)
            os.close(handle)
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace")
        yield texts
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
            getattr(stream, "stream", stream).close()
        sys.stdout, sys.stderr = streams
        for number, handle in zip((1, 2), kept, strict=True):
            os.dup2(handle, number)
            os.close(handle)


@contextlib.contextmanager
def _environ(case: Case, here: Path) -> Iterator[None]:
    kept, folder, argv, threads = dict(os.environ), os.getcwd(), sys.argv, torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    beside = here.parent / "tmp"  # for temporary files of libraries, which are not files of the case
    beside.mkdir(exist_ok=True)
    tempfile.tempdir = str(beside)
    os.environ.update(
        {"TMPDIR": str(beside), "HOME": str(beside), "FULLGRAPH_DATA": str(beside / "data"), **case.environ}
    )
    os.chdir(here)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(kept)
        tempfile.tempdir, sys.argv = None, argv
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _limits(seconds: float) -> Iterator[None]:
    """Set an alarm for hangs, and a memory limit that the program can see."""

    def ring(number: int, frame: object) -> None:
        raise Hang

    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + MEMORY, old[1]))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of memory
    handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, old)


def _default_warnings() -> None:
    """Reset warnings as in a new interpreter, where a warning is a second line on standard error."""
    warnings.resetwarnings()
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)


def _memory(name: str = "VmRSS") -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(name)
