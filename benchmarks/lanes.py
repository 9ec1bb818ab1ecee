"""Cuts of Fennel in one lane and in several, beside METIS: share of arcs cut, halo rows, balance, processor seconds.

python benchmarks/lanes.py GRAPH... [--parts 8] [--lanes 1 4 16]
"""

from __future__ import annotations

import argparse
import time

from fullgraph.data import load
from fullgraph.partition import Fennel, partition, quality


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--metis", default="metis", help="compare with it; metis-cut is faster")
    given = parser.parse_args()
    print("| graph | edges | partitioner | edges cut | halo rows | edge imbalance | processor s |")
    print("|---|---|---|---|---|---|---|")
    Fennel().assign(load("demo"), 2, seed=0)  # compiles the loops
    for name in given.graphs:
        graph = load(name)
        label = name.rpartition("/")[2].removesuffix(".npz")
        ways = {given.metis: given.metis} | {f"fennel, lanes={lanes}": Fennel(lanes=lanes) for lanes in given.lanes}
        for way, method in ways.items():
            start = time.process_time()
            found = partition(graph, given.parts, method)
            seconds = time.process_time() - start
            figures = quality(graph, found)
            cut = figures.edge_cut / max(1, graph.num_arcs)
            row = f"{cut:.1%} | {figures.halo_rows:,} | {figures.edge_imbalance:.3f} | {seconds:.1f}"
            print(f"| {label} | {graph.num_arcs:,} | {way} | {row} |", flush=True)


if __name__ == "__main__":
    main()
