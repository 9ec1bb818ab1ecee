"""Emulated hosts: network namespaces on one bridge, each behind a link with a given rate that can be cut. Linux, as
root.

Everything is built over netlink, so no `ip` or `tc` command is needed. Names begin with `fg` and this process's number;
the next process removes what a killed process left behind.
"""

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fullgraph.errors import InputError
from fullgraph.lab.bench import netlink
from fullgraph.lab.bench.netlink import WIRE

PORT = 29400
CLONE_NEWNET = 0x40000000
_MADE = itertools.count()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold signals back: a signal between a call and its answer would leave hosts behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Hosts:
    """`count` hosts; `with Hosts(2) as hosts: hosts.rate(200e6); hosts.start(0, command)`."""

    def __init__(self, count: int) -> None:
        if os.geteuid() != 0:
            raise InputError("emulated hosts need root; run it with sudo")
        if find_spec("pyroute2") is None:
            raise InputError("emulated hosts need pyroute2: pip install 'fullgraph[dev]'")
        mine = f"fg{os.getpid()}x{next(_MADE)}"
        self.names = [f"{mine}h{host}" for host in range(count)]
        self.ports = [f"{mine}p{host}" for host in range(count)]  # these hosts' link ends on this machine
        self._bridge = f"{mine}b"
        self._net: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Hosts":
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        # In its own session: Ctrl-C at a terminal must not reach it, because it has to remove the hosts.
        self._net = subprocess.Popen([sys.executable, netlink.__file__], start_new_session=True, **pipes)
        try:
            self._call("sweep")
            addresses = [self.address(host) for host in range(len(self.names))]
            self._call("build", names=self.names, ports=self.ports, bridge=self._bridge, addresses=addresses)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @_undisturbed()
    def _call(self, call: str, **arguments: Any) -> None:
        net = self._net
        assert net is not None, "hosts exist only inside `with`"
        assert net.stdin is not None
        assert net.stdout is not None
        net.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
        net.stdin.flush()
        told = net.stdout.readline()
        trouble = json.loads(told) if told else "the process that creates them ended"
        if trouble:
            raise RuntimeError(f"emulated hosts, {call}: {trouble}")

    def _close(self) -> None:
        net = self._net
        assert net is not None
        try:
            self._call("remove", names=self.names, links=[*self.ports, self._bridge])
        finally:
            self._net = None
            net.kill()
            net.communicate()

    def address(self, host: int) -> str:
        return f"10.77.0.{10 + host}"

    def rate(self, bits_per_second: float) -> None:
        """Set what each link carries in each direction."""
        self._call("rate", names=self.names, ports=self.ports, bits_per_second=int(bits_per_second))

    def plug(self, host: int, *, up: bool) -> None:
        """Cut a host's link, or restore it; the host's own interface stays up, as behind a failing switch."""
        self._call("plug", port=self.ports[host], up=up)

    def one_way(self, source: int, target: int, *, lost: bool) -> None:
        """Drop everything that `source` sends to `target`; the other direction stays open."""
        self._call("one_way", name=self.names[source], address=self.address(target), lost=lost)

    def start(
        self, host: int, command: Sequence[object], *, environ: Mapping[str, str] | None = None, **streams: Any
    ) -> "subprocess.Popen[bytes]":
        """Start a command on a host, with that host's name."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"host{host}"]
        inside = ["nsenter", f"--net=/var/run/netns/{self.names[host]}", *named, *map(str, command)]
        env = {**os.environ, "GLOO_SOCKET_IFNAME": WIRE, **(environ or {})}
        return subprocess.Popen(inside, env=env, stdin=subprocess.DEVNULL, **streams)

    def rank(self, host: int, arguments: Sequence[object], **options: Any) -> "subprocess.Popen[bytes]":
        """Start `python ARGUMENTS` as the one rank of a host; variables name the other ranks, as Slurm's do."""
        about = {"RANK": host, "WORLD_SIZE": len(self.names), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        job = {**about, "MASTER_ADDR": self.address(0), "MASTER_PORT": PORT}
        environ = {**{name: str(value) for name, value in job.items()}, **options.pop("environ", {})}
        return self.start(host, [sys.executable, *arguments], environ=environ, **options)


def enter(name: str) -> None:
    """Move this process to the host of that name. Only the calling thread moves, so call it before other threads
    start.
    """
    handle = os.open(f"/var/run/netns/{name}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    finally:
        os.close(handle)
    os.environ["GLOO_SOCKET_IFNAME"] = WIRE


def sent() -> tuple[int, int]:
    """Bytes and packets that this host's link has sent. /sys shows the links of the namespace that mounted it."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, figures = line.strip().partition(":")
        if name == WIRE:
            return int(figures.split()[8]), int(figures.split()[9])
    return 0, 0
