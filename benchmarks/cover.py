"""Halo rows before and after the minimum vertex cover, for real graphs; what crosses between hosts; and epochs of each.

    PYTHONPATH=src python benchmarks/cover.py [--graphs ../shared/data/cora.npz] [--parts 2 4] [--methods metis random]
    PYTHONPATH=src python benchmarks/cover.py --hosts 2 --parts 4 8 [--methods metis]
    PYTHONPATH=src python benchmarks/cover.py --time --graphs sbm:nodes=40000,features=64 --parts 2
    sudo env PYTHONPATH=src python benchmarks/cover.py --time --hosts 2 --rate 200mbit --graphs tolokers.npz --parts 4

The first table counts rows; nothing is trained. `after` counts rows and sums of rows of one exchange of all rows, as
GCN, the mean and the sum send them; `auction` is the count if large pairs of ranks were covered in linear time. With
--hosts it counts the rows that cross between hosts, without and with sums: `alone` if every rank asks for its own rows,
`by host` if a row crosses once for all ranks of a host, and a sum has the terms of all.

--time: the ranks of a launch hold the same model several times, and take turns at every epoch: all halo rows; rows and
sums; and these by host, if there are several hosts of several ranks. Ratios are of medians; bytes are the payload of an
epoch. With --hosts the hosts are emulated (as root), `link` is what their interfaces sent, with headers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import torch
from common import ROOT, show, size

from fullgraph import nn, recipes
from fullgraph.axes import PARTITIONERS
from fullgraph.data import load
from fullgraph.lab.bench.hosts import PORT, Hosts, sent
from fullgraph.lab.cost.cluster import bits_of
from fullgraph.partition import cut_parts
from fullgraph.partition.cover import EXACT_EDGES, count_between_hosts, covered_rows
from fullgraph.partition.layout import halo_rows
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_processes
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Key, Transport, join
from fullgraph.transport.gather import barrier

WARM = 3  # epochs
MODELS = {"gcn": nn.GCN(layers=3, hidden=128), "sage": nn.GraphSAGE(layers=3, hidden=128)}
WAYS = {
    "rows": recipes.vanilla(cover=False, by_host=False),
    "sums": recipes.vanilla(by_host=False),
    "sums by host": recipes.vanilla(),
}
Epochs = dict[str, list[tuple[float, ...]]]  # by way: seconds, processor seconds, bytes and bytes on the link


def epochs(transport: Transport, graph: str, method: str, name: str, count: int, ways: list[str]) -> Epochs:
    """Measure every epoch on this rank, in each way."""
    whole = load(graph)
    part = cut_parts(whole, PARTITIONERS.make(method).assign(whole, transport.size, seed=0), transport.rank)
    trainers: dict[str, Trainer] = {}
    found: Epochs = {way: [] for way in ways}
    for way in ways:
        run = Run(model=MODELS[name], strategy=WAYS[way], train=TrainConfig(epochs=count))
        trainers[way] = build_trainer(run, part, transport.fork())
    for step in range(count + WARM):
        for way, trainer in sorted(trainers.items(), reverse=bool(step % 2)):
            barrier(transport, Key(f"turn {way}", step))
            link, start, work = sent()[0], time.perf_counter(), time.process_time()
            record = trainer.train_step()[1]
            barrier(transport, Key(f"end {way}", step))
            ended = time.perf_counter() - start, time.process_time() - work, float(record.halo_bytes), sent()[0] - link
            found[way] += [ended] if step >= WARM else []
    return found


def on_hosts(hosts: int, rate: str, ranks: int, *job: object) -> list[Epochs]:
    """The same on emulated hosts of equally many ranks; by rank."""
    with tempfile.TemporaryDirectory() as folder, Hosts(hosts) as made:
        made.rate(bits_of(rate) or 200e6)
        started = []
        for rank in range(ranks):
            about = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
            address = {"MASTER_ADDR": made.address(0), "MASTER_PORT": PORT}
            environ = {name: str(value) for name, value in {**about, **address}.items()}
            command = [sys.executable, __file__, "--rank-of", json.dumps(job), Path(folder, str(rank))]
            started.append(made.start(rank * hosts // ranks, command, environ=environ, stderr=subprocess.PIPE))
        for process in started:
            error = process.communicate(timeout=3000)[1]
            if process.returncode:
                raise SystemExit(error.decode()[-3000:])
        return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(ranks)]


def as_rank(job: str, path: str) -> None:
    """Do one rank's part of a job on emulated hosts."""
    torch.set_num_threads(1)
    transport = join(timeout=600)
    Path(path).write_text(json.dumps(epochs(transport, *json.loads(job))))
    transport.close()


def timed(options: argparse.Namespace) -> None:
    rows = []
    for graph, method, ranks, name in product(options.graphs, options.methods, options.parts, options.models):
        several = 1 < options.hosts < ranks
        ways, job = list(WAYS)[: 3 if several else 2], (str(graph), method, name, options.epochs)
        if options.hosts > 1:
            of_ranks = on_hosts(options.hosts, options.rate, ranks, *job, ways)
        else:
            of_ranks = run_processes(ranks, epochs, *job, ways, timeout=1800)
        firsts = [host * ranks // options.hosts for host in range(options.hosts)]  # the ranks of a host share its link
        base = None
        for way in ways:
            steps = list(zip(*(of[way] for of in of_ranks), strict=True))
            times = statistics.median(max(rank[0] for rank in step) for step in steps)
            work = statistics.median(sum(rank[1] for rank in step) for step in steps)
            link = statistics.median(sum(step[rank][3] for rank in firsts) for step in steps)
            base = base or (times, work)
            rows.append((
                Path(graph).stem, method, ranks, name, way, f"{1e3 * times:.0f}", f"{times / base[0]:.3f}",
                f"{1e3 * work:.0f}", f"{work / base[1]:.3f}", size(sum(rank[2] for rank in steps[-1])), size(link),
            ))  # fmt: skip
    columns = ["graph", "cut", "ranks", "model", "sends", "ms", "ratio", "CPU ms", "ratio", "bytes", "link"]
    where = f"{options.hosts} hosts at {options.rate}" if options.hosts > 1 else "1 host"
    show(f"Median epoch on {where}; processor time is of all ranks ({os.cpu_count()} cores)", columns, rows)


def between(options: argparse.Namespace) -> None:
    rows, saved = [], []
    for path, method, parts in product(options.graphs, options.methods, options.parts):
        graph = load(str(path))
        assignment = PARTITIONERS.make(method).assign(graph, parts, seed=0)
        counts = count_between_hosts(graph, assignment, parts // options.hosts)
        share = 1 - counts.covered / counts.covered_alone if counts.covered_alone else 0.0
        saved.append(share)
        found = (counts.rows_alone, counts.rows, counts.covered_alone, counts.covered)
        where = f"{options.hosts} x {parts // options.hosts}"
        rows.append((Path(path).stem, method, where, *(f"{count:,}" for count in found), f"{share:.1%}"))
    columns = ["graph", "cut", "hosts", "rows alone", "by host", "with sums, alone", "by host", "saved"]
    show("Rows of one exchange between hosts", columns, rows)
    print(f"{statistics.mean(saved):.1%} fewer in the mean of {len(saved)} cells")


def counted(options: argparse.Namespace) -> None:
    rows, saved = [], {method: [] for method in options.methods}
    for path in options.graphs:
        graph = load(str(path))
        for method in options.methods:
            for parts in options.parts:
                assignment = PARTITIONERS.make(method).assign(graph, parts, seed=0)
                before = halo_rows(graph, assignment)
                exact, quick = (sum(covered_rows(graph, assignment, exact_edges=edges)) for edges in (EXACT_EDGES, 0))
                share = 1 - exact / before if before else 0.0
                saved[method].append(share)
                rows.append((Path(path).stem, method, parts, f"{before:,}", f"{exact:,}", f"{share:.1%}", f"{quick:,}"))
    show("Rows of one exchange", ["graph", "cut", "parts", "halo rows", "after", "saved", "auction"], rows)
    for method, shares in saved.items():
        print(f"{method}: {statistics.mean(shares):.1%} fewer rows in the mean of {len(shares)} cells")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--graphs", nargs="+", default=sorted((ROOT.parent / "shared" / "data").glob("*.npz")))
parser.add_argument("--parts", nargs="+", type=int, default=[2, 4, 8])
parser.add_argument("--methods", nargs="+", default=["metis", "fennel", "random"])
parser.add_argument("--models", nargs="+", default=list(MODELS))
parser.add_argument("--hosts", type=int, default=1)
parser.add_argument("--rate", default="200mbit")
parser.add_argument("--time", action="store_true")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--rank-of", nargs=2, help=argparse.SUPPRESS)

if __name__ == "__main__":
    options = parser.parse_args()
    if options.rank_of:
        as_rank(*options.rank_of)
    elif options.time:
        timed(options)
    else:
        (between if options.hosts > 1 else counted)(options)
