"""Predicted and measured times: the cells of a campaign of `fullgraph bench`, each with its plan's prediction.

    fullgraph bench --config benchmarks/cells.toml --out runs/cells        # as root; it resumes
    .venv/bin/python benchmarks/predicted.py runs/cells [--held-out 10] [--page runs/cells/predicted.html]

Rates are those of this machine. Six figures are fitted to some of the cells that are not held out: a scale of all work,
the cost of a message and of its bytes for a core, the latency of links and of loopback, and the cost of more busy
threads than cores. Held-out cells are drawn by a seed.
Also: how often the strategy that `auto` would choose is within 10 % of the fastest measured one.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from common import seconds, show

from fullgraph.data import load
from fullgraph.errors import InputError
from fullgraph.lab.bench import read_cells
from fullgraph.lab.bench.cell import Cell
from fullgraph.lab.bench.matrix import bits_per_second, model_of, strategy_of
from fullgraph.lab.cost.cluster import Cluster, Link
from fullgraph.lab.cost.counting import counted
from fullgraph.lab.cost.local_machine import rates_here
from fullgraph.lab.cost.plan import rates_on, risk_of
from fullgraph.lab.cost.predict import Recorded, recorded, replayed
from fullgraph.lab.cost.rates import Rates
from fullgraph.lab.html.charts import Line, lines
from fullgraph.lab.html.document import charts, document, figure
from fullgraph.lab.html.numbers import seconds as in_words
from fullgraph.partition import PARTITIONERS, partition, write_parts
from fullgraph.run import Run
from fullgraph.train.config import TrainConfig

SCALES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 2.0)
CORE_S_PER_BYTE = (1e-10, 2e-10, 4e-10, 8e-10, 1.6e-9, 3.2e-9)
MESSAGES = (0.0, 3e-5, 1e-4, 3e-4, 1e-3)
LATENCIES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
CROWDING = (0.0, 0.2, 0.4, 0.6, 0.8, 1.2)
FITTED = 48  # cells of the fit
LOOPBACK = 20e9  # bits per second
NEARLY = 1.1  # times the fastest


class Fit(NamedTuple):
    scale: float = 1.0
    core_s_per_byte: float = 4e-10
    message_s: float = 3e-5
    latency_s: float = 1e-4
    inside_s: float = 1e-4  # the latency between processes of one machine
    crowding: float = 0.4


class PredictedCell(NamedTuple):
    """A cell, its recorded steps, and the rates of its graph's products."""

    cell: Cell
    steps: Recorded
    rates: Rates

    def epoch_s(self, fit: Fit) -> float:
        scaled = replace(self.rates, scale=self.rates.scale * fit.scale)
        return replayed(self.steps, cluster_of(self.cell, fit), scaled).epoch_s

    def error(self, fit: Fit) -> float:
        return self.epoch_s(fit) / self.cell.epoch_s - 1


def cluster_of(cell: Cell, fit: Fit) -> Cluster:
    """Return the machine on which the cell was measured."""
    rate = bits_per_second(cell.rate)
    busy = {"message_s": fit.message_s, "core_s_per_byte": fit.core_s_per_byte}
    if rate is None:
        inside = Link(bits_per_s=LOOPBACK, latency_s=fit.inside_s, **busy)
        return Cluster(ranks_per_machine=cell.ranks, cores=cell.cores, crowding=fit.crowding, inside=inside)
    link = Link(bits_per_s=rate, latency_s=fit.latency_s, **busy)
    return Cluster(machines=cell.ranks, cores=cell.cores, crowding=fit.crowding, together=True, link=link)


def predict_cells(cells: Sequence[Cell], rates: Rates) -> list[PredictedCell]:
    """Predict all cells that can be predicted; graphs are partitioned as in the campaign."""
    found = []
    with tempfile.TemporaryDirectory(prefix="fullgraph-") as scratch:

        @cache
        def shards(graph: str, parts: int, partitioner: str) -> Path:
            whole, folder = load(graph), Path(scratch) / f"{len(list(Path(scratch).iterdir()))}"
            write_parts(folder, whole, partition(whole, parts, PARTITIONERS.make(partitioner)))
            return folder

        @cache
        def own(folder: Path) -> Rates:
            return rates_on(folder, rates)

        @cache
        def steps(graph: str, model: str, strategy: str, ranks: int, all_rows: bool) -> tuple[Recorded, Rates]:
            chosen, spec = strategy_of(strategy), model_of(model)
            run = Run(model=spec, strategy=chosen, parts=ranks, train=TrainConfig(epochs=200, all_rows=all_rows))
            cutter = chosen.partitioner()
            folder = shards(graph, ranks, "metis" if cutter is None else PARTITIONERS.label(cutter))
            return recorded(run, counted(folder, () if all_rows else spec.hops)), own(folder)

        for cell in cells:
            try:
                of_cell = steps(cell.graph, cell.model, cell.strategy, cell.ranks, cell.all_rows)
            except InputError as error:
                print(f"left out, {cell.strategy}: {error}")
                continue
            found.append(PredictedCell(cell, *of_cell))
    return found


def fitted(known: Sequence[PredictedCell]) -> Fit:
    """Return the figures with the smallest errors on some of the cells, each searched with the others fixed."""
    some, best = known[:FITTED], Fit()

    def off(fit: Fit) -> float:
        return sum(min(1.0, abs(one.error(fit))) for one in some)

    tried = {"scale": SCALES, "crowding": CROWDING, "message_s": MESSAGES, "core_s_per_byte": CORE_S_PER_BYTE,
             "latency_s": LATENCIES, "inside_s": LATENCIES}  # fmt: skip
    for _ in range(2):
        for name, values in tried.items():
            best = min((best._replace(**{name: value}) for value in values), key=off)
    return best


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is at least as large as this share of all values."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def agreement(found: Sequence[PredictedCell], fit: Fit) -> tuple[int, int]:
    """Count the groups in which the predicted fastest strategy is within 10 % of the fastest: exact ones, then all."""
    good = total = 0
    for allow in (frozenset[str](), frozenset({"stale", "lossy"})):
        for group in dict.fromkeys(one.cell.group for one in found):
            allowed = [one for one in found if one.cell.group == group and _risks(one.cell) <= allow
                       and one.cell.strategy != "none"]  # fmt: skip
            if len(allowed) > 1:
                chosen = min(allowed, key=lambda one: one.epoch_s(fit))
                total += 1
                good += chosen.cell.epoch_s <= NEARLY * min(one.cell.epoch_s for one in allowed)
    return good, total


@cache
def _risk(strategy: str, model: str, ranks: int) -> frozenset[str]:
    return risk_of(Run(model=model_of(model), strategy=strategy_of(strategy), parts=ranks)).kinds


def _risks(cell: Cell) -> frozenset[str]:
    return _risk(cell.strategy, cell.model, cell.ranks)


def page(found: Sequence[PredictedCell], fit: Fit) -> str:
    """Return a page with one point per cell: predicted against measured."""
    points = sorted((one.cell.epoch_s, one.epoch_s(fit)) for one in found)
    low, high = points[0][0], points[-1][0]
    curves = [Line("the same", [(low, low), (high, high)], 1, dashed=True)]
    curves += [Line(f"{one.cell.strategy}, {one.cell.rate}", [(one.cell.epoch_s, one.epoch_s(fit))], 0)
               for one in found]  # fmt: skip
    chart = lines(curves, title="predicted against measured", x="measured", y="predicted", x_words=in_words,
                  y_words=in_words, log_x=True, log_y=True)  # fmt: skip
    return document(
        "Predicted and measured", [], [("cells", "Cells", [charts([figure("Epochs", chart, full=True)])])], ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path, help="folder of a campaign of `fullgraph bench`")
    parser.add_argument("--held-out", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    rates = rates_here()
    found = predict_cells([cell for cell in read_cells(options.cells) if not cell.is_peer], rates)
    Random(options.seed).shuffle(found)
    held, known = found[: options.held_out], found[options.held_out :]
    fit = fitted(known)
    rows = []
    for one in sorted(found, key=lambda one: (one.cell.group, one.cell.strategy)):
        cell, taken = one.cell, one.epoch_s(fit)
        place = f"{cell.graph[:14]} {cell.model} {cell.ranks} {cell.rate}"
        off = f"{100 * (taken / cell.epoch_s - 1):+.0f} %"
        said = "held out" if one in held else ""
        rows.append((place, cell.strategy, seconds(cell.epoch_s), seconds(taken), off, said))
    show("seconds per epoch", ["cell", "strategy", "measured", "predicted", "off by", ""], rows)
    print(f"fitted: {fit}")
    parts = {"cells of the fit": known[:FITTED], "held-out cells": held,
             "all but those of the fit": held + known[FITTED:], "all cells": found}  # fmt: skip
    for name, part in parts.items():
        errors = [abs(one.error(fit)) for one in part]
        if errors:
            print(f"{name}: {len(errors)}, median error {100 * median(errors):.1f} %, "
                  f"90th percentile {100 * quantile(errors, 0.9):.1f} %")  # fmt: skip
    good, total = agreement(found, fit)
    print(f"auto within 10 % of the quickest: {good} of {total}")
    if options.page:
        options.page.write_text(page(found, fit))


if __name__ == "__main__":
    main()
