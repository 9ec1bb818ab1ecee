"""Deep models on slow links: a 32-layer GCN on emulated hosts, divided by layers (gnnpipe) or by nodes (vanilla).

    sudo .venv/bin/python benchmarks/campaign.py pipeline [--hosts 2 4] [--share 0.8] [--epochs 4] [--rounds 2]

Cells of `fullgraph bench`. The link rate makes messages the share `share` of vanilla's epoch without overlap. A
stage's work is the processor time of its training thread. gnnpipe's ideal is computation plus bubble: the busiest
stage's work x (K + S - 1) / K for K chunks and S stages, but at least all work divided by the number of cores.
"""

import argparse
import os

from common import bench, seconds, show, size

UNLIMITED = "30gbit"


def strategies(hosts: int) -> dict[str, int]:
    """Return the number of stages by strategy."""
    hybrid = {"gnnpipe-hybrid ways=2": hosts // 2} if hosts > 2 else {}
    return {"vanilla": 1, "gnnpipe": hosts, "gnnpipe codec=half": hosts, **hybrid}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="sbm:nodes=20000,edges=300000,features=64,p_in=0.9,seed=0")
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    rows = []
    for count in options.hosts:
        rows += measure(count, options)
    columns = ["hosts, link", "strategy", "bytes", "epoch", "waiting", "busiest", "ideal", "of ideal", "to vanilla"]
    show(f"{options.graph}, GCN {options.layers}x{options.hidden}, {os.cpu_count()} cores", columns, rows)


def measure(count: int, options: argparse.Namespace) -> list[tuple[str, ...]]:
    model = f"gcn:layers={options.layers},hidden={options.hidden},norm=layer,residual=true,input_dropout=true"
    axes = {"graph": options.graph, "model": model, "ranks": count, "all_rows": True}
    free = bench(**axes, strategy=["vanilla"], rate=UNLIMITED, epochs=2, rounds=1)["vanilla"]
    print(f"{count} hosts, unlimited: vanilla {seconds(free.epoch_s)}", flush=True)
    crossing = free.epoch_s * options.share / (1 - options.share)  # seconds of messages per epoch
    rate = round(8 * free.bytes / count / crossing / 1e6, 1)
    how = {"rate": f"{rate}mbit", "epochs": options.epochs, "rounds": options.rounds}
    found = bench(**axes, strategy=list(strategies(count)), **how)
    rows = []
    for strategy, stages in strategies(count).items():
        cell, ideal = found[strategy], 0.0
        busiest, work = max(cell.rank_thread_s), sum(cell.rank_thread_s)
        if stages > 1:
            chunks = 4 * stages
            ideal = max(busiest * (chunks + stages - 1) / chunks, work / (os.cpu_count() or 1))
        rows.append(
            (f"{count}: {rate:.0f} Mbit/s", strategy, size(cell.bytes), seconds(cell.epoch_s), seconds(cell.wait_s),
             seconds(busiest), seconds(ideal) if ideal else "", f"{100 * ideal / cell.epoch_s:.0f} %" if ideal else "",
             f"{found['vanilla'].epoch_s / cell.epoch_s:.2f}x")
        )  # fmt: skip
    return rows
