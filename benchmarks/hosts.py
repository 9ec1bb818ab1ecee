"""Emulated hosts: network namespaces joined by a bridge, each behind a link of a given rate. Linux, as root."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

PORT = 29400


def _do(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


class Hosts:
    """`count` hosts, each behind one link; `with Hosts(2) as hosts: hosts.rate(200e6); hosts.run(...)`."""

    def __init__(self, count: int) -> None:
        if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
            raise SystemExit("emulated hosts need root and iproute2 (ip, tc)")
        self.names = [f"fg{os.getpid()}h{i}" for i in range(count)]
        self.bridge = f"fgb{os.getpid()}"

    def __enter__(self) -> "Hosts":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
        _do(f"ip link add {self.bridge} type bridge")
        _do(f"ip link set {self.bridge} up")
        for i, name in enumerate(self.names):
            _do(f"ip netns add {name}")
            _do(f"ip link add {self._port(i)} type veth peer name wire netns {name}")
            _do(f"ip link set {self._port(i)} master {self.bridge} up")
            _do(f"ip -n {name} addr add {self.address(i)}/24 dev wire")
            _do(f"ip -n {name} link set wire up")
            _do(f"ip -n {name} link set lo up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], check=False, capture_output=True)

    def address(self, host: int) -> str:
        return f"10.77.0.{10 + host}"

    def _port(self, host: int) -> str:
        return f"fgp{os.getpid()}h{host}"

    def rate(self, bits_per_second: float) -> None:
        """What each link carries in each direction."""
        # A burst above 64 KiB leaves large segments whole: splitting them costs the ranks' own cores here.
        shape = f"root tbf rate {int(bits_per_second)}bit burst 128kb latency 20ms"
        for i, name in enumerate(self.names):
            _do(f"tc qdisc replace dev {self._port(i)} {shape}")
            _do(f"tc -n {name} qdisc replace dev wire {shape}")

    def run(self, arguments: Sequence[object], *, limit_s: float = 900.0) -> None:
        """`torchrun ... ARGUMENTS` with one rank a host; the first host's output is shown when one fails."""
        from fullgraph.train.launch import DEFAULTS

        environ = {**DEFAULTS, **os.environ, "GLOO_SOCKET_IFNAME": "wire", "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryDirectory() as folder:
            children = []
            for i, name in enumerate(self.names):
                command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"]
                command += ["--nnodes", str(len(self.names)), "--node-rank", str(i), "--nproc-per-node", "1"]
                command += ["--master-addr", self.address(0), "--master-port", str(PORT), *map(str, arguments)]
                with (Path(folder) / str(i)).open("w") as log:
                    children.append(subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT))
            try:
                failed = [child.wait(limit_s) for child in children]
            finally:
                for child in children:
                    child.terminate()
            if any(failed):
                logs = "\n".join((Path(folder) / str(i)).read_text()[-3000:] for i in range(len(children)))
                raise SystemExit(f"ranks exited with {failed}:\n{logs}")
