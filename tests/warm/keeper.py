"""A process that has imported what our commands import, and from which they are forked:

    python -P -u keeper.py PARENT ORDERS MODULE...

An order is a line of JSON on the socket ORDERS, with descriptors beside it: all that `subprocess.Popen` tells a new
interpreter. The answer is the number of a new process, which is a child of whoever ordered it. It has a keeper of its
own, so that the commands it starts are forked too. Nothing here may start a thread: none survives a fork.
"""

import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from contextlib import suppress
from pathlib import Path

import torch

from fullgraph.ops import kernels
from fullgraph.train import fork_server_main

ROOT = str(Path(__file__).parents[2])
FLAGS = ("-P", "-u")  # of the interpreter, which this file understands
FREE = 512  # descriptors from here on are unused


def main():
    parent, orders = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to everyone
    fork_server_main.die_with(parent)
    gc.disable()
    sys.path.insert(0, ROOT)
    from tests import warm

    del sys.path[0]  # a command does not see it
    for module in sys.argv[3:]:
        with suppress(ImportError):  # a package that is not installed
            importlib.import_module(module)
    kernels.warm_up("cpu")
    gc.freeze()
    order, handles, orders = _command(orders)
    gc.enable()
    _become(order, handles)
    if orders is not None:
        subprocess.Popen = warm.forking(orders)
    _run(order["line"])


def _command(orders):
    """In every process that an order creates: its order, its descriptors, and the socket of its own keeper, if any."""
    while True:
        order, handles = _born(orders)
        orders.close()
        if not order["starts"]:
            return order, handles, None
        ours, theirs = socket.socketpair()
        command = os.getpid()
        if os.fork() != 0:
            theirs.close()
            return order, handles, socket.socket(fileno=_away(ours.detach()))
        ours.close()
        for handle in handles:
            os.close(handle)
        fork_server_main.die_with(command)
        orders = theirs


def _born(orders):
    """Fork a process for each order. It returns in these processes; the keeper ends when there are no more orders."""
    while told := fork_server_main.receive(orders):
        text, handles = told
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            child = os.fork()
            if child:  # without a parent, the command becomes a child of the process that ordered it
                os.write(write, str(child).encode())
                os._exit(0)
            os.close(read), os.close(write)
            while os.getppid() == between:
                time.sleep(0.001)
            return json.loads(text), handles
        os.close(write)
        os.waitpid(between, 0)
        orders.sendall(os.read(read, 32) + b"\n")
        for handle in (read, *handles):
            os.close(handle)
    os._exit(0)


def _become(order, handles):
    """Apply the order, like a new interpreter."""
    for handle, number in zip([_away(handle) for handle in handles], order["numbers"], strict=True):
        os.dup2(handle, number)
        os.close(handle)
    if order["session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    tempfile.tempdir = None  # found again by this environment
    at_once = "-u" in order["line"][:2] or bool(os.environ.get("PYTHONUNBUFFERED"))
    streams = (sys.stdin, sys.stdout, sys.stderr)
    sys.stdin, sys.stdout, sys.stderr = (_stream(old, number, at_once) for number, old in enumerate(streams))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    importlib.invalidate_caches()
    with suppress(ValueError):  # read when OpenMP is loaded, which it is
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "")))
    signal.signal(signal.SIGINT, signal.SIG_IGN if order["deaf"] else signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["mask"])


def _away(handle):
    """The same descriptor under a number that no order names."""
    moved = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, FREE)
    os.close(handle)
    return moved


def _stream(old, number, at_once):
    """A standard stream on the descriptor `number`, as a new interpreter opens it."""
    lines = not at_once and (number == 2 or (number == 1 and os.isatty(1)))
    binary = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115  # open as long as the process
    return io.TextIOWrapper(binary, old.encoding, old.errors, line_buffering=lines, write_through=at_once)


def _run(line):
    """Run a command line as `python LINE` does."""
    flags = [word for word in line[:2] if word in FLAGS]
    name, *arguments = line[len(flags) :]
    if name == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv[:] = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    if "-P" in flags:  # a fork server, whose PYTHONPATH is all of its launcher's paths
        sys.path[:] = os.environ["PYTHONPATH"].split(os.pathsep)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
    sys.argv[:] = [name, *arguments]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = os.path.abspath(name)
    with open(name, "rb") as file:
        code = compile(file.read(), name, "exec")
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
