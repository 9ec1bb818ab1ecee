"""Commands that a test starts are forked from a process that imported torch once.

A training command of a second computes for less than that and imports for seven. Here `subprocess.Popen` takes the
command lines below to a keeper (keeper.py), and every other line as ever. What is forked is a process like any other:
a child of the one that started it, with its own ranks. Only its start is not that of a user, so each command is
started as users do in some test, which has the mark `cold`.
"""

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

from fullgraph.train import fork_server_main
from fullgraph.train.fork_server import DEFAULTS, adopting
from tests.warm import keeper

COLD = subprocess.Popen
MODULES = ("fullgraph", "faults.inputs", "torch.distributed.run")
# The keeper's imports: a command's modules, and packages that some commands need.
PRELOADED = (
    "fullgraph.worker", "fullgraph.cli", "fullgraph.api", "fullgraph.predicting", "fullgraph.jobs",
    "fullgraph.report.tables", "fullgraph.own_model", "rich.console", "pymetis",
    "pydantic.type_adapter", "safetensors.torch", "torch_geometric.nn",
)  # fmt: skip
# Read when an interpreter or a library starts: if they differ from the keeper's, a command starts normally.
EARLY = (
    "PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "NUMBA_", "OMP_WAIT", "MKL_", "KMP_", "TORCH_CPP", "TRITON_", "CUDA_",
)  # fmt: skip
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
PARAMETERS = list(inspect.signature(COLD._execute_child).parameters)


@contextmanager
def kept():
    """While the block runs, `subprocess.Popen` forks our commands."""
    if not fork_server_main.FORKS:
        yield
        return
    ours, theirs = socket.socketpair()
    line = [sys.executable, "-P", "-u", keeper.__file__, str(os.getpid()), str(theirs.fileno()), *PRELOADED]
    process = COLD(
        line, cwd="/", env={**DEFAULTS, **os.environ}, pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    theirs.close()
    subprocess.Popen = forking(ours)
    try:
        yield
    finally:
        subprocess.Popen = COLD
        ours.close()
        process.kill()
        process.wait()


def forking(orders):
    """A Popen whose commands are forked by the keeper at the other end of `orders`."""
    began, asking = _early(os.environ), threading.Lock()

    class Popen(COLD):
        def _execute_child(self, *given):
            how = dict(zip(PARAMETERS[1:], given, strict=True))
            order = _order(how, began)
            if order is None:
                return super()._execute_child(*given)
            ends = [how[name] for name in ("p2cread", "c2pwrite", "errwrite")]
            handles = [number if end == -1 else end for number, end in enumerate(ends)]
            try:
                with asking, adopting():
                    self.pid = _ask(orders, order, [*handles, *how["pass_fds"]])
                self._child_created = True
            finally:
                self._close_pipe_fds(*(how[name] for name in PIPES))

    return Popen


def _order(how, began):
    """The order for the keeper; None for a command that it does not start."""
    line, environ = how["args"], dict(os.environ if how["env"] is None else how["env"])
    if isinstance(line, str | bytes | os.PathLike) or how["shell"] or how["preexec_fn"]:
        return None
    program, *line = map(os.fsdecode, line)
    name = _ours(line)
    if program != sys.executable or not name or _early(environ) != began:
        return None
    fork_server = name == fork_server_main.__file__  # it starts nothing itself, and is told the paths of its launcher
    if not fork_server and environ.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
        return None
    return {
        "line": line,
        "cwd": os.getcwd() if how["cwd"] is None else os.fsdecode(how["cwd"]),
        "environ": environ,
        "numbers": [0, 1, 2, *how["pass_fds"]],
        "starts": not fork_server,
        "session": how["start_new_session"],
        "deaf": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,  # as a shell's command in the background is
        "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    }


def _ours(line):
    """The script or the module that a keeper would run; empty: none."""
    words = [word for word in line[:2] if word not in keeper.FLAGS] + line[2:]
    if words[:1] == ["-m"]:
        return words[1] if words[1:2] and words[1] in MODULES else ""
    return words[0] if words and words[0].endswith(".py") else ""


def _early(environ):
    found = {name: value for name, value in {**DEFAULTS, **environ}.items() if name.startswith(EARLY)}
    found.pop("PYTHONPATH", None)
    return found


def _ask(orders, order, handles):
    text, told = json.dumps(order).encode() + b"\n", b""
    sent = socket.send_fds(orders, [text], handles)
    orders.sendall(text[sent:])
    while not told.endswith(b"\n"):
        part = orders.recv(64)
        assert part, "the process that commands are forked from has ended"
        told += part
    return int(told)
