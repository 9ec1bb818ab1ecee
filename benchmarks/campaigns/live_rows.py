"""The savings of live rows: edges, bytes, memory and seconds per epoch, compared with all rows (`--all-rows`).

    python benchmarks/campaign.py live_rows --data FOLDER [--only pubmed sbm-1] [--ranks 2 4] [--repeats 3] [--report]

The default model, GraphSAGE 3x128 with a layer norm. METIS partitions real graphs. The sbm, a block model of 1M nodes,
is divided along its blocks, without a search; three of its splits have 1 %, 10 % and 60 % training nodes. Trainings
with and without live rows take turns. Ranks count edges in the matrices of their training (counted.py). Each training
is a line of the results file, so an interrupted call continues there.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from campaign import complete, tell
from common import ROOT, fullgraph, seconds, show, size, train

REAL = ("cora", "pubmed", "coauthor_physics", "amazon_photo")
SHARES = {"sbm-1": 0.01, "sbm-10": 0.1, "sbm-60": 0.6}  # of training nodes, in the order of the splits
STRATEGIES = {"vanilla": "Vanilla", "pipegcn": "PipeGCN"}  # with their names in counted.py
BLOCKS, LAYERS = 16, 3


class Case(NamedTuple):
    graph: str
    ranks: int
    strategy: str

    def __str__(self) -> str:
        return f"{self.graph}, {self.ranks} ranks, {self.strategy}"


class Figures(NamedTuple):
    """Figures of one training; times, bytes and arcs are per epoch, `seconds` is the whole training."""

    command: str
    epoch_s: float
    wait_s: float
    bytes: int
    peak_bytes: int  # of the largest rank
    rows: list[int]  # by layer, over all ranks
    arcs: list[int]
    seconds: float = 0.0

    @classmethod
    def read(cls, line: dict[str, Any]) -> "Figures":
        return cls(**line)

    @property
    def told(self) -> str:
        return f"{seconds(self.epoch_s)} an epoch"


class Trial(NamedTuple):
    case: Case
    live: bool
    turn: int
    nodes: int  # of the sbm, with edges per node; 0: another graph
    edges: int
    epochs: int
    threads: int

    @property
    def command(self) -> str:
        size = f", {self.nodes:,} nodes, {self.edges} edges each" if self.nodes else ""
        rest = f"{self.epochs} epochs, {self.threads} threads, turn {self.turn}"
        return f"{self.case}, {'live' if self.live else 'all'} rows{size}, {rest}"


def cut_sbm(nodes: int, edges: int, folders: dict[int, str]) -> None:
    """Write the shards of a block model by number of ranks: whole blocks for each rank, and one split per share."""
    import numpy as np

    from fullgraph.data.graph import Graph
    from fullgraph.data.sbm import SBM, sbm_graph
    from fullgraph.partition import Assignment, write_parts

    # Block b has class b.
    graph = sbm_graph(SBM(nodes=nodes, edges=edges * nodes, features=64, classes=BLOCKS, blocks=BLOCKS))
    place = np.random.default_rng(0).permutation(nodes)[:, None] / nodes
    share = np.array(list(SHARES.values()))
    masks = {"train": place < share, "val": (place >= share) & (place < share + 0.2), "test": place >= share + 0.2}
    graph = Graph.from_csr(graph.indptr, graph.indices, graph.x, graph.y, masks, name="sbm")
    for ranks, folder in folders.items():
        part = (graph.y * ranks // BLOCKS).astype(np.int32)
        write_parts(folder, graph, Assignment(part, ranks, method="blocks"))


def folder_of(trial: Trial, cuts: Path) -> Path:
    """The folder of a training's partitioned graph."""
    named = f"sbm-{trial.nodes}-{trial.edges}" if trial.nodes else trial.case.graph
    return cuts / f"{named}-{trial.case.ranks}"


def cut_missing(wanted: list[Trial], options: argparse.Namespace) -> None:
    options.cuts.mkdir(parents=True, exist_ok=True)
    missing = {folder: one for one in wanted if not (folder := folder_of(one, options.cuts)).exists()}
    blocks = {one.case.ranks: str(folder) for folder, one in missing.items() if one.nodes}
    if blocks:  # in a separate process, because this one has to stay small
        tell("cutting the sbm ...")
        child = get_context("spawn").Process(target=cut_sbm, args=(options.nodes, options.edges, blocks))
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit(f"the sbm could not be cut: exit status {child.exitcode}")
    for folder, one in missing.items():
        if not one.nodes:
            source = options.data / f"{one.case.graph}.npz"
            fullgraph("partition", source, "--parts", one.case.ranks, "--out", folder)


def measured(trial: Trial, cuts: Path) -> Figures:
    """Run one training as a user would start it."""
    case, start = trial.case, time.perf_counter()
    split = list(SHARES).index(case.graph) if case.graph in SHARES else 0
    strategy = f"{ROOT / 'benchmarks' / 'counted.py'}:{STRATEGIES[case.strategy]}"
    folder = folder_of(trial, cuts)
    with tempfile.TemporaryDirectory(prefix="fullgraph-") as name:
        counts = Path(name) / "counts"
        counts.mkdir()
        flags = ["--split", split, "--strategy", strategy, "-o", f"counts={counts}", "--epochs", trial.epochs]
        flags += ["--eval-every", trial.epochs, "--checkpoint-every", 0, "--no-report", "--threads", trial.threads]
        result = train(folder, Path(name) / "run", *flags, *([] if trial.live else ["--all-rows"]))
        ranks = [json.loads((counts / f"{rank}.json").read_text()) for rank in range(case.ranks)]
    summed = {what: [sum(rank[layer][what] for rank in ranks) for layer in range(LAYERS)] for what in ("rows", "arcs")}
    return Figures(
        trial.command, result["epoch_s"], result["wait_s"], result["bytes_per_epoch"], result["peak_memory_bytes"],
        **summed, seconds=round(time.perf_counter() - start, 1),
    )  # fmt: skip


def trials(options: argparse.Namespace) -> Iterator[Trial]:
    """Yield trials; both sides of a comparison follow one another, and the first side changes with the turn."""
    for turn in range(options.repeats):
        for graph in options.only:
            nodes, edges, epochs = (options.nodes, options.edges, 8) if graph in SHARES else (0, 0, 60)
            for strategy in STRATEGIES if graph in options.pipegcn else ["vanilla"]:
                for ranks in options.ranks:
                    for live in (turn % 2 == 1, turn % 2 == 0):
                        case = Case(graph, ranks, strategy)
                        yield Trial(case, live, turn, nodes, edges, options.epochs or epochs, options.threads)


class Pair(NamedTuple):
    """A case's trainings, with all rows and with live rows."""

    whole: list[Figures]
    live: list[Figures]

    def ratio(self, field: str, told: Callable[[float], str]) -> tuple[str, str, str]:
        """Return both medians over turns, and the first divided by the second."""
        before, after = (median(getattr(figures, field) for figures in side) for side in self)
        return told(before), told(after), f"{before / after:.2f}" if after else ""

    def arcs(self) -> Iterator[str]:
        """Yield counts by layer; they do not differ between turns."""
        for live, whole in zip(self.live[0].arcs, self.whole[0].arcs, strict=True):
            yield f"{live:,} ({100 * live / whole:.3g} %)" if whole else "ahead"


def tables(wanted: list[Trial], known: dict[Trial, Figures], *, markdown: bool) -> None:
    counts, costs = [], []
    for case in dict.fromkeys(trial.case for trial in wanted):
        of_case = [trial for trial in wanted if trial.case == case and trial in known]
        pair = Pair(*([known[trial] for trial in of_case if trial.live is live] for live in (False, True)))
        if not all(pair):
            continue
        counts.append((*case, f"{max(pair.whole[0].arcs):,}", *pair.arcs()))
        times = pair.ratio("epoch_s", seconds)
        costs.append((*case, *times, *pair.ratio("bytes", size), *pair.ratio("peak_bytes", size), len(pair.live)))
    layers = [f"layer {number}, live" for number in range(1, LAYERS + 1)]
    show("Arcs of a forward pass, all ranks", [*Case._fields, "a layer, all rows", *layers], counts, markdown=markdown)
    columns = [f"{what}{which}" for what in ("epoch", "halo bytes", "memory") for which in (", all", ", live", " x")]
    show("An epoch, and the worst rank's memory", [*Case._fields, *columns, "turns"], costs, markdown=markdown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = ROOT / "runs" / "live_rows"
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz graphs")
    known_graphs = [*REAL, *SHARES]
    parser.add_argument("--only", nargs="+", choices=known_graphs, metavar="GRAPH", default=known_graphs)
    late = {"choices": known_graphs, "metavar": "GRAPH", "default": ["pubmed", "amazon_photo"]}
    parser.add_argument("--pipegcn", nargs="*", **late, help="graphs on which pipegcn trains too")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3, help="number of turns; the table shows medians")
    parser.add_argument("--epochs", type=int, default=0, help="per training; 0: 60, and 8 for the sbm")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the sbm")
    parser.add_argument("--edges", type=int, default=10, help="of the sbm, per node")
    parser.add_argument("--threads", type=int, default=0, help="per rank; 0: this machine's cores over its ranks")
    parser.add_argument("--cuts", type=Path, default=runs / "cuts", help="folder of partitioned graphs")
    parser.add_argument("--results", type=Path, default=runs / "results.jsonl", help="file of figures")
    parser.add_argument("--report", action="store_true", help="show the results file and train nothing")
    parser.add_argument("--markdown", action="store_true", help="show tables as Markdown")
    parser.set_defaults(jobs=1, limit_s=inf)
    options = parser.parse_args()
    wanted = list(trials(options))
    if not options.report:
        cut_missing(wanted, options)
    table = partial(tables, wanted, markdown=options.markdown)
    complete(wanted, partial(measured, cuts=options.cuts), options, table, Figures)
