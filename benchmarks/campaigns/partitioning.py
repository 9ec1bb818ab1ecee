"""The cost of partitioners, and the quality of their partitions: time and memory of `fullgraph partition`, edges cut,
halo rows.

    .venv/bin/python benchmarks/campaign.py partitioning --nodes 1000000 4000000 16000000 --methods fennel metis
    python benchmarks/campaign.py partitioning --graphs demo DATA/cora.npz --methods metis fennel random --parts 4

--nodes: block models of that many nodes with ten arcs per node, written to files beside the results. A command reads,
partitions and writes. Peak memory includes pages of mapped files, which the system takes back when it needs them;
"held" memory does not. A method that refuses a graph is shown with its reason. Every figure is appended to the file of
--results as it comes, and is not measured again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from campaign import complete
from common import ROOT, run, seconds, show, size

COLUMNS = ["graph", "method", "time", "processor", "peak memory", "of it held", "edges cut", "halo rows", "imbalance"]
TICK = 0.05
MAKE = "import sys, fullgraph as fg; fg.save_npz(fg.load(sys.argv[1]), sys.argv[2])"


def watched(command: list[str]) -> tuple[int, dict[str, Any], str]:
    """Run a command to its end; return its exit status, its cost and its output."""
    start, held = time.perf_counter(), 0
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            held = max(held, anonymous(child.pid))
            time.sleep(TICK)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode(errors="replace")
    took = {
        "seconds": time.perf_counter() - start,
        "processor_s": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
        "held_bytes": held,
    }
    return child.returncode, took, said


def anonymous(pid: int) -> int:
    """Memory of a process that is not part of a mapped file."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:"))) * 1024
    return 0


class Trial(NamedTuple):
    graph: str
    method: str
    parts: int
    source: str  # a source that `fullgraph partition` takes, or a block model that is written to a file first

    @property
    def command(self) -> str:
        return f"{self.graph} {self.method} {self.parts}"


class Cost(NamedTuple):
    """The cost of one `fullgraph partition`."""

    command: str
    seconds: float
    processor_s: float
    peak_bytes: int
    held_bytes: int
    refused: str = ""  # the reason of a refusal; otherwise the results follow:
    nodes: int = 0
    arcs: int = 0
    edge_cut: int = 0
    halo_rows: int = 0
    edge_imbalance: float = 0.0

    @classmethod
    def read(cls, line: dict[str, Any]) -> "Cost":
        return cls(**line)

    @property
    def told(self) -> str:
        return self.refused or f"{self.edge_cut / max(1, self.arcs):.3f} of edges cut"


def measure(trial: Trial, files: Path) -> Cost:
    """Run one `fullgraph partition`."""
    path = block_model(trial.source, files) if trial.source.startswith("sbm:") else trial.source
    with tempfile.TemporaryDirectory(prefix="fullgraph-") as folder:
        out = Path(folder) / "shards"
        name, *pairs = trial.method.split(",")
        flags = ["--parts", str(trial.parts), "--partitioner", name, *(f"-p{pair}" for pair in pairs)]
        line = [sys.executable, "-m", "fullgraph", "partition", path, *flags, "--out", str(out)]
        status, took, said = watched(line)
        if status == 2:
            return Cost(trial.command, **took, refused=said.strip().splitlines()[-1])
        if status != 0:
            raise SystemExit(f"exited with {status}: {said[-2000:]}")
        manifest = json.loads((out / "manifest.json").read_text())
    figures = {name: manifest["figures"][name] for name in ("edge_cut", "halo_rows", "edge_imbalance")}
    graph = manifest["graph"]
    return Cost(trial.command, **took, nodes=graph["nodes"], arcs=graph["arcs"], **figures)


def block_model(source: str, files: Path) -> str:
    """The file of a block model; created if it does not exist."""
    path = files / f"{source.replace(':', '-').replace(',', '-')}.npz"
    if not path.exists():
        files.mkdir(parents=True, exist_ok=True)
        run(["-c", MAKE, source, path])
    return str(path)


def row(trial: Trial, found: Cost) -> tuple[str, ...]:
    cost = (seconds(found.seconds), seconds(found.processor_s))
    if found.refused:
        return trial.graph, trial.method, *cost, found.refused, "", "", "", ""
    cut, halo = found.edge_cut / max(1, found.arcs), found.halo_rows / found.nodes
    memory = (size(found.peak_bytes), size(found.held_bytes))
    quality = (f"{100 * cut:.1f} %", f"{halo:.2f} a node", f"{found.edge_imbalance:.2f}")
    return trial.graph, trial.method, *cost, *memory, *quality


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=[], help="what `fullgraph partition` accepts")
    parser.add_argument("--nodes", nargs="*", type=int, default=[], help="sizes of block models")
    parser.add_argument("--features", type=int, default=8, help="of block models")
    methods = ["metis", "fennel", "random", "contiguous"]
    parser.add_argument("--methods", nargs="+", default=methods, help="names, and options: fennel,clusters=0")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "partitioning.jsonl")
    parser.set_defaults(jobs=1, limit_s=inf, report=False)
    options = parser.parse_args()
    sources = {Path(graph).name.removesuffix(".npz"): graph for graph in options.graphs}
    model = "edges={edges},features={features},classes=16,p_in=0.9,seed=0"
    for nodes in options.nodes:
        sources[f"sbm {nodes:,}"] = f"sbm:nodes={nodes},{model.format(edges=5 * nodes, features=options.features)}"
    pairs = product(sources.items(), options.methods)
    trials = [Trial(graph, method, options.parts, source) for (graph, source), method in pairs]

    def table(done: dict[Trial, Cost]) -> None:
        show(f"fullgraph partition --parts {options.parts}", COLUMNS, [row(*pair) for pair in done.items()])

    complete(trials, partial(measure, files=options.results.parent / "graphs"), options, table, Cost)
