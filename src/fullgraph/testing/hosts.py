"""Emulated hosts: network namespaces on one bridge, each behind a link of a given rate that can be cut. Linux, as root.

Everything is made over netlink, so no `ip` or `tc` command is needed. Names begin with `fg` and this process's number;
what a killed process left behind is removed when the next one starts.
"""

import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from fullgraph.errors import InputError

PORT = 29400
NAMES = re.compile(r"fg(\d+)x\d+[hpb]\d*")
NOWHERE = "02:00:00:00:00:99"  # an address that no host has
PERMANENT = 0x80  # of a neighbour: never asked for again
_MADE = itertools.count()


class Hosts:
    """`count` hosts; `with Hosts(2) as hosts: hosts.rate(200e6); hosts.start(0, command)`."""

    def __init__(self, count: int) -> None:
        if os.geteuid() != 0:
            raise InputError("emulated hosts need root; run it with sudo")
        try:
            import pyroute2
        except ImportError as error:
            raise InputError("emulated hosts need pyroute2: pip install 'fullgraph[dev]'") from error
        self._net: Any = pyroute2
        mine = f"fg{os.getpid()}x{next(_MADE)}"
        self.names = [f"{mine}h{host}" for host in range(count)]
        self.ports = [f"{mine}p{host}" for host in range(count)]  # their ends of the links on this machine
        self._bridge = f"{mine}b"

    def __enter__(self) -> "Hosts":
        self._sweep()
        try:
            self._build()
        except BaseException:
            self._remove(self.names, [*self.ports, self._bridge])
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove(self.names, [*self.ports, self._bridge])

    def _build(self) -> None:
        with self._net.IPRoute() as here:
            here.link("add", ifname=self._bridge, kind="bridge")
            bridge = here.link_lookup(ifname=self._bridge)[0]
            here.link("set", index=bridge, state="up")
            for host, (name, port) in enumerate(zip(self.names, self.ports, strict=True)):
                self._net.netns.create(name)
                here.link("add", ifname=port, kind="veth", peer={"ifname": "wire", "net_ns_fd": name})
                here.link("set", index=here.link_lookup(ifname=port)[0], master=bridge, state="up")
                with self._net.NetNS(name) as there:
                    wire = there.link_lookup(ifname="wire")[0]
                    there.addr("add", index=wire, address=self.address(host), prefixlen=24)
                    there.link("set", index=wire, state="up")
                    there.link("set", index=there.link_lookup(ifname="lo")[0], state="up")

    def _sweep(self) -> None:
        """Remove the hosts of processes that are gone."""
        with self._net.IPRoute() as here:
            links = [dict(link["attrs"])["IFLA_IFNAME"] for link in here.get_links()]
        names = self._net.netns.listnetns()
        dead = [n for n in (*links, *names) if (m := NAMES.fullmatch(n)) and not Path(f"/proc/{m[1]}").exists()]
        self._remove([n for n in dead if n in names], [n for n in dead if n in links])

    def _remove(self, names: Sequence[str], links: Sequence[str]) -> None:
        with self._net.IPRoute() as here:
            for link in links:
                for index in here.link_lookup(ifname=link):
                    with suppress(self._net.NetlinkError):
                        here.link("del", index=index)
        for name in names:
            with suppress(OSError):
                self._net.netns.remove(name)

    def address(self, host: int) -> str:
        return f"10.77.0.{10 + host}"

    def rate(self, bits_per_second: float) -> None:
        """What each link carries in each direction."""
        # A burst above 64 KiB leaves large segments whole: splitting them costs the ranks' own cores.
        shape = {"handle": 0x10000, "rate": f"{int(bits_per_second)}bit", "burst": 131072, "latency": "20ms"}
        with self._net.IPRoute() as here:
            for name, port in zip(self.names, self.ports, strict=True):
                here.tc("replace", "tbf", here.link_lookup(ifname=port)[0], **shape)
                with self._net.NetNS(name) as there:
                    there.tc("replace", "tbf", there.link_lookup(ifname="wire")[0], **shape)

    def plug(self, host: int, *, up: bool) -> None:
        """Cut a host's link, or bring it back; the host's own interface stays up, as behind a switch that fails."""
        with self._net.IPRoute() as here:
            here.link("set", index=here.link_lookup(ifname=self.ports[host])[0], state="up" if up else "down")

    def one_way(self, source: int, target: int, *, lost: bool) -> None:
        """Lose all that `source` sends to `target`; the other way stays open."""
        with self._net.NetNS(self.names[source]) as there:
            wire = there.link_lookup(ifname="wire")[0]
            there.neigh("delete", dst=self.address(target), ifindex=wire) if not lost else there.neigh(
                "replace", dst=self.address(target), lladdr=NOWHERE, ifindex=wire, state=PERMANENT
            )

    def start(
        self, host: int, command: Sequence[object], *, environ: Mapping[str, str] | None = None, **streams: Any
    ) -> "subprocess.Popen[bytes]":
        """Start a command on a host, under a host name of its own."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"host{host}"]
        inside = ["nsenter", f"--net=/var/run/netns/{self.names[host]}", *named, *map(str, command)]
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "wire", **(environ or {})}
        return subprocess.Popen(inside, env=env, stdin=subprocess.DEVNULL, **streams)

    def rank(self, host: int, arguments: Sequence[object], **options: Any) -> "subprocess.Popen[bytes]":
        """Start `python ARGUMENTS` as the one rank of a host; variables tell it where the others are, as Slurm's do."""
        about = {"RANK": host, "WORLD_SIZE": len(self.names), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        job = {**about, "MASTER_ADDR": self.address(0), "MASTER_PORT": PORT}
        environ = {**{name: str(value) for name, value in job.items()}, **options.pop("environ", {})}
        return self.start(host, [sys.executable, *arguments], environ=environ, **options)

    def run(self, arguments: Sequence[object], *, limit_s: float = 900.0) -> None:
        """`python ARGUMENTS` as one rank a host, each with one thread; what all said is shown when one fails."""
        from fullgraph.train.nursery import DEFAULTS

        environ = {**DEFAULTS, **os.environ, "GLOO_SOCKET_IFNAME": "wire", "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryDirectory() as folder:
            logs = [Path(folder) / str(host) for host in range(len(self.names))]
            children = []
            for host, path in enumerate(logs):
                with path.open("w") as log:
                    children.append(self.rank(host, arguments, environ=environ, stdout=log, stderr=log))
            deadline = time.monotonic() + limit_s
            try:
                statuses = [child.wait(max(0.1, deadline - time.monotonic())) for child in children]
            finally:
                for child in children:
                    child.kill()
                    child.wait()
            if any(statuses):
                said = "\n".join(path.read_text()[-3000:] for path in logs)
                raise RuntimeError(f"ranks exited with {statuses}:\n{said}")
