"""The page of one run."""

from __future__ import annotations

from pathlib import Path

from fullgraph.lab.html.advice import advice
from fullgraph.lab.html.charts import Line, legend, lines
from fullgraph.lab.html.document import MARK, Safe, charts, document, figure, folded, table, tag, tiles
from fullgraph.lab.html.numbers import seconds
from fullgraph.lab.html.past import PastRun, read_run
from fullgraph.lab.html.ranks import cut_section, epoch_section, memory_section, wire_section
from fullgraph.report.record import EpochRecord, medians
from fullgraph.report.tables import PAGE
from fullgraph.storage import write_whole
from fullgraph.words import size

MOST_ROWS = 60  # in a table below a chart


def write_report(folder: Path, out: Path | None = None, *, records: list[EpochRecord] | None = None) -> Path:
    """Write the page of the run in `folder`, there or to `out`; records: its epochs, as in `read_run`."""
    path = out or folder / PAGE
    write_whole(path, page(read_run(folder, records)), MARK)
    return path


def page(run: PastRun) -> str:
    sections = [("advice", "What stands out", _advice(run)), ("run", "What ran", _what(run))]
    if run.records:
        sections.append(("learning", "Learning", [_learning(run)]))
    if run.profile is not None:
        sections.append(("epoch", "Where an epoch went", epoch_section(run, run.profile)))
        sections.append(("wire", "What crossed", wire_section(run, run.profile)))
        sections.append(("cut", "The cut", cut_section(run.profile)))
        sections.append(("memory", "Memory", memory_section(run.profile)))
    state = "" if run.done else ", not finished"
    title = f"{run.strategy} on {run.graph}: {run.model}, {run.ranks} rank{'s' * (run.ranks != 1)}{state}"
    return document(title, _head(run), sections, f"fullgraph, run folder {run.folder}")


def _head(run: PastRun) -> list[Safe]:
    facts: list[tuple[str, str]] = []
    if run.outcome is not None:
        best = run.outcome.test
        facts += [(f"test {run.metric}", "none" if best is None else f"{best:.4f}")]
        facts += [("best epoch", f"{run.outcome.best_epoch} of {run.outcome.epochs}")]
    else:
        facts += [("epochs", f"{len(run.records)} of {run.planned}")]
    if run.records:
        usual = medians(run.records)
        facts += [("epoch time", seconds(usual["epoch_s"])), ("exposed wait", seconds(usual["wait_s"]))]
        facts += [("bytes per epoch", size(usual["bytes_per_epoch"]))]
    if run.profile is not None:
        facts += [("memory, worst rank", size(max(rank.peak_memory_bytes for rank in run.profile.ranks)))]
    go_on = f"It stopped after epoch {len(run.records)} of {run.planned}: fullgraph train --resume {run.folder}"
    return [tiles(facts), *([] if run.done else [tag("p", go_on)])]


def _advice(run: PastRun) -> list[Safe]:
    found = advice(run)
    if not found:
        return [tag("p", "No figure calls for a change.")]
    return [tag("ul", *(tag("li", text) for text in found), class_="advice")]


def _what(run: PastRun) -> list[Safe]:
    words = "This command repeats the run, bit for bit on the same machine with the same versions:"
    parts = [tag("p", words), tag("pre", run.command)]
    if run.profile is not None:
        rows = [
            (str(number), rank.host, rank.device, str(rank.threads)) for number, rank in enumerate(run.profile.ranks)
        ]
        parts.append(table(("rank", "host", "device", "threads"), rows, words=True, caption="Where it ran"))
        parts.append(table(("package", "version"), run.versions, words=True, caption="Versions"))
    parts.append(folded("All options", table(("option", "value"), run.options, words=True)))
    if run.result:
        parts.append(folded("result.json", table(("field", "value"), run.result, words=True)))
    return parts


def _learning(run: PastRun) -> Safe:
    records = run.records
    loss = lines([Line("loss", [(r.epoch, r.loss) for r in records], 0)], title="Loss over epochs", x="epoch", y="loss")
    figures = [figure("Loss", loss, about="Mean over the training nodes.", below=_numbers(records, ("loss",)))]
    curves = [
        Line(name, points, colour)
        for colour, name in enumerate(("train", "val", "test"))
        if (points := [(r.epoch, value) for r in records if (value := getattr(r, name)) is not None])
    ]
    if curves:
        scores = lines(curves, title=f"{run.metric} over epochs", x="epoch", y=run.metric)
        key = legend([(line.name, line.colour) for line in curves])
        about = "Exact, on the whole graph" + ("; smaller is better." if run.smaller else ".")
        numbers = _numbers([r for r in records if r.val is not None], ("train", "val", "test"))
        figures.append(figure(f"Score: {run.metric}", scores, about=about, below=Safe(key + numbers)))
    return charts(figures)


def _numbers(records: list[EpochRecord], names: tuple[str, ...]) -> Safe:
    """The same numbers as a table, with a readable number of epochs."""
    every = -(-len(records) // MOST_ROWS)
    rows = [
        (str(r.epoch), *("" if (value := getattr(r, name)) is None else f"{value:.4f}" for name in names))
        for place, r in enumerate(records)
        if place % every == 0 or place == len(records) - 1
    ]
    return folded("Numbers", table(("epoch", *names), rows))
