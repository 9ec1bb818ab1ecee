"""The fork server: a process that imports the modules that ranks need, and then forks each rank.

    python -P -u fork_server_main.py LAUNCHER_PID ORDERS MODULE DEVICE [MORE MODULES]

An order is a line of JSON on the socket ORDERS, with file descriptors: the arguments, the environment and the user's
classes of one rank. The server forks the rank and answers with its process number. When the launcher closes the socket,
the server ends and its ranks become the launcher's children (fork_server.py). The server must not start threads, which
do not survive a fork.

A rank dies with its launcher, however the launcher dies. SIGTERM is held back until the rank can handle it. Only the
launcher handles SIGINT and SIGHUP: a terminal sends them to both.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
ORDER_BYTES, MOST_DESCRIPTORS = 1 << 16, 64
FORKS = sys.platform == "linux"  # on other systems this process becomes its only rank


def main() -> None:
    launcher, orders, module = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), sys.argv[3]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise this process would ignore it if the launcher does
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM})
    die_with(launcher)
    gc.disable()  # imports leave little garbage, and garbage collection takes a tenth of their time
    try:
        worker = importlib.import_module(module)
    except Exception as error:  # the launcher reports it
        orders.sendall(f"!{type(error).__name__}: {error}".replace("\n", " ").encode(errors="replace") + b"\n")
        os._exit(1)
    with suppress(Exception):  # the rank reports the error better
        worker.warm_up(sys.argv[4])
        for name in sys.argv[5:]:
            importlib.import_module(name)
    gc.freeze()
    here = os.getpid()
    while order := receive(orders):
        text, handles = order
        child = os.fork() if FORKS else 0
        if child == 0:
            break
        orders.sendall(f"{child}\n".encode())
        for handle in handles:
            os.close(handle)
    else:
        os._exit(0)
    if not FORKS:
        orders.sendall(f"{here}\n".encode())
    orders.close()
    while os.getppid() == here:  # the kernel reports the launcher's death only to the launcher's own children
        time.sleep(0.001)
    die_with(launcher)
    rank = json.loads(text)
    _call(rank["name"])
    os.environ.update(rank["environ"], **{rank["report"]: str(handles[0])})
    sys.argv[:] = [module, *rank["arguments"]]
    gc.enable()
    worker.main(rank["classes"])
    os._exit(0)


def receive(orders: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return the next order and its descriptors; None when the launcher has closed the socket."""
    text, handles = b"", list[int]()
    while not text.endswith(b"\n"):
        part, more, _, _ = socket.recv_fds(orders, ORDER_BYTES, MOST_DESCRIPTORS)
        if not part:
            return None
        text, handles = text + part, [*handles, *more]
    return text, handles


def die_with(launcher: int) -> None:
    """Ask the kernel to end this process when its parent dies; end now if the parent is already dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the call above
        os._exit(1)


def _call(name: str) -> None:
    """Set the name that `top` shows for this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15])


if __name__ == "__main__":
    main()
