"""The page section of messages: halo rows by layer and direction, gradients of weights, bits and lateness."""

from __future__ import annotations

from collections.abc import Callable

from fullgraph.lab.html.charts import Bar, Line, legend, lines, rows
from fullgraph.lab.html.document import Safe, charts, figure, table, tag
from fullgraph.lab.html.numbers import count, percent
from fullgraph.lab.html.numbers import figure as number
from fullgraph.lab.html.past import PastRun
from fullgraph.report.profile import Bin, Profile
from fullgraph.report.record import medians
from fullgraph.words import size

FLAT = 0.01  # a curve that varies by less than this share is told as a number


def wire_section(run: PastRun) -> list[Safe]:
    """Bytes of rows and of gradients; by layer and direction, sent and predicted; bits and lateness over the run."""
    found = [_sent(run)] if run.records else []
    return found + (_by_layer(run, run.profile) if run.profile is not None else [])


def _sent(run: PastRun) -> Safe:
    usual = medians(run.records)
    rows_sent, weights = usual["bytes_per_epoch"], usual["grad_bytes_per_epoch"]
    whole = rows_sent + weights
    if not whole:
        return tag("p", "Nothing crosses between ranks in an epoch.")
    text = (
        f"Per epoch, all ranks together sent {size(whole)}: {size(rows_sent)} of halo rows and their gradients, and "
        f"{size(weights)} ({percent(weights / whole)}) for the gradients of weights. A strategy changes only the first."
    )
    return tag("p", text)


def _by_layer(run: PastRun, profile: Profile) -> list[Safe]:
    flows: dict[tuple[str, str], list[int]] = {}
    for rank in profile.ranks:
        for flow in rank.traffic:
            sums = flows.setdefault((flow.channel, flow.way), [0] * 5)
            fields = (flow.messages, flow.rows, flow.numbers, flow.bytes, flow.expected)
            flows[flow.channel, flow.way] = [a + b for a, b in zip(sums, fields, strict=True)]
    if not flows:
        return [tag("p", "No rows crossed between ranks.")]
    epochs = max(1, sum(bin.epochs for bin in profile.ranks[0].bins))
    figures, told = [_bytes(flows, epochs)], [_lateness(profile)]
    for flat, drawn in (_bits(profile),):
        told += [flat] if flat else []
        figures += [drawn] if drawn is not None else []
    late = [(float(r.epoch), r.late) for r in run.records if r.late is not None]
    if 0 < len(late) < 3:
        told.append(f"In epoch {late[-1][0]:.0f}, late rows were off by {percent(late[-1][1])} of fresh ones.")
    elif late:
        chart = lines([Line("off by", late, 2)], title="How far late rows are from fresh ones, over epochs", x="epoch",
                      y="|late - fresh| / |fresh|", y_words=percent, from_zero=True)  # fmt: skip
        about = "Measured every 20 epochs, on rows before any dropout."
        figures.append(figure("How far late rows are off", chart, about=about))
    cells = [
        (f"{channel} {way}", count(messages), count(rows), f"{8 * sent / numbers:.3g}" if numbers else "",
         size(sent / epochs), size(expected / epochs), _agreed(sent, expected))
        for (channel, way), (messages, rows, numbers, sent, expected) in sorted(flows.items())
    ]  # fmt: skip
    names = (
        "channel and direction",
        "messages",
        "rows",
        "bits per number",
        "sent per epoch",
        "predicted",
        "sent / predicted",
    )
    return [tag("p", " ".join(told)), charts(figures), table(names, cells, caption="Sums over ranks")]


def _agreed(sent: int, expected: int) -> str:
    return f"{sent / expected:.4g}" if expected else ""


def _bytes(flows: dict[tuple[str, str], list[int]], epochs: int) -> Safe:
    bars = []
    for (channel, way), (_, _, numbers, sent, expected) in sorted(flows.items()):
        name = f"{channel} {way}"
        what = f"{name}: {size(sent / epochs)} per epoch, {8 * sent / max(1, numbers):.3g} bits per number"
        bars.append(Bar(_short(channel, way), [(sent / epochs, 0, what)]))
        bars.append(Bar("predicted", [(expected / epochs, 6, f"{name}: {size(expected / epochs)} predicted")]))
    chart = rows(bars, title="Bytes by layer and direction, sent and predicted", x="bytes per epoch", x_words=size,
                 thick=12.0)  # fmt: skip
    about = "Sent as encoded; predicted from the cut, the schedule and the codec alone."
    return figure("Bytes by layer and direction", chart, about=about, below=legend([("sent", 0), ("predicted", 6)]))


def _short(channel: str, way: str) -> str:
    return f"{channel.partition('/')[2] or channel} {'fwd' if way == 'forward' else 'bwd'}"[-22:]


def _over(profile: Profile, value: Callable[[Bin], float | None]) -> list[tuple[float, float]]:
    """A number by epoch, computed from the bins of all ranks."""
    points, first = list[tuple[float, float]](), profile.first_epoch
    for place in range(min(len(rank.bins) for rank in profile.ranks)):
        here = [rank.bins[place] for rank in profile.ranks]
        found = value(sum(here[1:], here[0]))
        if found is not None:
            points.append((float(first), found))
        first += here[0].epochs
    return points


def _bits(profile: Profile) -> tuple[str, Safe | None]:
    """The bits per number: a sentence if they never change, else a chart."""
    points = _over(profile, lambda total: 8 * total.bytes / total.numbers if total.numbers else None)
    values = [value for _, value in points]
    if not values:
        return "", None
    if max(values) - min(values) <= FLAT * max(values):
        return f"Rows took {number(values[-1])} bits per number in every epoch.", None
    chart = lines([Line("bits per number", points, 3)], title="Bits per number on the wire, over epochs", x="epoch",
                  y="bits per number", from_zero=True)  # fmt: skip
    said = f" At the end the rate was {32 / points[-1][1]:.3g}." if points[-1][1] else ""
    about = f"Bytes sent / numbers given, all layers and both directions; b bits are a rate of 32 / b.{said}"
    return "", figure("Bits per number", chart, about=about)


def _lateness(profile: Profile) -> str:
    """How late rows were. A bin has the sum of its epochs' ages, and the first epochs have no old rows to read."""
    steps = max((-(-bin.lag // bin.epochs) for rank in profile.ranks for bin in rank.bins), default=0)
    if not steps:
        return "Every row was read in the step that sent it."
    return f"Rows were read up to {steps} step{'s' * (steps > 1)} after they were sent."
