"""How epoch time and memory grow: double one size at a time, and fit a power.

    python benchmarks/campaign.py growth [--only nodes layers] [--turns 3]        # about 15 minutes on 2 cores

An exponent of 1 means growth in proportion. Its interval holds 95 % of the fits to resampled turns. Arcs grow with
nodes at a fixed mean degree; "arcs" alone raises the degree. "ranks" divides one graph into more parts on the same
machine, where an epoch can at best take the same time: the figure is the cost of the division. Memory is that of the
largest rank, minus that of a run on a tiny graph. benchmarks/campaign.py partitioning measures partitioners.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import mean
from typing import NamedTuple

import numpy as np
from common import fullgraph, seconds, show

SIZES: dict[str, list[int]] = {
    "nodes": [25_000, 50_000, 100_000, 200_000],
    "arcs": [500_000, 1_000_000, 2_000_000, 4_000_000],
    "layers": [2, 4, 8, 16],
    "width": [32, 64, 128, 256],
    "ranks": [1, 2, 4, 8],
}
NODES, DEGREE, LAYERS, WIDTH, EPOCHS = 50_000, 20, 3, 64, 12
RESAMPLED = 1000
TINY = 500  # nodes; the memory of a run on them is subtracted from that of other runs


class Figure(NamedTuple):
    epoch_s: float
    peak_bytes: int


def train(
    folder: Path, *, nodes: int = NODES, arcs: int = 0, layers: int = LAYERS, width: int = WIDTH, ranks: int = 1
) -> Figure:
    """Run one training as a user would start it."""
    arcs = arcs or nodes * DEGREE
    graph = f"sbm:nodes={nodes},edges={arcs // 2},features=64,classes=16,p_in=0.9,seed=0"
    out = folder / f"{nodes}-{arcs}-{layers}-{width}-{ranks}-{len(list(folder.iterdir()))}"
    fullgraph(
        "train", graph, "--parts", ranks, "--layers", layers, "--hidden", width, "--norm", "none",
        "--input-dropout", "--epochs", EPOCHS,
        "--eval-every", EPOCHS, "--checkpoint-every", 0, "--threads", 1, "--all-rows", "--no-report", "--out", out,
        threads=1,
    )  # fmt: skip
    result = json.loads((out / "result.json").read_text())
    return Figure(result["epoch_s"], result["peak_memory_bytes"])


def by_size(folder: Path) -> dict[str, Callable[[int], Figure]]:
    return {
        "nodes": lambda value: train(folder, nodes=value),
        "arcs": lambda value: train(folder, arcs=value),
        "layers": lambda value: train(folder, layers=value),
        "width": lambda value: train(folder, width=value),
        "ranks": lambda value: train(folder, ranks=value),
    }


def exponent(sizes: list[int], turns: list[list[float]]) -> tuple[float, float, float]:
    """Return the best power, and the interval of fits to resampled turns."""
    dice, logs = Random(0), np.log(sizes)

    def fit(chosen: list[list[float]]) -> float:
        return float(np.polyfit(logs, np.log([mean(values) for values in chosen]), 1)[0])

    fits = sorted(fit([dice.choices(values, k=len(values)) for values in turns]) for _ in range(RESAMPLED))
    return fit(turns), fits[int(0.025 * RESAMPLED)], fits[int(0.975 * RESAMPLED)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="fullgraph-") as name:
        folder = Path(name)
        base = train(folder, nodes=TINY).peak_bytes
        for what in options.only:
            measure, sizes = by_size(folder)[what], SIZES[what]
            found: list[list[Figure]] = [[] for _ in sizes]
            for _ in range(options.turns):  # sizes take turns, because machines are shared
                for figures, value in zip(found, sizes, strict=True):
                    figures.append(measure(value))
            times = [[figure.epoch_s for figure in figures] for figures in found]
            memory = [[float(max(1, figure.peak_bytes - base)) for figure in figures] for figures in found]
            fits = [exponent(sizes, values) for values in (times, memory)]
            told = [text for best, low, high in fits for text in (f"{best:.2f}", f"{low:.2f} - {high:.2f}")]
            ends = [seconds(mean(times[place])) for place in (0, -1)]
            rows.append((what, f"{sizes[0]:,} - {sizes[-1]:,}", *ends, *told))
            print(rows[-1], flush=True)
    columns = ["what grows", "from - to", "epoch, first", "last", "time ^", "interval", "memory ^", "interval"]
    show("GraphSAGE 3x64, 50,000 nodes, 1M arcs, one thread a rank", columns, rows)
