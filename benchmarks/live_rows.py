"""The savings of live rows: edges, bytes, memory and seconds per epoch, compared with all rows (`--all-rows`).

    .venv/bin/python benchmarks/live_rows.py --data FOLDER [--only pubmed sbm-1] [--ranks 2 4] [--repeats 3] [--report]

The default model, GraphSAGE 3x128 with a layer norm. METIS partitions real graphs. The sbm, a block model of 1M nodes,
is divided along its blocks, without a search; three of its splits have 1 %, 10 % and 60 % training nodes. Trainings
with and without live rows take turns. Ranks count edges in the matrices of their training (counted.py). Each training
is a line of the results file, so an interrupted call continues there.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

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
    """Figures of one training; seconds, bytes and edges are per epoch."""

    epoch_s: float
    wait_s: float
    bytes: int
    peak_bytes: int  # of the worst rank
    rows: list[int]  # by layer, of all ranks
    arcs: list[int]


class Trial(NamedTuple):
    case: Case
    live: bool
    turn: int
    nodes: int  # of the sbm, and edges per node; 0: another graph
    edges: int
    epochs: int
    threads: int

    def __str__(self) -> str:
        return f"{self.case}, {'live' if self.live else 'all'} rows"


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


def shards(case: Case, options: argparse.Namespace) -> Path:
    """Return the folder of the partitioned graph, created if it is missing."""
    named = f"sbm-{options.nodes}-{options.edges}" if case.graph in SHARES else case.graph
    folders: dict[int, Path] = {ranks: options.cuts / f"{named}-{ranks}" for ranks in options.ranks}
    if folders[case.ranks].exists():
        return folders[case.ranks]
    print(f"cutting {named} ...", flush=True)
    options.cuts.mkdir(parents=True, exist_ok=True)
    missing = {ranks: str(folder) for ranks, folder in folders.items() if not folder.exists()}
    if case.graph in SHARES:  # in a separate process, because this one must stay small
        child = get_context("spawn").Process(target=cut_sbm, args=(options.nodes, options.edges, missing))
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit(f"the sbm could not be cut: exit status {child.exitcode}")
    else:
        for ranks, folder in missing.items():
            fullgraph("partition", options.data / f"{case.graph}.npz", "--parts", ranks, "--out", folder)
    return folders[case.ranks]


def measured(trial: Trial, options: argparse.Namespace) -> Figures:
    """Run one training as a user would start it."""
    case = trial.case
    split = list(SHARES).index(case.graph) if case.graph in SHARES else 0
    strategy = f"{ROOT / 'benchmarks' / 'counted.py'}:{STRATEGIES[case.strategy]}"
    folder = shards(case, options)
    with tempfile.TemporaryDirectory(prefix="fullgraph-") as name:
        counts = Path(name) / "counts"
        counts.mkdir()
        flags = ["--split", split, "--strategy", strategy, "-o", f"counts={counts}", "--epochs", trial.epochs]
        flags += ["--eval-every", trial.epochs, "--checkpoint-every", 0, "--no-report", "--threads", trial.threads]
        result = train(folder, Path(name) / "run", *flags, *([] if trial.live else ["--all-rows"]))
        ranks = [json.loads((counts / f"{rank}.json").read_text()) for rank in range(case.ranks)]
    summed = {what: [sum(rank[layer][what] for rank in ranks) for layer in range(LAYERS)] for what in ("rows", "arcs")}
    return Figures(
        result["epoch_s"], result["wait_s"], result["bytes_per_epoch"], result["peak_memory_bytes"], **summed
    )


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


def read(path: Path) -> dict[Trial, Figures]:
    """Return the content of the results file; remove an incomplete last line from it."""
    if not path.exists():
        return {}
    lines = path.read_text().split("\n")[:-1]
    path.write_text("".join(f"{line}\n" for line in lines))
    found = {}
    for line in map(json.loads, lines):
        case, figures = (kind(*(line.pop(name) for name in kind._fields)) for kind in (Case, Figures))
        found[Trial(case, **line)] = figures
    return found


def carry_out(wanted: list[Trial], options: argparse.Namespace) -> dict[Trial, Figures]:
    """Run the trainings that are not in the results file; return all results in it."""
    known = read(options.results)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a") as file:
        for trial in [trial for trial in wanted if trial not in known and not options.report]:
            known[trial] = figures = measured(trial, options)
            line = trial.case._asdict() | trial._asdict() | figures._asdict()
            del line["case"]
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{trial}: {seconds(figures.epoch_s)}", flush=True)
    return known


class Pair(NamedTuple):
    """A case's trainings, on all rows and on live rows."""

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
    options = parser.parse_args()
    wanted = list(trials(options))
    tables(wanted, carry_out(wanted, options), markdown=options.markdown)


if __name__ == "__main__":
    main()
