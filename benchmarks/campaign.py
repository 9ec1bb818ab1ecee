"""Campaigns: many trainings, some at the same time, one line of a results file each; and other studies.

    .venv/bin/python benchmarks/campaign.py NAME --help        # NAME: a file of benchmarks/campaigns

An interrupted call loses only the trainings that were running: the next call skips everything in the file. The files
for the tables of the documentation are in benchmarks/results, so a campaign with complete results trains nothing.
Failed trainings are named, and the others continue. Trials come seed by seed: when a call ends, all cells have the same
number of seeds.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import accumulate
from math import inf, nan, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from common import ROOT, fullgraph
from workers import Failed, side_by_side

NOTE = "fullgraph: note: "
RESULTS = ROOT / "benchmarks" / "results"
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; for more, the normal one is close enough.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


class Cut(NamedTuple):
    """A graph, partitioned into a folder of this name, which all its trainings share.

    graph: the name of a file in the folder of graphs, or a source that `fullgraph train` takes: demo, sbm:nodes=...
    """

    graph: str
    features: str
    partitioner: str = "metis"
    parts: int = 4

    @property
    def label(self) -> str:
        """The graph's name in tables: a source without its options."""
        return self.graph.split(":")[0]

    @property
    def name(self) -> str:
        graph = self.graph.replace(":", "-").replace(",", "-")
        return f"{graph}-{self.features}-{self.partitioner}-{self.parts}"

    def make(self, data: Path, folder: Path) -> None:
        source = self.graph if self.graph == "demo" or ":" in self.graph else data / f"{self.graph}.npz"
        options = ["--parts", self.parts, "--partitioner", self.partitioner, "--features", self.features]
        fullgraph("partition", source, *options, "--out", folder / self.name)


class Trial(NamedTuple):
    """One training; its command is its name."""

    cut: Cut
    strategy: str  # with its options: "varco -o slope=5"
    seed: int
    flags: str

    @property
    def command(self) -> str:
        return f"{self.cut.name} --strategy {self.strategy} --seed {self.seed} {self.flags}"


class Score(NamedTuple):
    """An evaluation: the halo bytes that all ranks sent before it, and exact scores of the whole graph."""

    bytes: int
    val: float
    test: float


class Outcome(NamedTuple):
    command: str
    trace: list[Score]  # evaluations with a new best score, and the last one
    notes: Sequence[str] = ()  # the notes that the run printed
    device: str = "cpu"
    seconds: float = 0.0
    losses: Sequence[float] = ()  # of all epochs, if a table needs them

    @classmethod
    def read(cls, line: dict[str, Any]) -> "Outcome":
        """Read an outcome from a line of a results file."""
        return cls(**{**line, "trace": [Score(*score) for score in line["trace"]]})

    @property
    def told(self) -> str:
        return f"val {self.best().val:.4f}"

    @property
    def bytes(self) -> int:
        return self.trace[-1].bytes

    def best(self, budget: float = inf) -> Score:
        """Return the best validation score at most at `budget` bytes; NaN if there is none."""
        affordable = (score for score in self.trace if score.bytes <= budget)
        return max(affordable, key=lambda score: score.val, default=Score(0, nan, nan))


class Named(Protocol):
    """A training, as a value that can be sent to another process."""

    @property
    def command(self) -> str: ...


class Found(Named, Protocol):
    """The outcome of a training: a named tuple, which is a line of the results file."""

    @classmethod
    def read(cls, line: dict[str, Any]) -> Self: ...
    @property
    def told(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    def _asdict(self) -> dict[str, Any]: ...


N = TypeVar("N", bound=Named)
F = TypeVar("F", bound=Found)


def add_options(parser: argparse.ArgumentParser, name: str, *, graphs: Iterable[str], seeds: int = 5) -> None:
    """Add the options of every campaign."""
    results, cuts, graphs = RESULTS / f"{name}.jsonl", ROOT / "runs" / name / "cuts", list(graphs)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz graphs")
    parser.add_argument("--only", nargs="+", choices=graphs, metavar="GRAPH", default=graphs, help="of these graphs")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--epochs", type=int, help="instead of each case's number")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--limit-s", type=float, default=inf, metavar="SECONDS", help="start none after this time")
    parser.add_argument("--cuts", type=Path, default=cuts, help="folder of partitioned graphs")
    parser.add_argument("--results", type=Path, default=results, help="file of outcomes, which is extended")
    parser.add_argument("--cut-only", action="store_true", help="partition the graphs and stop")
    parser.add_argument("--report", action="store_true", help="show the results file and train nothing")
    parser.add_argument("--markdown", action="store_true", help="show tables as Markdown")


def add_simulated(parser: argparse.ArgumentParser) -> None:
    """Add the option of campaigns that run `fullgraph train`."""
    told = "ranks are threads of a process that lives on for the next training: the same scores, sooner"
    parser.add_argument("--simulated", action="store_true", help=told)


def flags_of(options: argparse.Namespace, flags: str) -> str:
    """Return a case's flags, with another number of epochs if requested."""
    return flags if options.epochs is None else f"{flags} --epochs {options.epochs}"


def carry_out(
    trials: Sequence[Trial], options: argparse.Namespace, table: Callable[[dict[Trial, Outcome]], None], *,
    losses: bool = False,
) -> None:  # fmt: skip
    """Partition the graphs of the trials, and `complete` the trials. losses: also keep the losses of all epochs."""
    if not options.report:
        known = read(options.results, Outcome)
        cuts = dict.fromkeys(trial.cut for trial in trials if trial.command not in known)
        _cut([cut for cut in cuts if not (options.cuts / cut.name).exists()], options)
    if options.cut_only:
        tell(f"cut graphs are in {options.cuts}")
        return
    how = {"device": options.device, "simulated": options.simulated, "losses": losses}
    work = partial(train_on, cuts=options.cuts, **how)
    complete(trials, work, options, table)


def complete(
    trials: Sequence[N],
    work: Callable[[N], F],
    options: argparse.Namespace,
    table: Callable[[dict[N, F]], None],
    kind: Any = Outcome,
) -> None:
    """Run the trials that the results file does not hold yet; show the table of all that it then holds."""
    known, failed = read(options.results, kind), dict[str, Failed]()
    if not options.report:
        waiting = [trial for trial in trials if trial.command not in known]
        done, failed = _run(waiting, work, options)
        known |= done
    held = {trial: known[trial.command] for trial in trials if trial.command in known}
    if held:
        table(held)
    missing = len(trials) - len(held) - len(failed)
    if missing:
        tell(f"{missing} of {len(trials)} trainings are not in {options.results}: the same command goes on with them")
    for command, reason in failed.items():
        tell(f"FAILED {command}: {reason}")
    if failed:
        raise SystemExit(1)


def tell(text: str) -> None:
    """Print progress to standard error; standard output holds only tables."""
    print(text, file=sys.stderr, flush=True)


def spread(values: Sequence[float], sign: str = "") -> str:
    """Return mean ± half the width of its 95 % confidence interval (Student's t), in points of 100."""
    around = f" ± {100 * half_width(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):{sign}.2f}{around}"


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % confidence interval."""
    freedom = len(values) - 1
    quantile = T95[freedom - 1] if freedom <= len(T95) else 1.96
    return quantile * stdev(values) / sqrt(len(values))


def train_on(trial: Trial, *, cuts: Path, device: str, simulated: bool, losses: bool = False) -> Outcome:
    """Train on a partitioned graph, in threads of this process or with the command."""
    os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}  # torch reads these during its import
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fullgraph-") as scratch:
        folder, *flags = trial.command.split()
        out = Path(scratch) / "run"
        how = ["--device", device, "--threads", "1", "--checkpoint-every", "0", "--no-report"]
        arguments = [str(cuts / folder), *flags, *how]
        if simulated:
            from simulated import train

            beside = train(arguments, out)
        else:
            beside = fullgraph("train", *arguments, "--out", out, threads=1).output
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    notes = [line.removeprefix(NOTE) for line in beside.splitlines() if line.startswith(NOTE)]
    each = [float(f"{record['loss']:.4g}") for record in records] if losses else []
    return Outcome(trial.command, trace_of(records), notes, device, round(time.perf_counter() - start, 1), each)


def trace_of(records: Iterable[Mapping[str, float | None]]) -> list[Score]:
    """Return the evaluations in a run's records that a table may need."""
    sent, scores = 0, []
    for record in records:
        sent += int(record["bytes"] or 0)
        val, test = record.get("val"), record.get("test")
        if val is not None and test is not None:
            scores.append(Score(sent, round(val, 6), round(test, 6)))
    before = [-inf, *accumulate((score.val for score in scores), max)]
    return [score for score, best in zip(scores, before, strict=False) if score.val > best or score is scores[-1]]


def _cut(cuts: Sequence[Cut], options: argparse.Namespace) -> None:
    """Partition graphs, some at the same time; the trainings of a failed one name it again."""
    work = partial(Cut.make, data=options.data, folder=options.cuts)
    for cut, failed in side_by_side(work, cuts, jobs=options.jobs):
        tell(f"{cut.name}: {failed or 'cut'}")
        if failed and options.cut_only:
            raise SystemExit(1)


def _run(
    trials: Sequence[N], work: Callable[[N], F], options: argparse.Namespace
) -> tuple[dict[str, F], dict[str, Failed]]:
    """Train, and write a line of the results file for each trial; return the outcomes and the failures."""
    outcomes: dict[str, F] = {}
    failed: dict[str, Failed] = {}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a") as file:
        every = {"jobs": options.jobs, "limit_s": options.limit_s, "pinned": getattr(options, "simulated", False)}
        for trial, outcome in side_by_side(work, trials, **every):
            place = f"{len(outcomes) + len(failed) + 1}/{len(trials)} {trial.command}"
            if isinstance(outcome, Failed):
                failed[trial.command] = outcome
                tell(f"{place}: FAILED: {outcome}")
                continue
            outcomes[trial.command] = outcome
            file.write(json.dumps(outcome._asdict()) + "\n")
            file.flush()
            tell(f"{place}: {outcome.told}, {outcome.seconds:.1f} s")
    return outcomes, failed


def read(path: Path, kind: type[F]) -> dict[str, F]:
    """The outcomes of a results file; an incomplete last line is removed from it."""
    if not path.exists():
        return {}
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    outcomes = (kind.read(json.loads(line)) for line in whole.splitlines())
    return {outcome.command: outcome for outcome in outcomes}


def main() -> None:
    names = sorted(path.stem for path in (ROOT / "benchmarks" / "campaigns").glob("*.py"))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        raise SystemExit(f"name a campaign: {', '.join(names)}")
    name = sys.argv.pop(1)
    sys.argv[0] += f" {name}"
    import_module(f"campaigns.{name}").main()


if __name__ == "__main__":
    main()
