"""A Slurm of one's own: the controller and its nodes are processes of this machine, with their own configuration, ports
and folder. It needs root and the package slurm-wlm.
"""

import os
import random as randomness
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from faults.command import wait_for

NULL_DEVICE = os.makedev(1, 3)
CONFIG = """
ClusterName={cluster}
SlurmctldHost={machine}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/controller.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/node-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
FirstJobId={first_job}
KillWait=30
GresTypes=gpu
"""
NODE = "NodeName={name} NodeHostname={machine} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000 Gres=gpu:2\n"
PARTITION = "PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4\n"


def lacks() -> str:
    """What this machine lacks to run a Slurm of its own; empty: nothing."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    missing = [name for name in ("slurmctld", "slurmd", "srun", "sbatch") if not shutil.which(name)]
    return f"needs Slurm's {', '.join(missing)} (apt-get install slurm-wlm)" if missing else ""


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


class Cluster:
    """A controller and nodes with 4 cores and 2 made-up GPUs each; `with Cluster(folder) as slurm: ...`."""

    def __init__(self, folder: Path, nodes: tuple[str, ...] = ("n1", "n2")) -> None:
        self.folder, self.nodes = folder, nodes
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # Nodes' names are not names of hosts here, so that a job cannot find its first node by name.
        programs = f"{folder}/bin:{os.environ['PATH']}"
        self.environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": programs}
        self.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

    def __enter__(self) -> "Cluster":
        machine, (port, *ports) = os.uname().nodename.split(".")[0], free_ports(1 + len(self.nodes))
        for name in ("state", "bin", "gpus"):
            (self.folder / name).mkdir(parents=True)
        about = {"machine": machine, "folder": self.folder, "port": port, "cluster": f"fg{os.getpid()}"}
        text = CONFIG.format(**about, first_job=randomness.randrange(1, 20000))  # a job's number gives its port
        text += "".join(NODE.format(name=n, machine=machine, port=p) for n, p in zip(self.nodes, ports, strict=True))
        (self.folder / "slurm.conf").write_text(text + PARTITION.format(names=",".join(self.nodes)))
        gpus = [(node, index) for node in self.nodes for index in range(2)]
        for number, _ in enumerate(gpus):
            os.mknod(self.folder / "gpus" / f"nvidia{number}", 0o20666, NULL_DEVICE)
        lines = [f"NodeName={n} Name=gpu File={self.folder}/gpus/nvidia{i}\n" for i, (n, _) in enumerate(gpus)]
        (self.folder / "gres.conf").write_text("".join(lines))
        program = self.folder / "bin" / "fullgraph"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fullgraph "$@"\n')
        program.chmod(0o755)
        try:
            self._start("controller", "slurmctld", "-D", "-i")
            for node in self.nodes:
                self._start(node, "slurmd", "-D", "-N", node)
            idle = lambda: self.run("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * len(self.nodes)  # noqa: E731
            wait_for(idle, "the nodes did not come up", 30)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def tasks(self, job: int, node: str = "") -> dict[int, int]:
        """The processes of a job's ranks, by rank; only those of one node if it is named."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                about = dict(word.split("=", 1) for word in words if "=" in word)
                of_node = about.get("SLURMD_NODENAME") == node or not node
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if (
                    about.get("SLURM_JOB_ID") == str(job)
                    and of_node
                    and b"fullgraph" in line
                    and "SLURM_PROCID" in about
                ):
                    found.setdefault(int(about["SLURM_PROCID"]), int(pid))
        return found

    def kill_node(self, name: str, job: int) -> None:
        """End a node as a power cut does: its daemon, the helpers that the daemon left running, and its tasks."""
        for pid in self.tasks(job, name).values():
            os.kill(pid, signal.SIGKILL)
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def _end(self) -> None:
        """End all jobs, then the daemons that this object started."""
        for number in self.run("squeue", "-h", "-o", "%A").split():
            self.run("scancel", "--signal=KILL", "--full", number)
            self.run("scancel", number)
        deadline = time.monotonic() + 20
        while self.run("squeue", "-h", "-t", "R,CG,PD").split() and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, *command: object, cwd: Path | None = None) -> str:
        """The output of one of Slurm's commands, or of a program under srun; errors come behind it."""
        done = subprocess.run(
            list(map(str, command)), env=self.environ, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout + done.stderr

    def submit(self, cwd: Path, *arguments: object) -> int:
        """Submit a script; return the job's number."""
        told = self.run("sbatch", "--parsable", *arguments, cwd=cwd)
        assert told.strip().isdigit(), told
        return int(told)

    def about(self, job: object) -> dict[str, str]:
        """The facts that the controller has of a job, by name."""
        words = self.run("scontrol", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_end(self, job: object, state: str, log: Path, seconds: float = 400) -> None:
        """Wait until a job has that state. A job that is requeued has ended in another one for a moment."""
        told = lambda: f"job {job} is {self.about(job).get('JobState')}: {log.read_text()[-3000:]}"  # noqa: E731
        try:
            wait_for(lambda: self.about(job).get("JobState") == state, f"it is not {state}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; {told() if log.exists() else self.about(job)}") from None


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster in a folder with a short path, which is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="fgslurm"))
    try:
        with Cluster(folder) as slurm:
            yield slurm
    finally:
        shutil.rmtree(folder, ignore_errors=True)
