"""Two hosts get different requests or have different files; and torchrun restarts ranks after one was killed.

Hosts that differ are refused on both sides, in a line that names the difference. Restarted ranks meet again, and
continue the run that their job began and no other run.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from faults.command import Command, difference, epochs_done, send, small_graph, wait_for
from faults.trials import Campaign
from fullgraph.lab.bench.hosts import Hosts

SLOW = """
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Slow:
    def __call__(self, record):
        time.sleep(0.1)
"""
SMALL = ["--hidden", 8, "--layers", 2, "--threads", 1, "--timeout", 20]
NET = """
import torch
from torch_geometric.nn import GCNConv


class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.one, self.two = GCNConv(in_channels, {width}), GCNConv({width}, out_channels)

    def forward(self, x, edge_index):
        return self.two(self.one(x, edge_index).relu(), edge_index)
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def on_two_hosts(one: list[object], other: list[object], folders: tuple[Path, Path]) -> Iterator[list[Command]]:
    """Run the same job with one command and one folder per host; variables give each its rank, as Slurm does."""
    port = free_port()
    with ExitStack() as stack:
        commands = []
        for rank, (arguments, folder) in enumerate(zip((one, other), folders, strict=True)):
            job = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
            env = {**{name: str(value) for name, value in job.items()}, "MASTER_ADDR": "127.0.0.1"}
            commands.append(stack.enter_context(Command(*arguments, cwd=folder, env={**env, **LOOPBACK})))
        yield commands


LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


def train(*more: object) -> list[object]:
    return ["train", "g.npz", "--epochs", 6, "--checkpoint-every", 2, "--out", "run", *SMALL, *more]


def rates(here: Path, there: Path) -> tuple[list[object], list[object], str]:
    return train("--lr", 0.01), train("--lr", 0.5), "train.optimizer.lr|train.lr"


def seeds(here: Path, there: Path) -> tuple[list[object], list[object], str]:
    return train("--seed", 1), train("--seed", 2), "train.seed"


def resumes(here: Path, there: Path) -> tuple[list[object], list[object], str]:
    """Let the other host resume an older run in its own folder."""
    with Command("train", "g.npz", "--epochs", 4, "--parts", 2, "--out", "run", *SMALL, cwd=there) as before:
        assert before.finish().code == 0, before.err
    return train(), ["train", "--resume", "run"], "the command"


def copies(here: Path, there: Path) -> tuple[list[object], list[object], str]:
    """Let each host resume its own run; both runs have the same name."""
    for folder, seed in ((here, 1), (there, 2)):
        with Command(*train("--seed", seed, "--parts", 2), cwd=folder) as before:
            assert before.finish().code == 0, before.err
    again = ["train", "--resume", "run", "--epochs", 9]
    return again, again, "id"


def code(here: Path, there: Path) -> tuple[list[object], list[object], str]:
    for folder, width in ((here, 8), (there, 9)):
        (folder / "net.py").write_text(NET.format(width=width))
    asked = train("--model", "net.py:Net")
    del asked[asked.index("--hidden") : asked.index("--threads")]
    return asked, asked, "the content of net.py"


def apart(here: Path, there: Path) -> tuple[list[object], list[object], str]:
    """Give each host a different folder for the run."""
    return train(), train(), "run/config.json"


DIFFERENCES: dict[str, Callable[[Path, Path], tuple[list[object], list[object], str]]] = {
    "rates": rates, "seeds": seeds, "resumes": resumes, "copies": copies, "code": code, "apart": apart,
}  # fmt: skip


def refused(kind: str, scratch: Path) -> str:
    """Check that both hosts are refused, with the difference named."""
    here, there = (scratch / name for name in ("one", "other"))
    for folder in (here, there):
        folder.mkdir()
        small_graph(folder)
    one, other, what = DIFFERENCES[kind](here, there)
    with on_two_hosts(one, other, (here, there)) as commands:
        for command in commands:
            assert command.finish().code == 2, f"{kind}: exit status {command.code}: {command.err}"
            lines = command.complaints
            assert len(lines) == 1, f"{kind}: {command.err}"
            assert "rank 1 on " in lines[0], lines[0]
            assert any(name in lines[0] for name in what.split("|")), f"{kind}: {lines[0]}"
    return "refused"


def torchrun(
    cwd: Path, port: int, node: int, nodes: int, arguments: list[object], restarts: int
) -> "subprocess.Popen[bytes]":
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
    each = 2 // nodes
    line = [
        "-m",
        "torch.distributed.run",
        "--nnodes",
        nodes,
        "--nproc-per-node",
        each,
        "--max-restarts",
        restarts,
        *where,
    ]
    with (cwd / f"err{node}").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, *map(str, line), "-m", "fullgraph", *map(str, arguments)], cwd=cwd, stderr=err,
            stdout=subprocess.DEVNULL, env={**os.environ, **LOOPBACK, "TMPDIR": str(cwd), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def workers_of(agent: int) -> list[int]:
    """Return the processes that a torchrun has started."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == agent:
            found.append(int(pid))
    return found


def started_again(number: int, scratch: Path, kills: int = 1) -> str:
    """Kill a rank of two torchruns; all ranks must restart, meet, and end with the same result."""
    random = randomness.Random(number)
    small_graph(scratch)
    epochs = ["train", "g.npz", "--epochs", 60, "--eval-every", 1, "--checkpoint-every", 1, *SMALL]
    with Command(*epochs, "--parts", 2, "--out", "whole", cwd=scratch) as whole:
        assert whole.finish().code == 0, whole.err
    port, run = free_port(), scratch / "run"
    agents = [torchrun(scratch, port, node, 2, [*epochs, "--out", "run"], 3) for node in range(2)]
    said = lambda: "\n".join((scratch / f"err{node}").read_text()[-3000:] for node in range(2))  # noqa: E731
    try:
        for kill in range(kills):
            at = epochs_done(run) + random.randint(2, 8)
            wait_for(lambda at=at: epochs_done(run) >= at or agents[0].poll() is not None, f"epoch {at}: {said()}")
            victims = workers_of(agents[random.randrange(2)].pid)
            kill += sum(send(pid, signal.SIGKILL) for pid in victims)
        deadline = time.monotonic() + 200
        for agent in agents:
            agent.wait(max(1.0, deadline - time.monotonic()))
            assert agent.returncode == 0, said()
    finally:
        for agent in agents:
            _end(agent)
    differs = difference(scratch / "whole", run)
    assert not differs, f"started again: other {differs.names}"
    return "met again"


def another_run(scratch: Path) -> str:
    """Put a run of another model into --out: torchrun must restart its ranks, and be refused each time."""
    small_graph(scratch)
    with Command(
        "train", "g.npz", "--epochs", 4, "--parts", 2, "--model", "sage", "--out", "run", *SMALL, cwd=scratch
    ) as old:
        assert old.finish().code == 0, old.err
    before = {path: path.read_bytes() for path in (scratch / "run").rglob("*.json*")}
    asked = ["train", "g.npz", "--epochs", 6, "--model", "gcn", "--out", "run", *SMALL]
    agent = torchrun(scratch, free_port(), 0, 1, asked, 1)
    try:
        assert agent.wait(120) != 0, "another run was taken for the one that was asked for"
    finally:
        agent.kill()
        agent.wait()
    assert "holds a run already" in (scratch / "err0").read_text()
    assert before == {path: path.read_bytes() for path in (scratch / "run").rglob("*.json*")}
    return "another run stayed"


def three_hosts(scratch: Path, *, lost: bool) -> str:
    """Run torchrun on three emulated hosts. If one is lost, the other two continue the run on two ranks."""
    small_graph(scratch)
    (scratch / "slow.py").write_text(SLOW)
    train = ["train", "g.npz", "--epochs", 40, "--dtype", "float64", "--checkpoint-every", 4, *SMALL]
    with Command(*train, "--parts", 3, "--out", "whole", cwd=scratch) as whole:
        assert whole.finish().code == 0, whole.err
    run = scratch / "run"
    slow = ["--out", "run", "--callback", "slow.py:Slow"] if lost else ["--out", "run"]
    said = lambda: "\n".join((scratch / f"err{host}").read_text()[-3000:] for host in range(3))  # noqa: E731
    with Hosts(3) as hosts, ExitStack() as stack:
        agents = []
        for host in range(3):
            # these hosts' own names are no addresses
            where = ["--rdzv-endpoint", f"{hosts.address(0)}:29500", "--local-addr", hosts.address(host)]
            where += ["--rdzv-conf", f"is_host={host == 0}"]
            line = ["-m", "torch.distributed.run", "--nnodes", "2:3" if lost else 3, "--nproc-per-node", 1, *where]
            line += [
                "--max-restarts",
                3,
                "--rdzv-backend",
                "c10d",
                "--rdzv-id",
                "job",
                "-m",
                "fullgraph",
                *train,
                *slow,
            ]
            err = stack.enter_context((scratch / f"err{host}").open("wb"))
            environ = {"TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}
            streams = {"stdout": subprocess.DEVNULL, "stderr": err, "cwd": scratch}
            agents.append(hosts.start(host, [sys.executable, *line], environ=environ, **streams))
            stack.callback(_end, agents[-1])
        if lost:
            wait_for(lambda: epochs_done(run) >= 6 or agents[0].poll() is not None, f"epoch 6: {said()}")
            hosts.plug(2, up=False)
            _end(agents.pop())
        deadline = time.monotonic() + 240
        for agent in agents:
            agent.wait(max(1.0, deadline - time.monotonic()))
            assert agent.returncode == 0, said()
    tables = [np.load(folder / "predictions" / "probabilities.npy") for folder in (scratch / "whole", run)]
    np.testing.assert_allclose(*tables, atol=1e-9)
    assert lost == ("2 ranks continue the run of 3" in said())
    return "two of three hosts went on" if lost else "three hosts met"


def _end(agent: "subprocess.Popen[bytes]") -> None:
    """End a torchrun and its ranks, if it still runs."""
    for pid in workers_of(agent.pid) if agent.poll() is None else []:
        send(pid, signal.SIGKILL)
    agent.kill()
    agent.wait()


def trial(number: int, shared: Path) -> str:
    scratch = Path(tempfile.mkdtemp(dir=shared))
    try:
        kinds = [*DIFFERENCES, "again", "again", "another", "three", "lost"]
        kind = kinds[number % len(kinds)]
        if kind in ("three", "lost"):
            return three_hosts(scratch, lost=kind == "lost")
        if kind == "another":
            return another_run(scratch)
        return started_again(number, scratch, 1 + number % 2) if kind == "again" else refused(kind, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


CAMPAIGN = Campaign(trial, 44, "hosts that differ are refused in words; ranks that are started again go on", jobs=1)
