"""The cost and quality of partitioners: time and memory of `fullgraph partition`, edges between parts, halo rows.

    .venv/bin/python benchmarks/partitioning.py --nodes 1000000 4000000 16000000 --methods fennel metis
    .venv/bin/python benchmarks/partitioning.py --graphs demo DATA/cora.npz --methods metis fennel random --parts 4

--nodes: block models of that many nodes with ten edges per node, written to files first. A command reads, partitions
and writes. Peak memory includes pages of mapped files, which the system can reclaim; held memory does not. If a method
refuses a graph, the table shows the reason. Every figure is appended to the file of --results, and is not measured
again.
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
from pathlib import Path
from typing import Any

from common import ROOT, run, seconds, show, size

COLUMNS = ["graph", "method", "time", "processor", "peak memory", "of it held", "arcs cut", "halo rows", "imbalance"]
TICK = 0.05
MAKE = "import sys, fullgraph as fg; fg.save_npz(fg.load(sys.argv[1]), sys.argv[2])"


def watched(command: list[str]) -> tuple[dict[str, Any], str]:
    """Run a command to its end; return its cost and its output."""
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
        "status": child.returncode,
        "seconds": time.perf_counter() - start,
        "processor_s": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
        "held_bytes": held,
    }
    return took, said


def anonymous(pid: int) -> int:
    """Return the memory of a process that is not backed by files."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:"))) * 1024
    return 0


def measure(graph: str, method: str, parts: int, path: str, folder: Path) -> dict[str, Any]:
    """Run one `fullgraph partition`."""
    out = folder / "shards"
    name, *pairs = method.split(",")
    flags = ["--parts", str(parts), "--partitioner", name, *(f"-p{pair}" for pair in pairs), "--out", str(out)]
    took, said = watched([sys.executable, "-m", "fullgraph", "partition", path, *flags])
    record: dict[str, Any] = {"graph": graph, "method": method, "parts": parts, **took}
    if took["status"] == 2:
        return record | {"refused": said.strip().splitlines()[-1]}
    if took["status"] != 0:
        raise SystemExit(f"{graph}, {method}: exited with {took['status']}:\n{said[-2000:]}")
    manifest = json.loads((out / "manifest.json").read_text())
    figures = {name: manifest["figures"][name] for name in ("edge_cut", "halo_rows", "edge_imbalance")}
    return record | {"nodes": manifest["graph"]["nodes"], "arcs": manifest["graph"]["arcs"]} | figures


def block_model(nodes: int, features: int, folder: Path) -> str:
    """Return the file of a block model, created if it is missing."""
    path = folder / f"sbm-{nodes}.npz"
    if not path.exists():
        run(["-c", MAKE, f"sbm:nodes={nodes},edges={5 * nodes},features={features},classes=16,p_in=0.9,seed=0", path])
    return str(path)


def row(record: dict[str, Any]) -> tuple[str, ...]:
    cost = (seconds(record["seconds"]), seconds(record["processor_s"]))
    if "refused" in record:
        return record["graph"], record["method"], *cost, record["refused"], "", "", "", ""
    cut, halo = record["edge_cut"] / max(1, record["arcs"]), record["halo_rows"] / record["nodes"]
    memory = (size(record["peak_bytes"]), size(record["held_bytes"]))
    quality = (f"{100 * cut:.1f} %", f"{halo:.2f} per node", f"{record['edge_imbalance']:.2f}")
    return record["graph"], record["method"], *cost, *memory, *quality


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=[], help="what `fullgraph partition` accepts")
    parser.add_argument("--nodes", nargs="*", type=int, default=[], help="sizes of block models")
    parser.add_argument("--features", type=int, default=8, help="of block models")
    methods = ["metis", "fennel", "random", "contiguous"]
    parser.add_argument("--methods", nargs="+", default=methods, help="names with options: fennel,clusters=0")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "partitioning.jsonl")
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    known = {(r["graph"], r["method"], r["parts"]): r for r in map(json.loads, lines)}
    rows = []
    with tempfile.TemporaryDirectory(prefix="fullgraph-") as name:
        folder = Path(name)
        paths = {Path(graph).name.removesuffix(".npz"): partial(str, graph) for graph in options.graphs}
        paths |= {f"sbm {n:,}": partial(block_model, n, options.features, folder) for n in options.nodes}
        for key in product(paths, options.methods, [options.parts]):
            if key not in known:
                known[key] = measure(*key, paths[key[0]](), folder)
                with options.results.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
            rows.append(row(known[key]))
            print(*rows[-1], sep="  ", flush=True)
    show(f"fullgraph partition --parts {options.parts}", COLUMNS, rows)


if __name__ == "__main__":
    main()
