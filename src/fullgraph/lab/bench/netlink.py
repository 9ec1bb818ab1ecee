"""The netlink calls behind emulated hosts, in a separate process: `python netlink.py`, one line of JSON per call.

pyroute2 forks for every namespace that it enters. A process with torch and threads is large and must not be forked
like that; this process imports nothing else.
"""

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMES = re.compile(r"fg(\d+)x\d+[hpb]\d*")
WIRE = "wire"  # a host's end of its link
NOWHERE = "02:00:00:00:00:99"  # an address that no host has
PERMANENT = 0x80  # state of a neighbour that is never asked for again
PATIENCE_S = 60  # for a call with a fork, on a busy machine


class Net:
    """The available calls; every method is one."""

    def __init__(self, pyroute2: Any) -> None:
        self.net = pyroute2

    def build(self, names: list[str], ports: list[str], bridge: str, addresses: list[str]) -> None:
        """Create namespaces, each with an interface `wire` on one bridge."""
        with self.net.IPRoute() as here:
            here.link("add", ifname=bridge, kind="bridge")
            switch = here.link_lookup(ifname=bridge)[0]
            here.link("set", index=switch, state="up")
            for name, port, address in zip(names, ports, addresses, strict=True):
                self.net.netns.create(name)
                here.link("add", ifname=port, kind="veth", peer={"ifname": WIRE, "net_ns_fd": name})
                here.link("set", index=here.link_lookup(ifname=port)[0], master=switch, state="up")
                with self.net.NetNS(name) as there:
                    wire = there.link_lookup(ifname=WIRE)[0]
                    there.addr("add", index=wire, address=address, prefixlen=24)
                    there.link("set", index=wire, state="up")
                    there.link("set", index=there.link_lookup(ifname="lo")[0], state="up")

    def sweep(self) -> None:
        """Remove the hosts of processes that have ended."""
        with self.net.IPRoute() as here:
            links = [dict(link["attrs"])["IFLA_IFNAME"] for link in here.get_links()]
        names = self.net.netns.listnetns()
        dead = [n for n in (*links, *names) if (m := NAMES.fullmatch(n)) and not Path(f"/proc/{m[1]}").exists()]
        self.remove([n for n in dead if n in names], [n for n in dead if n in links])

    def remove(self, names: list[str], links: list[str]) -> None:
        with self.net.IPRoute() as here:
            for link in links:
                for index in here.link_lookup(ifname=link):
                    with suppress(self.net.NetlinkError):
                        here.link("del", index=index)
        for name in names:
            with suppress(OSError):
                self.net.netns.remove(name)

    def rate(self, names: list[str], ports: list[str], bits_per_second: int) -> None:
        # A burst above 64 KiB leaves large segments whole; splitting them would use the ranks' cores.
        shape = {"handle": 0x10000, "rate": f"{bits_per_second}bit", "burst": 131072, "latency": "20ms"}
        with self.net.IPRoute() as here:
            for name, port in zip(names, ports, strict=True):
                here.tc("replace", "tbf", here.link_lookup(ifname=port)[0], **shape)
                with self.net.NetNS(name) as there:
                    there.tc("replace", "tbf", there.link_lookup(ifname=WIRE)[0], **shape)

    def plug(self, port: str, up: bool) -> None:
        with self.net.IPRoute() as here:
            here.link("set", index=here.link_lookup(ifname=port)[0], state="up" if up else "down")

    def one_way(self, name: str, address: str, lost: bool) -> None:
        with self.net.NetNS(name) as there:
            wire = there.link_lookup(ifname=WIRE)[0]
            if lost:
                there.neigh("replace", dst=address, lladdr=NOWHERE, ifindex=wire, state=PERMANENT)
            else:
                there.neigh("delete", dst=address, ifindex=wire)


def main() -> None:
    import pyroute2

    pyroute2.config.default_communicate_timeout = pyroute2.config.default_create_socket_timeout = PATIENCE_S
    net, here = Net(pyroute2), os.getpid()
    for line in sys.stdin:
        call = json.loads(line)
        trouble = ""
        try:
            getattr(net, call.pop("call"))(**call)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        if os.getpid() != here:  # a failed fork must not continue as this process
            os._exit(1)
        sys.stdout.write(json.dumps(trouble) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
