"""The page of several runs: for each graph a verdict, scores against seconds and bytes, a table, and curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from fullgraph.errors import InputError
from fullgraph.lab.html.charts import Line, Words, dots, legend, lines
from fullgraph.lab.html.document import COLOURS, MARK, Safe, charts, document, figure, table, tag
from fullgraph.lab.html.learned import SHARES
from fullgraph.lab.html.numbers import figure as number
from fullgraph.lab.html.numbers import seconds
from fullgraph.lab.html.past import PastRun, read_run
from fullgraph.report.record import EpochRecord, medians
from fullgraph.report.settings import Settings, Spread, by_seed, differing, short
from fullgraph.storage import write_whole
from fullgraph.words import count, size

MOST_RUNS = 24
MOST_COLUMNS = 8  # of options that differ
SAME_TIME = 0.05  # share of an epoch; times of one run vary as much

Running = Callable[[Sequence[EpochRecord]], list[float]]  # what a run has used, up to each epoch
AXES: tuple[tuple[str, str, Words, Running], ...] = (
    ("epochs", "epoch", number, lambda records: [float(r.epoch) for r in records]),
    ("seconds", "seconds of training", seconds, lambda records: list(accumulate(r.epoch_s for r in records))),
    ("bytes", "bytes sent, rows and weights", size, lambda records: list(accumulate(map(sent, records)))),
)


def sent(record: EpochRecord) -> float:
    """All that an epoch sends: rows, and gradients of weights."""
    return float(record.bytes + record.grad_bytes)


class Worth(NamedTuple):
    """A best score, and the cost until then."""

    score: float  # larger is better
    seconds: float
    bytes: float
    noise: float = 0.0  # scores this close are a tie

    def beats(self, other: Worth) -> bool:
        """Whether it is at least as good in all three figures, and better in one; small differences are ties."""
        noise = max(self.noise, other.noise)
        faster = self.seconds < (1 - SAME_TIME) * other.seconds
        no_slower = self.seconds <= (1 + SAME_TIME) * other.seconds
        if self.score < other.score - noise or not no_slower or self.bytes > other.bytes:
            return False
        return self.score > other.score + noise or faster or self.bytes < other.bytes


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only."""

    name: str
    runs: Sequence[PastRun]
    worth: Worth | None  # None: a run has no score
    val: Spread | None
    test: Spread | None

    @classmethod
    def of(cls, name: str, runs: Sequence[PastRun]) -> Group:
        each = [worth_of(run) for run in runs]
        known = [worth for worth in each if worth is not None]
        tests = [run.outcome.test for run in runs if run.outcome is not None and run.outcome.test is not None]
        test = Spread.of(tests) if tests else None
        if not known or len(known) < len(each):
            return cls(name, runs, None, None, test)
        score, taken, given = (mean(values) for values in zip(*(worth[:3] for worth in known), strict=True))
        spread = Spread.of([worth.score for worth in known])
        noise = known[0].noise if spread.half is None else spread.half
        return cls(name, runs, Worth(score, taken, given, noise), Spread(abs(score), spread.half), test)


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write the page of the runs in these folders."""
    write_whole(out, page([read_run(folder) for folder in folders]), MARK)
    return out


def page(runs: Sequence[PastRun]) -> str:
    if len(runs) > MOST_RUNS:
        raise InputError(f"{len(runs)} runs are too many for one page; name at most {MOST_RUNS}")
    same: dict[tuple[str, str], list[PastRun]] = {}
    for run in runs:
        same.setdefault((run.graph, run.metric), []).append(run)
    several, sections = len(same) > 1, list[tuple[str, str, Sequence[Safe]]]()
    for place, ((graph, metric), there) in enumerate(same.items()):
        on, end = (f" on {graph}, {metric}", f"-{place}") if several else ("", "")
        groups = grouped(there)
        sections.append((f"table{end}", f"The runs{on}", _table(groups)))
        sections.append((f"curves{end}", f"Curves{on}", _curves(groups, on)))
    graphs = ", ".join(sorted({run.graph for run in runs}))
    return document(f"{len(runs)} runs on {graphs}", _notes(runs), sections, "fullgraph report")


def grouped(runs: Sequence[PastRun]) -> list[Group]:
    """Runs by settings, with names that distinguish them."""
    settings = [dict(run.options) or {"folder": str(run.folder)} for run in runs]
    places = by_seed(settings)
    first = [runs[group[0]] for group in places]
    names = _names(first, [settings[group[0]] for group in places])
    return [Group.of(name, [runs[at] for at in group]) for name, group in zip(names, places, strict=True)]


def front(worths: Sequence[Worth | None]) -> list[bool]:
    """For each one, whether no other one of the same graph is at least as good in score, seconds and bytes."""
    return [own is not None and not any(other is not None and other.beats(own) for other in worths) for own in worths]


def worth_of(run: PastRun) -> Worth | None:
    """The run's best score and its cost; None if the run has no score."""
    scored = [r for r in run.records if r.val is not None]
    if not scored:
        return None
    sign = -1 if run.smaller else 1
    best = max(scored, key=lambda r: sign * (r.val or 0.0))
    until, score = run.records[: best.epoch], best.val or 0.0
    rows = run.evaluation.rows.get("val", 0) if run.evaluation is not None else 0
    noise = 1.96 * sqrt(score * (1 - score) / rows) if rows and run.metric in SHARES and 0 <= score <= 1 else 0.0
    return Worth(sign * score, sum(r.epoch_s for r in until), sum(map(sent, until)), noise)


def _names(runs: Sequence[PastRun], settings: Sequence[Settings]) -> list[str]:
    """The shortest names that distinguish the runs: the strategy, with ranks, with options; else the folder."""
    options = differing(settings)
    told = [", ".join(f"{short(name)}={one[name]}" for name in options[:2] if name in one) for one in settings]
    shared = Counter(run.strategy for run in runs)
    for names in (
        [run.strategy for run in runs],
        [f"{run.strategy}, {count(run.ranks, 'rank')}" for run in runs],
        [f"{run.strategy}, {run.model}" for run in runs],
        [
            f"{run.strategy}, {text}" if shared[run.strategy] > 1 else run.strategy
            for run, text in zip(runs, told, strict=True)
        ],
    ):
        if len(set(names)) == len(runs):
            return names
    return [f"{run.name}" if [r.name for r in runs].count(run.name) == 1 else str(run.folder) for run in runs]


def _notes(runs: Sequence[PastRun]) -> list[Safe]:
    notes = []
    if len({run.graph for run in runs}) > 1:
        notes.append(
            "These runs used different graphs, so their scores cannot be compared: each graph has its section."
        )
    if len({run.metric for run in runs}) > 1:
        notes.append("These runs have different metrics, so their scores cannot be compared.")
    if not all(run.done for run in runs):
        notes.append("Some runs are not finished.")
    return [tag("p", note) for note in notes]


def _verdict(groups: Sequence[Group]) -> str:
    """The best score, and which others cannot be told from it."""
    scored = [(group, group.worth) for group in groups if group.worth is not None]
    if len(scored) < 2:
        return ""
    best, top = max(scored, key=lambda pair: pair[1].score)
    near = [g for g, worth in scored if g is not best and worth.score >= top.score - max(top.noise, worth.noise)]
    begin = f"Best validation {best.runs[0].metric}: {best.name}, {best.val}"
    if not near:
        return f"{begin}."
    tied = ", ".join(group.name for group in near)
    fastest = min([best, *near], key=lambda group: group.worth.seconds if group.worth else 0.0)
    took = seconds(fastest.worth.seconds) if fastest.worth else ""
    return f"{begin}; the difference to {tied} is within the noise. Of these, {fastest.name} was fastest ({took})."


def _table(groups: Sequence[Group]) -> list[Safe]:
    runs = [group.runs[0] for group in groups]
    settings = [dict(run.options) for run in runs]
    options = differing(settings)[:MOST_COLUMNS]
    labels = [short(name) for name in options]
    heads = [label if labels.count(label) == 1 else name for label, name in zip(labels, options, strict=True)]
    on_front, rows = front([group.worth for group in groups]), []
    for group, own, is_best in zip(groups, settings, on_front, strict=True):
        run, worth = group.runs[0], group.worth
        cost = ("", "") if worth is None else (seconds(worth.seconds), size(worth.bytes))
        usual = [medians(one.records) for one in group.runs if one.records]
        spent = {name: mean(one[name] for one in usual) for name in usual[0]} if usual else {}
        rows.append((
            group.name, tag("strong", "yes", class_="best") if is_best else "no",
            *((run.strategy,) if group.name != run.strategy else ("",)), run.model, str(run.ranks),
            *(own.get(name, "") for name in options), str(len(group.runs)),
            "none" if group.test is None else str(group.test), "none" if group.val is None else str(group.val),
            f"{run.outcome.best_epoch} of {run.outcome.epochs}" if run.outcome else f"{len(run.records)}, unfinished",
            seconds(spent.get("epoch_s", 0.0)), seconds(spent.get("wait_s", 0.0)),
            size(spent.get("bytes_per_epoch", 0)), size(spent.get("grad_bytes_per_epoch", 0)),
            *cost, ", ".join(str(one.folder) for one in group.runs),
        ))  # fmt: skip
    columns = ("run", "on front", "strategy", "model", "ranks", *heads, "seeds", "test", "val", "best epoch", "epoch",
               "waiting", "rows per epoch", "weights per epoch", "to best", "sent to best", "folder")  # fmt: skip
    shown = [place for place, name in enumerate(columns) if name != "strategy" or any(row[place] for row in rows)]
    words = (
        "A run is on the Pareto front unless another run on the same graph is at least as good in validation score, "
        f"training time and bytes sent, and better in one. Scores closer than their error, and times within "
        f"{100 * SAME_TIME:.0f} %, count as equal. The error is the 95 % interval over seeds, or with one seed that of "
        "the number of validation rows."
    )
    whole = table(
        [columns[at] for at in shown], [[row[at] for at in shown] for row in rows], caption="Runs side by side"
    )
    told = _verdict(groups)
    verdict = [tag("p", told, class_="verdict")] if told else []
    return [*verdict, charts(_scatter(groups, on_front)), tag("p", words), whole]


def _scatter(groups: Sequence[Group], on_front: Sequence[bool]) -> list[Safe]:
    """Scores against seconds and against bytes."""
    placed = enumerate(zip(groups, on_front, strict=True))
    known = [(group, group.worth, ring, place) for place, (group, ring) in placed if group.worth is not None]
    if len(known) < 2:
        return []
    metric, rings, figures = known[0][0].runs[0].metric, [ring for _, _, ring, _ in known], []
    about = "At the best validation score. A line is its error, a ring marks the Pareto front."
    for name, words, value in (("seconds", seconds, "seconds"), ("bytes sent", size, "bytes")):
        points = [(group.name, float(getattr(worth, value)), abs(worth.score)) for group, worth, _, _ in known]
        if not any(place for _, place, _ in points):
            continue
        chart = dots(points, title=f"Validation {metric} against {name}", x=f"{name} to the best score", y=metric,
                     x_words=words, log_x=value == "bytes", spread=[worth.noise for _, worth, _, _ in known],
                     colours=[place % COLOURS for *_, place in known],
                     rings=rings)  # fmt: skip
        figures.append(figure(f"Validation {metric} against {name}", chart, about=about))
    return figures


def _curves(groups: Sequence[Group], on: str) -> list[Safe]:
    known = [(group, place) for place, group in enumerate(groups) if all(run.records for run in group.runs)]
    if not known:
        return [tag("p", "No run has finished an epoch.")]
    key = legend([(group.name, place % COLOURS) for group, place in known], [place for _, place in known])
    figures = []
    for what, value in (("loss", lambda r: r.loss), (groups[0].runs[0].metric, lambda r: r.val)):
        for axis, label, words, used in AXES:
            curves = [
                Line(group.name, points, place % COLOURS, dash=place)
                for group, place in known
                if (points := _mean_points(group.runs, used, value))
            ]
            curves = [line for line in curves if axis != "bytes" or line.points[-1][0] > 0]
            if curves:
                name = what if what == "loss" else f"Validation {what}"
                chart = lines(curves, title=f"{name} over {axis}", x=label, y=what, x_words=words,
                              log_x=axis == "bytes")  # fmt: skip
                figures.append(figure(f"{name[0].upper()}{name[1:]} over {axis}{on}", chart, below=key))
    return [charts(figures)]


def _mean_points(
    runs: Sequence[PastRun], used: Running, value: Callable[[EpochRecord], float | None]
) -> list[tuple[float, float]]:
    """A curve, the mean over seeds in the epochs that all of them have."""
    each = []
    for run in runs:
        pairs = zip(run.records, used(run.records), map(value, run.records), strict=True)
        each.append({r.epoch: (place, found) for r, place, found in pairs if found is not None})
    shared = [epoch for epoch in each[0] if all(epoch in one for one in each)]
    return [(mean(one[e][0] for one in each), mean(one[e][1] for one in each)) for e in shared]
