"""The share of hidden messages: an epoch on two emulated hosts compared with its ideal, at three link rates.

    sudo .venv/bin/python benchmarks/campaign.py overlap [--graph sbm:nodes=100000,...] [--epochs 10] [--rounds 2]

Cells of `fullgraph bench`, which defines C and M. Rates are chosen so that M of exact training is about 1, 2 and 9
times C (--times). ideal = max(C, M), with each strategy's own M. Also shown: the share of the gradient all-reduce in
the waits; and the bytes counted at the interfaces, minus Ethernet, IP and TCP headers by the number of packets, against
the formula. All strategies map a layer's rows before sending if that makes them narrower: they send the same rows, and
do the same dense work as training without halos, whose computation is C. The graph is about as dense as ogbn-products,
and has about as large halos. `none` is that training itself: it differs from C by ranks that wait for one another.
"""

import argparse
import os

from common import bench, seconds, show, size

STRATEGIES = {
    "none": "none",
    "vanilla": "vanilla",
    "pipegcn": "pipegcn narrow=true",
    "sylvie-s": "sylvie-s narrow=true",
    "sylvie-a": "sylvie-a narrow=true",
}
HEADERS = 14 + 20 + 32  # Ethernet, IP, TCP with timestamps
UNLIMITED = "30gbit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="sbm:nodes=100000,edges=2500000,features=64,p_in=0.99,seed=0")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--times", type=float, nargs="+", default=[1, 2, 9], help="M of exact training, in C")
    options = parser.parse_args()
    axes = {
        "graph": options.graph,
        "model": f"sage:layers={options.layers},hidden={options.hidden},norm=none,input_dropout=true",
        "ranks": 2,
    }
    how = {"epochs": options.epochs, "rounds": options.rounds, "all_rows": True}

    free = bench(**axes, strategy=[STRATEGIES["vanilla"]], rate=UNLIMITED, **(how | {"rounds": 2}))["vanilla"]
    print(f"unlimited: C = {seconds(free.compute_s)}, vanilla {seconds(free.epoch_s)}", flush=True)
    rows, counted = [], []
    for times in options.times:
        rate = round(8 * free.bytes / 2 / (times * free.compute_s) / 1e6, 1)
        found = bench(**axes, strategy=list(STRATEGIES.values()), rate=f"{rate}mbit", **how)
        for name, strategy in STRATEGIES.items():
            cell, link = found[strategy], f"{times:g}: {rate:.0f} Mbit/s"
            C, M, formula = cell.compute_s, cell.messages_s, cell.bytes + cell.weight_bytes
            compression = f"{found[STRATEGIES['vanilla']].bytes / cell.bytes:.1f}" if cell.bytes else ""
            rows.append((link, name, seconds(C), seconds(M), compression, seconds(max(C, M)),
                         seconds(cell.epoch_s), seconds(cell.wait_s), seconds(cell.sum_wait_s),
                         f"{100 * max(C, M) / cell.epoch_s:.0f} %"))  # fmt: skip
            crossed = cell.wire_bytes - HEADERS * cell.wire_packets
            counted.append((link, name, size(formula), size(cell.wire_bytes), cell.wire_packets,
                            f"{crossed / formula:.4f}"))  # fmt: skip
    columns = ["link", "strategy", "C", "M", "compression", "ideal", "measured", "waiting", "for sums", "of ideal"]
    show(f"{options.graph}, {axes['model']}, {os.cpu_count()} cores, 2 hosts", columns, rows)
    show("bytes an epoch, of both hosts", ["link", "strategy", "formula", "interface", "packets", "ratio"], counted)
