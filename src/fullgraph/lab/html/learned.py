"""The first section of a run's page: did the model learn?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

from fullgraph.lab.html.charts import Bar, Line, columns, heat, legend, lines
from fullgraph.lab.html.document import Safe, charts, figure, folded, table, tag
from fullgraph.lab.html.numbers import count, percent
from fullgraph.lab.html.numbers import figure as number
from fullgraph.lab.html.past import PastRun
from fullgraph.report.evaluation import Evaluation
from fullgraph.report.record import EpochRecord

MOST_ROWS = 60  # in a table below a chart
MOST_CLASSES = 30  # in the chart of classes
SHARES = ("accuracy", "micro f1", "roc auc", "mrr")  # metrics that are at most 1
WIDE_GAP = 0.1  # training score - validation score
LEAST_GAIN = 2.0  # standard errors


def learned_section(run: PastRun) -> list[Safe]:
    found = [tag("p", verdict(run), class_="verdict"), *(tag("p", text) for text in _remarks(run))]
    figures = [_loss(run)]
    if any(r.val is not None for r in run.records):
        figures.insert(0, _score(run))
    rates = {record.lr for record in run.records}
    if len(rates) > 1:
        curve = Line("learning rate", [(r.epoch, r.lr) for r in run.records], 3)
        figures.append(figure("Learning rate", lines([curve], title="Learning rate over epochs", x="epoch", y="rate")))
    elif rates:
        found.append(tag("p", f"The learning rate was {number(rates.pop())} in every epoch."))
    if run.evaluation is not None:
        figures += _evaluated(run.evaluation)
    return [*found, charts(figures), *_classes(run.evaluation)]


def verdict(run: PastRun) -> str:
    """One sentence: the score beside that of the best constant answer."""
    scored = [r for r in run.records if r.val is not None]
    if not scored:
        return "No score yet: the first evaluation is still to come." if run.going_on else "The run has no score."
    if run.outcome is None or run.evaluation is None:
        last = scored[-1]
        return f"Validation {run.metric} was {last.val:.4f} in epoch {last.epoch}, the last that was evaluated."
    split, evaluation = run.evaluation.split, run.evaluation
    best = next((r for r in scored if r.epoch == run.outcome.best_epoch), scored[-1])
    own, base, rows = getattr(best, split), evaluation.constant.get(split), evaluation.rows.get(split, 0)
    if own is None:
        return f"The model has no {split} score."
    begin = f"{run.metric} {own:.4f} on {count(rows)} {split} {'pairs' if evaluation.kind == 'pairs' else 'rows'}"
    if base is None:
        return f"{begin}."
    gain = (base - own) if run.smaller else (own - base)
    noise = sqrt(max(base * (1 - base), 1e-4) / max(1, rows)) if run.metric in SHARES and 0 <= base <= 1 else 0.0
    learned = gain > LEAST_GAIN * noise
    says = "Yes: " if learned else "No: "
    return f"{says}{begin}; {CONSTANT[evaluation.kind]} {base:.4f}."


CONSTANT = {
    "classes": "answering the commonest class for every node would score",
    "sets": "answering the commonest labels for every node would score",
    "numbers": "answering the mean for every node would score",
    "pairs": "equal scores for all pairs would give",
}


def _remarks(run: PastRun) -> Iterator[str]:
    if run.outcome is None or not run.outcome.best_epoch:
        return
    best = next((r for r in run.records if r.epoch == run.outcome.best_epoch), None)
    if best is None:
        return
    last = run.outcome.epochs
    yield f"The best validation score came in epoch {best.epoch} of {last}; the model of that epoch was kept."
    if best.train is not None and best.val is not None:
        gap = (best.val - best.train) if run.smaller else (best.train - best.val)
        told = f"There, {run.metric} was {best.train:.4f} on training rows and {best.val:.4f} on validation rows"
        wide = run.metric in SHARES and gap > WIDE_GAP
        hint = (
            ": the model fits training rows better than others. More --dropout or --weight-decay may help."
            if wide
            else "."
        )
        yield told + hint


def _score(run: PastRun) -> Safe:
    curves = [
        Line(name, points, colour, dash=colour)
        for colour, name in enumerate(("train", "val", "test"))
        if (points := [(float(r.epoch), value) for r in run.records if (value := getattr(r, name)) is not None])
    ]
    best = run.outcome.best_epoch if run.outcome else 0
    chart = lines(curves, title=f"{run.metric} over epochs", x="epoch", y=run.metric,
                  best=(float(best), f"best: epoch {best}") if best else None)  # fmt: skip
    key = legend([(line.name, line.colour) for line in curves], [line.dash for line in curves])
    about = "Exact, on the whole graph" + ("; smaller is better." if run.smaller else ".")
    numbers = _numbers([r for r in run.records if r.val is not None], ("train", "val", "test"))
    return figure(f"Score: {run.metric}", chart, about=about, below=Safe(key + numbers))


def _loss(run: PastRun) -> Safe:
    curve = Line("loss", [(float(r.epoch), r.loss) for r in run.records], 0)
    chart = lines([curve], title="Loss over epochs", x="epoch", y="loss")
    return figure("Loss", chart, about="Mean over the training rows.", below=_numbers(run.records, ("loss",)))


def _numbers(records: Sequence[EpochRecord], names: tuple[str, ...]) -> Safe:
    """The same numbers as a table, with a readable number of epochs."""
    every = -(-len(records) // MOST_ROWS)
    rows = [
        (str(r.epoch), *("" if (value := getattr(r, name)) is None else f"{value:.4f}" for name in names))
        for place, r in enumerate(records)
        if place % every == 0 or place == len(records) - 1
    ]
    return folded("Numbers", table(("epoch", *names), rows))


def _evaluated(own: Evaluation) -> list[Safe]:
    """The matrix of classes, the histogram of errors, or that of probabilities."""
    rows = f"{own.split} rows"
    if own.confusion and len(own.confusion) <= MOST_CLASSES:
        names = _names(own)
        shares = [[cell / max(1, sum(row)) for cell in row] for row in own.confusion]
        chart = heat(
            shares, title="Predictions by label", x="prediction", y="label", rows=names, columns=names,
            shown=lambda share: f"{100 * share:.0f}",
            words=lambda r, c: f"{names[r]} predicted as {names[c]}: {own.confusion[r][c]:,}, {percent(shares[r][c])}",
        )  # fmt: skip
        return [
            figure("Confusion matrix", chart, about=f"Percent of each label's {rows}; a row of the chart is a label.")
        ]
    figures = []
    for name, bins in own.bins.items():
        ends = list(zip(own.limits[:-1], own.limits[1:], strict=True))
        bars = [
            Bar(number((low + high) / 2) if own.kind == "numbers" else f"{(low + high) / 2:.2f}",
                [(float(value), 0, f"{number(low)} to {number(high)}: {count(value)}")])
            for (low, high), value in zip(ends, bins, strict=True)
        ]  # fmt: skip
        title = "Errors" if own.kind == "numbers" else f"Probability of pairs that are {name}"
        x = "prediction - truth" if own.kind == "numbers" else "predicted probability of an edge"
        about = "The outermost bars also hold all larger errors." if own.kind == "numbers" else ""
        figures.append(figure(title, columns(bars, title=title, x=x, y=rows), about=about))
    return figures


def _names(own: Evaluation) -> list[str]:
    return [own.names[place] if place < len(own.names) else str(place) for place in range(len(own.labelled))]


def _classes(own: Evaluation | None) -> list[Safe]:
    """Precision and recall by class, the worst recall first."""
    if own is None or not own.labelled:
        return []
    names = _names(own)
    order = sorted(range(len(names)), key=lambda c: own.right[c] / own.labelled[c] if own.labelled[c] else 2.0)
    rows = [
        (names[c], count(own.labelled[c]), count(own.predicted[c]), _share(own.right[c], own.predicted[c]),
         _share(own.right[c], own.labelled[c]))
        for c in order
    ]  # fmt: skip
    head = ("class", f"{own.split} rows", "predicted", "precision", "recall")
    whole = table(head, rows, caption=f"By class, on {own.split} rows; the class with the lowest recall first")
    return [whole if len(rows) <= MOST_CLASSES else folded(f"{len(rows)} classes", whole)]


def _share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else "none"
