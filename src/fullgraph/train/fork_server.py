"""Start ranks from a process that has imported torch and the package while the launcher reads the graph.

This module imports nothing large, because it runs before everything else.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from fullgraph.errors import RankFailed, signal_name
from fullgraph.proc import Progress
from fullgraph.reference import LARGE
from fullgraph.train import fork_server_main

WORKER = "fullgraph.worker"
IMPORT_S = 600.0  # time limit of a rank's imports; some libraries never finish theirs if memory runs out
LOOK_S = 0.5
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37

# Environment of a rank, unless the user sets these variables. Ranks of one machine communicate over loopback. Idle
# threads sleep: spinning would take a core that another rank needs. Large tensors use huge pages: page faults of small
# pages took a quarter of a CPU epoch. torch's C++ log of a lost peer is off: the rank reports it in one line.
DEFAULTS = {
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_WAIT_POLICY": "passive",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "TORCH_CPP_LOG_LEVEL": "FATAL",
}


class RankProcess:
    """A child of this process that the fork server forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = False
        self.returncode: int | None = None  # after the end; None: unknown, because this process ignores SIGCHLD

    def wait(self) -> None:
        if not self.ended:
            with suppress(ChildProcessError):
                _, status = os.waitpid(self.pid, 0)
                self.returncode = os.waitstatus_to_exitcode(status)
            self.ended = True

    def send_signal(self, number: int) -> None:
        if not self.ended:  # the kernel does not reuse the process number before `wait`
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process that imports the modules that ranks on `device` need, forks ranks on request, and dies with this one.

    Each call of `spawn` runs `main(classes)` of a module in a new process; the module is `fullgraph.worker` unless
    `worker` names another. more: large libraries that ranks need [those that this process has imported]. `close` makes
    those processes children of this one.
    """

    def __init__(self, device: str = "cpu", worker: str = "", more: Sequence[str] = ()) -> None:
        self.device, self.worker, self.more = (
            device,
            worker or WORKER,
            list(more or {*LARGE.values()}.intersection(sys.modules)),
        )
        self.timeout = IMPORT_S  # seconds that the server may be inactive; the run may set less
        self._used = self._spawned = False
        self._stack = ExitStack()
        self._begin()

    def _begin(self) -> None:
        self._orders, theirs = socket.socketpair()
        # A rank finds the same modules as its launcher.
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environ = {**DEFAULTS, **os.environ, "PYTHONPATH": paths}
        line = [sys.executable, "-P", "-u", fork_server_main.__file__, str(os.getpid()), str(theirs.fileno())]
        # A signal that arrives before Python's first line is held back, not printed as a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            self._process = subprocess.Popen(
                [*line, self.worker, self.device, *self.more], env=environ, stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip
        except BaseException:
            self._orders.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def spawn(
        self, name: str, arguments: Sequence[str], environ: Mapping[str, str], report: tuple[str, int],
        inherit: Sequence[int] = (), classes: str = "",
    ) -> RankProcess:  # fmt: skip
        """Fork a rank. report = (environment variable, pipe): the rank writes there why it ended.

        classes: the argument of the rank's `main`: the user's classes that are defined in no file.
        """
        if self._used and not fork_server_main.FORKS:
            self._orders.close()
            self._begin()
        if not self._used:
            self._stack.enter_context(adopting())
        self._used = True
        about = {"name": name, "arguments": list(arguments), "environ": dict(environ), "report": report[0]}
        order, answer = json.dumps({**about, "classes": classes}).encode() + b"\n", b""
        with suppress(ConnectionError):
            sent = socket.send_fds(self._orders, [order], [report[1], *inherit])
            self._orders.sendall(order[sent:])
        with suppress(ConnectionError):  # the server may have sent a reason before it ended
            while not answer.endswith(b"\n") and (part := self._answer()):
                answer += part
        self._spawned = True
        if answer.startswith(b"!"):
            raise RankFailed(f"ranks could not start: {answer[1:].decode().strip()}")
        if not answer.endswith(b"\n"):
            status = self._process.wait()
            how = f"status {status}" if status >= 0 else signal_name(-status)
            raise RankFailed(f"ranks could not start: the process that imports for them ended with {how}")
        return RankProcess(int(answer))

    def _answer(self) -> bytes:
        """Return the server's next answer; give up if it is inactive, or if its imports take too long."""
        self._orders.settimeout(LOOK_S)
        progress, silent = Progress(), 0
        for _ in range(round(IMPORT_S / LOOK_S)):
            with suppress(TimeoutError):
                return self._orders.recv(64)
            silent = 0 if progress.made(self._process.pid) else silent + 1
            if silent * LOOK_S >= self.timeout:
                answer = f"the process that imports for them (pid {self._process.pid}) gives no sign of life"
                raise RankFailed(f"ranks could not start: {answer} for {self.timeout:g} s; is it stopped?")
        raise RankFailed(f"ranks could not start: their imports took over {IMPORT_S:g} s")

    def _ended(self) -> None:
        """Wait for the server's end; kill it if it is stopped. Its ranks become children of this process anyway."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self.timeout)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the server, at once if it has no ranks; otherwise its ranks become children of this process."""
        if not self._spawned:
            self._process.kill()
        self._orders.close()
        if fork_server_main.FORKS or not self._spawned:
            self._ended()
        self._stack.close()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Adoption:
    """The kernel's flag that makes this process adopt orphaned descendants.

    The flag belongs to the whole process: the first thread that needs it sets it, and the last one resets it.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._before = threading.Lock(), 0, ctypes.c_int()

    def begin(self) -> None:
        with self._lock:
            if not self._users:
                libc = ctypes.CDLL(None)
                libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(self._before))
                libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
            self._users += 1

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, self._before.value)


_adoption = _Adoption()


@contextmanager
def adopting() -> Iterator[None]:
    """While the block runs, descendants whose parent ends become children of this process."""
    if not fork_server_main.FORKS:
        yield
        return
    _adoption.begin()
    try:
        yield
    finally:
        _adoption.end()
