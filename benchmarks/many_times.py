"""How many times faster one-bit, late halos are than exact training where links are slow: sylvie-a beside vanilla.

    sudo .venv/bin/python benchmarks/many_times.py [--share 0.99] [--hosts 2 4] [--classes 128] [--rounds 1]

Cells of `fullgraph bench` on emulated hosts, which says what C and M are. A graph without communities, so that a rank
reads most of the others' nodes. The link is as slow as makes halo rows the given share of vanilla's epoch. Three things
hold the ratio below the 32 of one bit for 32:

    rows      a row of D columns takes D/8 + 4 bytes in place of 4 D:  25.6 at D = 128
    weights   their gradients cross in full with either strategy, so halos have to be large beside the model
    C         no epoch is shorter than its compute:  1 / (1 - share),  20 at 95 %

And a fourth: where there are fewer classes than columns, vanilla maps rows of the last layer before they cross, and
sylvie-a does not, as published. So there are two graphs. One has as many classes as columns: both strategies send a
layer's input. The other has 16: there vanilla is also measured in the paper's order (`free schedule=sync codec=full`),
and sylvie-a in vanilla's (`narrow=true`); on the largest number of hosts alone.
"""

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from common import bench, seconds, show, size

if TYPE_CHECKING:
    from fullgraph.lab.bench import Cell

VANILLA, INPUT = "vanilla", "free schedule=sync codec=full"
CLASSES = {128: (VANILLA, "sylvie-a"), 16: (VANILLA, INPUT, "sylvie-a", "sylvie-a narrow=true")}
LABELS = {INPUT: "vanilla, a layer's input crosses", "sylvie-a narrow=true": "sylvie-a -o narrow=true"}
UNLIMITED = "30gbit"
REST = "p_in=0.1,train=0.2,seed=0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=40_000)
    parser.add_argument("--edges", type=int, default=400_000)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--classes", nargs="+", type=int, choices=list(CLASSES), default=list(CLASSES))
    parser.add_argument("--share", type=float, default=0.99, help="of vanilla's epoch that messages take")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="show the table as Markdown")
    options = parser.parse_args()
    how = {"epochs": options.epochs, "rounds": options.rounds}
    rows: list[tuple[object, ...]] = []
    for classes, hosts in settings(options):
        graph = f"sbm:nodes={options.nodes},edges={options.edges},features=16,classes={classes},{REST}"
        axes = {"graph": graph, "model": f"gcn:layers=3,hidden={options.hidden}", "ranks": hosts}
        free = bench(**axes, strategy=[VANILLA], rate=UNLIMITED, epochs=5, rounds=1)[VANILLA]
        rate = link_rate(free, options.share)
        found = bench(**axes, strategy=CLASSES[classes], rate=f"{rate}mbit", **how)
        rows += lines(found, f"{classes} classes, {hosts} hosts, {rate} Mbit/s")
        for row in rows[-len(found) :]:
            print(*row, sep="  ", flush=True)
    title = f"{options.nodes:,} nodes, {options.edges:,} edges, GCN 3x{options.hidden}, {os.cpu_count()} cores"
    columns = ["setting", "strategy", "C", "epoch", "not C", "M", "halo bytes", "weights", "on links", "fewer",
               "to vanilla", "to vanilla of a layer's input"]  # fmt: skip
    show(title, columns, rows, markdown=options.markdown)


def settings(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Classes and hosts."""
    for classes in options.classes:
        for hosts in options.hosts if classes >= options.hidden else options.hosts[-1:]:
            yield classes, hosts


def link_rate(free: "Cell", share: float) -> float:
    """Mbit/s at which a host's halo rows take share / (1 - share) times its compute."""
    messages_s = free.compute_s * share / (1 - share)
    return round(8 * free.bytes / free.ranks / messages_s / 1e6, 1)


def lines(found: "dict[str, Cell]", setting: str) -> list[tuple[Any, ...]]:
    """A row for each strategy; ratios are of epochs measured in turn in one job."""
    vanilla, as_published = found[VANILLA], found.get(INPUT, found[VANILLA])
    rows = []
    for strategy, cell in found.items():
        C, epoch, on_links = cell.compute_s, cell.epoch_s, cell.wire_bytes or 0
        rows.append((
            setting, LABELS.get(strategy, strategy), seconds(C), seconds(epoch), f"{100 * (1 - C / epoch):.1f} %",
            seconds(cell.messages_s), size(cell.bytes), size(cell.weight_bytes), size(on_links),
            f"{(vanilla.wire_bytes or 0) / on_links:.1f}x",
            f"{vanilla.epoch_s / epoch:.2f}x", f"{as_published.epoch_s / epoch:.2f}x",
        ))  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
