"""trace.json: the spans of all ranks as Chrome trace events, which Perfetto and chrome://tracing draw.

A process is a rank, and a thread is one of its rows. An arrow goes from the send of a message to each read of it, even
if the read is in a later step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from fullgraph.report.meter import Tally
from fullgraph.report.spans import COMPUTE, Rows

Event = dict[str, Any]
MESSAGES = ("send", "encode", "decode", "wait")  # kinds of spans that belong to one message
TINY = 0.002  # microseconds; an arrow must end inside a slice
NAMES = {"forward_backward": "forward and backward", "sum": "sum of gradients", "wait": "wait", "step": "epoch"}


class Slice(NamedTuple):
    """A span in seconds of its host's clock, ready to be sent to another rank as JSON."""

    kind: str
    row: str
    start: float
    end: float
    step: int  # the step that did the work
    about: str  # the layer, or the message's channel and direction
    message: str  # the message's whole key; empty: not part of a message
    sent: int  # the step that computed the message's rows
    peers: tuple[int, ...]


def slices_of(tally: Tally, rows: Rows) -> Iterator[Slice]:
    """A step's spans; the first is the whole step."""
    yield Slice("step", COMPUTE, tally.began, tally.began + tally.step_s, tally.number, "", "", -1, ())
    for span in tally.spans:
        start, end = tally.when(span.interval)
        about = span.about if span.key is None else f"{span.key.channel} {span.key.way}"
        key = span.key if span.kind in MESSAGES else None
        yield Slice(
            span.kind, rows.name(span.row), tally.began + start, tally.began + end, tally.number, about,
            "" if key is None else str(key), -1 if key is None else key.step, span.peers,
        )  # fmt: skip


def trace_events(ranks: Sequence[Sequence[Slice]], hosts: Sequence[str]) -> dict[str, Any]:
    """The contents of trace.json."""
    shifts = _shifts(ranks, hosts)
    zero = min((part.start - shift for own, shift in zip(ranks, shifts, strict=True) for part in own), default=0.0)
    events: list[Event] = []
    sends: dict[tuple[str, int], list[tuple[Event, Slice]]] = {}  # by message and reader
    reads: list[tuple[Event, Slice, int]] = []
    for rank, (own, shift) in enumerate(zip(ranks, shifts, strict=True)):
        names = sorted({part.row for part in own}, key=lambda row: (row != COMPUTE, row))
        events += _named(rank, hosts[rank], names)
        for part in own:
            event = _slice(part, rank, names.index(part.row), zero + shift)
            events.append(event)
            if part.kind == "send":
                for peer in part.peers:
                    sends.setdefault((part.message, peer), []).append((event, part))
            elif part.kind == "wait" and part.message:
                reads.append((event, part, rank))
    events += _arrows(sends, reads)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _shifts(ranks: Sequence[Sequence[Slice]], hosts: Sequence[str]) -> list[float]:
    """How many seconds each rank's clock is ahead of rank 0's: 0 on one machine, else by the ends of gradient
    all-reduces.
    """
    ends = [{part.step: part.end for part in own if part.kind == "sum"} for own in ranks]
    shifts = []
    for host, own in zip(hosts, ends, strict=True):
        off = [own[step] - ends[0][step] for step in own if step in ends[0]] if host != hosts[0] else []
        shifts.append(median(off) if off else 0.0)
    return shifts


def _named(rank: int, host: str, rows: Sequence[str]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank} on {host}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for number, row in enumerate(rows):
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": row}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": number, "args": {"sort_index": number}}


def _slice(part: Slice, rank: int, row: int, zero: float) -> Event:
    name = NAMES.get(part.kind, part.kind)
    name = f"{name} {part.step + 1}" if part.kind == "step" else f"{name} {part.about}".strip()
    about: dict[str, Any] = {"epoch": part.step + 1}
    if part.message:
        about |= {"message": part.message, "sent in epoch": part.sent + 1}
    if part.peers:
        about["ranks"] = list(part.peers)
    return {
        "ph": "X", "name": name, "cat": part.kind, "pid": rank, "tid": row,
        "ts": round((part.start - zero) * 1e6, 3), "dur": max(TINY, round((part.end - part.start) * 1e6, 3)),
        "args": about,
    }  # fmt: skip


def _arrows(
    sends: dict[tuple[str, int], list[tuple[Event, Slice]]], reads: list[tuple[Event, Slice, int]]
) -> Iterator[Event]:
    """Arrows from each send to every read of it; a number joins the two ends of an arrow."""
    number = 0
    for read, part, rank in reads:
        for send, sent in sends.get((part.message, rank), ()):
            number += 1
            late = part.step - sent.sent
            name = sent.about if not late else f"{sent.about}, {late} epoch{'s' * (late > 1)} late"
            both = {"name": name, "cat": "message", "id": number, "args": {"late": late}}
            yield {"ph": "s", **both, "pid": send["pid"], "tid": send["tid"], "ts": send["ts"]}
            at = round(read["ts"] + read["dur"] - TINY / 2, 3)
            yield {"ph": "f", "bp": "e", **both, "pid": read["pid"], "tid": read["tid"], "ts": at}
