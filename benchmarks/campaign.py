"""Many trainings on graphs that are cut once, some at a time, each one's outcome a line of a file.

A call that is cut short loses only the trainings under way: the next call skips what the file already holds.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from math import inf, nan
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from common import ROOT, fullgraph, run, train


class Cut(NamedTuple):
    """A graph, cut into a folder of this name that all trainings on it share."""

    graph: str
    features: str
    partitioner: str = "metis"
    parts: int = 4

    @property
    def name(self) -> str:
        return f"{self.graph}-{self.features}-{self.partitioner}-{self.parts}"

    def make(self, data: Path, folder: Path) -> None:
        source = self.graph if self.graph == "demo" else data / f"{self.graph}.npz"
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
    """An evaluation: halo bytes sent until then by all ranks, and exact scores of the whole graph."""

    bytes: int
    val: float
    test: float


class Outcome(NamedTuple):
    command: str
    trace: list[Score]

    @property
    def bytes(self) -> int:
        return self.trace[-1].bytes

    def best(self, budget: float = inf) -> Score:
        """The best validation score that cost no more than `budget` bytes; NaN where nothing is so cheap."""
        affordable = (score for score in self.trace if score.bytes <= budget)
        return max(affordable, key=lambda score: score.val, default=Score(0, nan, nan))


def add_options(parser: argparse.ArgumentParser, name: str, *, graphs: Iterable[str], seeds: int) -> None:
    """What every campaign takes."""
    runs = ROOT / "runs" / name
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz graphs")
    parser.add_argument("--only", nargs="+", choices=list(graphs), metavar="GRAPH", default=list(graphs))
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, of four ranks with a thread each")
    parser.add_argument("--simulated", action="store_true", help="ranks are threads: the same scores on a busy machine")
    parser.add_argument("--cuts", type=Path, default=runs / "cuts", help="folder of cut graphs; missing ones are cut")
    parser.add_argument("--results", type=Path, default=runs / "results.jsonl", help="file of outcomes, which grows")
    parser.add_argument("--cut-only", action="store_true", help="cut the graphs and stop (to train elsewhere)")
    parser.add_argument("--report", action="store_true", help="show what the results file holds and train nothing")


def carry_out(trials: Sequence[Trial], options: argparse.Namespace) -> dict[Trial, Outcome]:
    """Run the trials that the results file does not hold yet; the outcomes of all that it then holds."""
    known = _read(options.results)
    if not options.report:
        waiting = [trial for trial in trials if trial.command not in known]
        for cut in dict.fromkeys(trial.cut for trial in waiting):
            if not (options.cuts / cut.name).exists():
                print(f"cutting {cut.name} ...", flush=True)
                cut.make(options.data, options.cuts)
        if options.cut_only:
            print(f"cut graphs are in {options.cuts}")
            raise SystemExit
        known |= _run(waiting, options)
    if not any(trial.command in known for trial in trials):
        raise SystemExit(f"{options.results} holds none of these trainings; leave out --report to run them")
    return {trial: known[trial.command] for trial in trials if trial.command in known}


def spread(values: Sequence[float], sign: str = "") -> str:
    """Mean ± standard deviation, in points of 100."""
    deviation = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):{sign}.2f}{deviation}"


def _run(trials: Sequence[Trial], options: argparse.Namespace) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a") as file, ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(_outcome, trial, options.cuts, options.simulated) for trial in trials]
        try:
            for future in as_completed(futures):
                outcome = future.result()
                outcomes[outcome.command] = outcome
                file.write(json.dumps(outcome._asdict()) + "\n")
                file.flush()
                print(f"{len(outcomes)}/{len(trials)} {outcome.command}: val {outcome.best().val:.4f}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def _outcome(trial: Trial, cuts: Path, simulated: bool) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="fullgraph-") as scratch:
        folder, *flags = trial.command.split()
        out = Path(scratch) / "run"
        if simulated:
            file, flags = Path(scratch) / "metrics.jsonl", ["--seed", str(trial.seed), *trial.flags.split()]
            script = ROOT / "benchmarks" / "simulated.py"
            run([script, cuts / folder, "--out", file, "--strategy", trial.strategy, *flags], threads=1)
        else:
            file = out / "metrics.jsonl"
            train(cuts / folder, out, *flags, "--threads", 1, "--checkpoint-every", 0, threads=1)
        records = [json.loads(line) for line in file.read_text().splitlines()]
    sent, trace = 0, []
    for record in records:
        sent += record["bytes"]
        if record.get("val") is not None:
            trace.append(Score(sent, record["val"], record["test"]))
    return Outcome(trial.command, trace)


def _read(path: Path) -> dict[str, Outcome]:
    """The outcomes of a results file; a last line cut short is taken out of it."""
    if not path.exists():
        return {}
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    lines = (json.loads(line) for line in whole.splitlines())
    return {line["command"]: Outcome(line["command"], [Score(*score) for score in line["trace"]]) for line in lines}
