"""The page of one run, in the order of a reader's questions: did it learn, what ran, where did time and bytes go, what
next.
"""

from __future__ import annotations

import time
from pathlib import Path

from fullgraph.lab.html.advice import advice
from fullgraph.lab.html.document import MARK, Safe, document, folded, table, tag, tiles
from fullgraph.lab.html.learned import learned_section
from fullgraph.lab.html.numbers import seconds
from fullgraph.lab.html.past import PastRun, read_run
from fullgraph.lab.html.ranks import cut_section, epoch_section, memory_section
from fullgraph.lab.html.wires import wire_section
from fullgraph.report.record import EpochRecord, medians
from fullgraph.report.tables import PAGE
from fullgraph.storage import write_whole
from fullgraph.words import duration, size


def write_report(folder: Path, out: Path | None = None, *, records: list[EpochRecord] | None = None) -> Path:
    """Write the page of the run in `folder`, there or to `out`; records: its epochs, as in `read_run`."""
    path = out or folder / PAGE
    write_whole(path, page(read_run(folder, records)), MARK)
    return path


def page(run: PastRun) -> str:
    sections = []
    if run.records:
        sections.append(("learning", "Did it learn?", learned_section(run)))
    sections.append(("run", "What ran", _what(run)))
    if run.records or run.profile is not None:
        sections.append(("epoch", "Where the time went", epoch_section(run)))
        sections.append(("wire", "What crossed", wire_section(run)))
    sections.append(("advice", "What to try next", _advice(run)))
    if run.profile is not None:
        sections.append(("cut", "The cut", cut_section(run.profile)))
        sections.append(("memory", "Memory", memory_section(run.profile)))
    state = "" if run.done else ", training" if run.going_on else ", not finished"
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
        scored = [r.val for r in run.records if r.val is not None]
        facts += [(f"validation {run.metric}", f"{scored[-1]:.4f}")] if scored else []
    if run.records:
        usual = medians(run.records)
        facts += [("epoch time", seconds(usual["epoch_s"]))]
        rows = f" (for rows: {seconds(usual['row_wait_s'])})" if "row_wait_s" in usual else ""
        facts += [(f"waiting per epoch{rows}", seconds(usual["wait_s"]))]
        sent = usual["bytes_per_epoch"], usual["grad_bytes_per_epoch"]
        facts += [("sent per epoch", size(sum(sent)))]
    if run.profile is not None:
        facts += [("memory, worst rank", size(max(rank.peak_memory_bytes for rank in run.profile.ranks)))]
    return [tiles(facts), *([] if run.done else [tag("p", _state(run))])]


def _state(run: PastRun) -> str:
    done = f"epoch {len(run.records)} of {run.planned}"
    if not run.going_on:
        return f"It stopped after {done}: fullgraph train --resume {run.folder}"
    ago = max(0.0, time.time() - run.written_s)
    left = medians(run.records)["epoch_s"] * (run.planned - len(run.records)) if run.records else 0.0
    rest = f"; {duration(left)} left, without evaluations" if left else ""
    return f"It is training now: {done}, written {duration(ago)} ago{rest}."


def _advice(run: PastRun) -> list[Safe]:
    found = advice(run)
    if not found:
        return [tag("p", "No figure of this run calls for a change.")]
    return [tag("ul", *(tag("li", text) for text in found), class_="advice")]


def _what(run: PastRun) -> list[Safe]:
    whole = dict(run.result)
    about = [f"{name} {int(whole[f'graph.{name}']):,}" for name in ("nodes", "edges") if f"graph.{name}" in whole]
    trained = sum(record.epoch_s for record in run.records)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.written_s)) if run.written_s else "unknown"
    rows = [
        ("graph", ", ".join([run.graph, *about])), ("model", run.model), ("strategy", run.strategy),
        ("ranks", f"{run.ranks}, partitioned by {run.partitioner}"), ("seed", run.seed),
        ("training", f"{len(run.records)} epochs in {duration(trained)}; last epoch {when}"),
    ]  # fmt: skip
    parts = [table(("run", ""), rows, words=True)]
    words = "This command repeats the run, bit for bit on the same machine with the same versions:"
    parts += [tag("p", words), tag("pre", run.command)]
    if run.profile is not None:
        hosts = [
            (str(number), rank.host, rank.device, str(rank.threads)) for number, rank in enumerate(run.profile.ranks)
        ]
        parts.append(folded("Hosts and versions", Safe(
            table(("rank", "host", "device", "threads"), hosts, words=True, caption="Where it ran")
            + table(("package", "version"), run.versions, words=True, caption="Versions"))))  # fmt: skip
    parts.append(folded("All options", table(("option", "value"), run.options, words=True)))
    if run.result:
        parts.append(folded("result.json", table(("field", "value"), run.result, words=True)))
    return parts
