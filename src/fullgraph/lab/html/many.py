"""The page of several runs: curves over epochs, seconds and bytes, a table, and the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from fullgraph.errors import InputError
from fullgraph.lab.html.charts import Line, Words, legend, lines
from fullgraph.lab.html.document import COLOURS, MARK, Safe, charts, document, figure, table, tag
from fullgraph.lab.html.numbers import figure as number
from fullgraph.lab.html.numbers import seconds
from fullgraph.lab.html.past import PastRun, read_run
from fullgraph.report.record import EpochRecord, medians
from fullgraph.storage import write_whole
from fullgraph.words import size

MOST_RUNS = 24

Running = Callable[[Sequence[EpochRecord]], list[float]]  # what a run has used, up to each epoch
AXES: tuple[tuple[str, str, Words, Running], ...] = (
    ("epochs", "epoch", number, lambda records: [float(r.epoch) for r in records]),
    ("seconds", "seconds of training", seconds, lambda records: list(accumulate(r.epoch_s for r in records))),
    ("bytes", "bytes sent", size, lambda records: list(accumulate(float(r.bytes) for r in records))),
)


class Worth(NamedTuple):
    """A run's best score, and its cost until then."""

    score: float  # larger is better
    seconds: float
    bytes: float

    def beats(self, other: Worth) -> bool:
        """Whether it is at least as good in all three figures, and better in one."""
        no_worse = self.score >= other.score and self.seconds <= other.seconds and self.bytes <= other.bytes
        return no_worse and self != other


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write the page of the runs in these folders."""
    write_whole(out, page([read_run(folder) for folder in folders]), MARK)
    return out


def page(runs: Sequence[PastRun]) -> str:
    if len(runs) > MOST_RUNS:
        raise InputError(f"{len(runs)} runs are too many for one page; name at most {MOST_RUNS}")
    names = _names(runs)
    sections = [("table", "The runs", _table(runs, names)), ("curves", "Curves", _curves(runs, names))]
    graphs = ", ".join(sorted({run.graph for run in runs}))
    return document(f"{len(runs)} runs on {graphs}", _notes(runs), sections, "fullgraph report")


def front(runs: Sequence[PastRun]) -> list[bool]:
    """For each run, whether no other run is at least as good in score, seconds and bytes."""
    worth = [worth_of(run) for run in runs]
    return [own is not None and not any(other is not None and other.beats(own) for other in worth) for own in worth]


def worth_of(run: PastRun) -> Worth | None:
    """The run's best score and its cost; None if the run has no score."""
    scored = [r for r in run.records if r.val is not None]
    if not scored:
        return None
    sign = -1 if run.smaller else 1
    best = max(scored, key=lambda r: sign * (r.val or 0.0))
    until = run.records[: best.epoch]
    return Worth(sign * (best.val or 0.0), sum(r.epoch_s for r in until), float(sum(r.bytes for r in until)))


def _names(runs: Sequence[PastRun]) -> list[str]:
    """The strategy if it distinguishes the runs, else the folder."""
    for names in ([run.strategy for run in runs], [f"{run.strategy}, {run.ranks} ranks" for run in runs]):
        if len(set(names)) == len(runs):
            return names
    return [f"{run.name}" if [r.name for r in runs].count(run.name) == 1 else str(run.folder) for run in runs]


def _notes(runs: Sequence[PastRun]) -> list[Safe]:
    notes = []
    if len({run.graph for run in runs}) > 1:
        notes.append("These runs used different graphs, so their scores cannot be compared.")
    if len({run.metric for run in runs}) > 1:
        notes.append("These runs have different metrics: compare only scores of the same metric.")
    if not all(run.done for run in runs):
        notes.append("Some runs are not finished.")
    return [tag("p", note) for note in notes]


def _table(runs: Sequence[PastRun], names: Sequence[str]) -> list[Safe]:
    rows, named = [], list(names) != [run.strategy for run in runs]
    for run, name, on_front in zip(runs, names, front(runs), strict=True):
        usual = medians(run.records) if run.records else {}
        worth = worth_of(run)
        test = run.outcome.test if run.outcome else None
        rows.append((
            name, tag("strong", "yes", class_="best") if on_front else "no", *([run.strategy] if named else []),
            run.model, str(run.ranks), "none" if test is None else f"{test:.4f}",
            "none" if worth is None else f"{abs(worth.score):.4f}",
            f"{run.outcome.best_epoch} of {run.outcome.epochs}" if run.outcome else f"{len(run.records)}, unfinished",
            seconds(usual.get("epoch_s", 0.0)), seconds(usual.get("wait_s", 0.0)),
            size(usual.get("bytes_per_epoch", 0)), size(sum(r.bytes for r in run.records)),
            "" if worth is None else seconds(worth.seconds), str(run.folder),
        ))  # fmt: skip
    columns = ("run", "on front", *(["strategy"] if named else []), "model", "ranks", "test", "val", "best epoch",
               "epoch", "waiting", "bytes per epoch", "total bytes", "to best", "folder")  # fmt: skip
    words = (
        "A run is on the Pareto front unless another run is at least as good in validation score, training time and "
        "bytes, and better in one of the three."
    )
    return [tag("p", words), table(columns, rows, caption="Runs side by side")]


def _curves(runs: Sequence[PastRun], names: Sequence[str]) -> list[Safe]:
    scored = [(run, name, place) for place, (run, name) in enumerate(zip(runs, names, strict=True)) if run.records]
    if not scored:
        return [tag("p", "No run has finished an epoch.")]
    key = legend([(name, place % COLOURS) for _, name, place in scored], [n for _, n, p in scored if p >= COLOURS])
    figures = []
    for what, value in (("loss", lambda r: r.loss), (scored[0][0].metric, lambda r: r.val)):
        for axis, label, words, used in AXES:
            curves = [
                Line(name, points, place % COLOURS, dashed=place >= COLOURS)
                for run, name, place in scored
                if (points := _points(run.records, used, value))
            ]
            curves = [line for line in curves if axis != "bytes" or line.points[-1][0] > 0]
            if curves:
                name = what if what == "loss" else f"Validation {what}"
                chart = lines(curves, title=f"{name} over {axis}", x=label, y=what, x_words=words,
                              log_x=axis == "bytes")  # fmt: skip
                figures.append(figure(f"{name.capitalize()} over {axis}", chart, below=key))
    return [charts(figures)]


def _points(
    records: Sequence[EpochRecord], used: Running, value: Callable[[EpochRecord], float | None]
) -> list[tuple[float, float]]:
    pairs = zip(used(records), map(value, records), strict=True)
    return [(place, found) for place, found in pairs if found is not None]
