"""Halo rows before and after the minimum vertex cover, for real graphs; and the time of an epoch with both.

    PYTHONPATH=src python benchmarks/cover.py [--graphs ../shared/data/cora.npz] [--parts 2 4] [--methods metis random]
    PYTHONPATH=src python benchmarks/cover.py --time --graphs sbm:nodes=40000,features=64 --parts 2

The table counts rows; nothing is trained. `after` counts rows and sums of rows of one exchange of all rows, as GCN, the
mean and the sum send them; `auction` is the count if large pairs of ranks were covered in linear time.

--time: the ranks of a launch hold the same model twice, with the cover and without it, and take turns at every epoch.
The ratio is of the medians; bytes are the payload of an epoch.
"""

import argparse
import statistics
import time
from itertools import product
from pathlib import Path

from common import ROOT, show, size

from fullgraph import nn, recipes
from fullgraph.axes import PARTITIONERS
from fullgraph.data import load
from fullgraph.partition import cut_parts
from fullgraph.partition.cover import EXACT_EDGES, covered_rows
from fullgraph.partition.layout import halo_rows
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_processes
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Key, Transport
from fullgraph.transport.gather import barrier

WARM = 3  # epochs
MODELS = {"gcn": nn.GCN(layers=3, hidden=128), "sage": nn.GraphSAGE(layers=3, hidden=128)}


def epochs(transport: Transport, graph: str, method: str, name: str, count: int) -> dict[bool, list[tuple[float, ...]]]:
    """Return seconds, processor seconds and bytes of every epoch on this rank, with the cover and without it."""
    whole = load(graph)
    part = cut_parts(whole, PARTITIONERS.make(method).assign(whole, transport.size, seed=0), transport.rank)
    trainers: dict[bool, Trainer] = {}
    found: dict[bool, list[tuple[float, ...]]] = {True: [], False: []}
    for covers in found:
        run = Run(model=MODELS[name], strategy=recipes.vanilla(cover=covers), train=TrainConfig(epochs=count))
        trainers[covers] = build_trainer(run, part, transport.fork())
    for step in range(count + WARM):
        for covers, trainer in sorted(trainers.items(), reverse=bool(step % 2)):
            barrier(transport, Key(f"turn {covers}", step))
            start, work = time.perf_counter(), time.process_time()
            record = trainer.train_step()[1]
            barrier(transport, Key(f"end {covers}", step))
            ended = time.perf_counter() - start, time.process_time() - work, float(record.halo_bytes)
            found[covers] += [ended] if step >= WARM else []
    return found


def timed(options: argparse.Namespace) -> None:
    rows = []
    for graph, method, ranks, name in product(options.graphs, options.methods, options.parts, MODELS):
        of_ranks = run_processes(ranks, epochs, graph, method, name, options.epochs, timeout=1800)
        both = []
        for covers in (False, True):
            steps = list(zip(*(of[covers] for of in of_ranks), strict=True))
            times = statistics.median(max(rank[0] for rank in step) for step in steps)
            work = statistics.median(sum(rank[1] for rank in step) for step in steps)
            both.append((1e3 * times, 1e3 * work, sum(rank[2] for rank in steps[-1])))
        (time_0, work_0, bytes_0), (time_1, work_1, bytes_1) = both
        rows.append((
            graph, method, ranks, name, f"{time_0:.0f}", f"{time_1:.0f}", f"{time_1 / time_0:.3f}",
            f"{work_0:.0f}", f"{work_1:.0f}", f"{work_1 / work_0:.3f}", size(bytes_0), size(bytes_1),
        ))  # fmt: skip
    columns = ["graph", "cut", "ranks", "model", "ms", "with", "ratio", "CPU ms", "with", "ratio", "bytes", "with"]
    show("Median epoch without and with the cover; processor time is of all ranks", columns, rows)


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
parser.add_argument("--time", action="store_true")
parser.add_argument("--epochs", type=int, default=30)

if __name__ == "__main__":
    options = parser.parse_args()
    (timed if options.time else counted)(options)
