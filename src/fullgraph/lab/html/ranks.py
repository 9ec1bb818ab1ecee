"""Page sections over all ranks: the time of epochs, traffic, the partition, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fullgraph.lab.html.advice import warm
from fullgraph.lab.html.charts import Bar, Block, Lane, Line, columns, heat, legend, lines, rows, timeline
from fullgraph.lab.html.document import Safe, charts, figure, folded, table, tag
from fullgraph.lab.html.numbers import count, percent, seconds
from fullgraph.lab.html.past import PastRun
from fullgraph.report.profile import Bin, Profile, RankProfile
from fullgraph.words import size

# Parts of an epoch: name, colour, field of a bin.
PARTS = (("compute", 0, "compute_s"), ("pack and unpack", 1, "pack_s"), ("exposed wait", 2, "wait_s"),
         ("gradient all-reduce", 3, "sum_s"))  # fmt: skip
BESIDE = (("encode and decode", 4, "code_s"), ("hidden communication", 5, "hidden_s"))
PIECES = {"compute": 0, "pack": 1, "unpack": 1, "wait": 2, "sum": 3, "update": 6, "encode": 4, "decode": 4}
MOST_RANKS = 64  # in a chart
MOST_LANES = 8  # ranks in a timeline, and charts over the run
MOST_CELLS = 48


def shown(profile: Profile, most: int) -> list[tuple[int, RankProfile]]:
    """The ranks that a chart has room for: the slowest ones, in order."""
    numbered = list(enumerate(profile.ranks))
    if len(numbered) <= most:
        return numbered
    slowest = sorted(numbered, key=lambda pair: -sum(bin.compute_s for bin in pair[1].bins))[:most]
    return sorted(slowest)


def epoch_section(run: PastRun, profile: Profile) -> list[Safe]:
    """Bars by rank, a timeline of a typical epoch, bars over the run."""
    epochs = sum(bin.epochs for bin in profile.ranks[0].bins) if profile.ranks else 0
    if not epochs:
        return [tag("p", "No epoch was measured.")]
    words = (
        f"Epochs {profile.first_epoch} to {profile.first_epoch + epochs - 1}. An epoch consists of compute, packing, "
        "exposed waits and gradient all-reduces, which include waiting for the last rank. Other threads encode and "
        "decode at the same time. Hidden communication: messages were on their way while the rank worked."
    )
    figures = [_by_rank(profile), _epochs(run)]
    if profile.typical_epoch:
        figures.append(_typical(profile))
    figures += _over_the_run(profile)
    return [tag("p", words), charts(figures)]


def _by_rank(profile: Profile) -> Safe:
    bars, numbers = [], []
    for number, rank in shown(profile, MOST_RANKS):
        total = warm(rank.bins)
        bars.append(_bar(f"rank {number}", total, PARTS))
        bars.append(_bar("other threads", total, BESIDE))
        every = [getattr(total, field) / total.epochs for _, _, field in (*PARTS, *BESIDE)]
        numbers.append((str(number), seconds(total.step_s / total.epochs), *map(seconds, every)))
    names = ("rank", "epoch", *(name for name, _, _ in (*PARTS, *BESIDE)))
    chart = rows(bars, title="Mean epoch of every rank, by part", x="seconds", x_words=seconds, thick=13.0)
    below = Safe(_key((*PARTS, *BESIDE)) + folded("Numbers", table(names, numbers)))
    return figure("A mean epoch, by rank", chart, below=below)


def _epochs(run: PastRun) -> Safe:
    curves = [
        Line("epoch", [(r.epoch, r.epoch_s) for r in run.records], 0),
        Line("waiting", [(r.epoch, r.wait_s) for r in run.records], 2),
    ]
    chart = lines(curves, title="Seconds of an epoch, over epochs", x="epoch", y="per epoch", y_words=seconds,
                  from_zero=True)  # fmt: skip
    key = legend([(line.name, line.colour) for line in curves])
    about = "The slowest rank of each epoch. Waits include the waits in gradient all-reduces."
    return figure("Epochs", chart, about=about, below=key)


def _bar(label: str, total: Bin, parts: Sequence[tuple[str, int, str]]) -> Bar:
    pieces = []
    for name, colour, field in parts:
        value = getattr(total, field) / total.epochs
        share = getattr(total, field) / total.step_s if total.step_s else 0.0
        pieces.append((value, colour, f"{label}, {name}: {seconds(value)}, {percent(share)} of an epoch"))
    return Bar(label, pieces)


def _key(parts: Sequence[tuple[str, int, str]]) -> Safe:
    return legend([(name, colour) for name, colour, _ in parts])


def _typical(profile: Profile) -> Safe:
    lanes = []
    for number, rank in shown(profile, MOST_LANES):
        names = sorted({piece.row for piece in rank.typical}, key=lambda row: (row != "compute", row))
        for row in names:
            blocks = [
                Block(p.start, p.end, PIECES.get(p.kind, 6), f"{p.kind} {p.about}: {seconds(p.end - p.start)}")
                for p in rank.typical
                if p.row == row
            ]
            first = row == names[0]
            lanes.append(Lane(f"rank {number}" if first else row, blocks, thin=not first))
    chart = timeline(lanes, title="Timeline of every rank in a typical epoch", x="since the epoch began",
                     x_words=seconds)  # fmt: skip
    named = ("compute", "pack and unpack", "wait", "gradient all-reduce", "encode and decode")
    key = legend([*((name, colour) for colour, name in enumerate(named)), ("update", 6)])
    about = f"Epoch {profile.typical_epoch}, whose time is nearest the median. Thin rows are threads of the transport."
    return figure("A typical epoch", chart, about=about, below=key, full=True)


def _over_the_run(profile: Profile) -> list[Safe]:
    figures = []
    for number, rank in shown(profile, MOST_LANES):
        first, bars = profile.first_epoch, []
        for bin in rank.bins:
            last = first + bin.epochs - 1
            label = str(first)
            name = f"epoch {first}" if last == first else f"epochs {first} to {last}"
            means = [(part, colour, getattr(bin, field) / bin.epochs) for part, colour, field in PARTS]
            pieces = [(value, colour, f"{name}, {part}: {seconds(value)}") for part, colour, value in means]
            bars.append(Bar(label, pieces))
            first = last + 1
        chart = columns(bars, title=f"Epochs of rank {number} over the run, by part", x="epoch", y="per epoch",
                        y_words=seconds)  # fmt: skip
        figures.append(figure(f"Rank {number} over the run", chart, below=_key(PARTS)))
    return figures


def wire_section(run: PastRun, profile: Profile) -> list[Safe]:
    """Bytes by layer and direction, sent and predicted; bits, staleness and lateness over the run."""
    flows: dict[tuple[str, str], list[int]] = {}
    for rank in profile.ranks:
        for flow in rank.traffic:
            sums = flows.setdefault((flow.channel, flow.way), [0] * 5)
            fields = (flow.messages, flow.rows, flow.numbers, flow.bytes, flow.expected)
            flows[flow.channel, flow.way] = [a + b for a, b in zip(sums, fields, strict=True)]
    if not flows:
        return [tag("p", "No rows crossed between ranks.")]
    epochs = max(1, sum(bin.epochs for bin in profile.ranks[0].bins))
    figures = [_bytes(flows, epochs), _bits(profile), _lag(profile)]
    late = [(float(r.epoch), r.late) for r in run.records if r.late is not None]
    if late:
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
    return [charts(figures), table(names, cells, caption="Sums over ranks")]


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


def _bits(profile: Profile) -> Safe:
    points = _over(profile, lambda total: 8 * total.bytes / total.numbers if total.numbers else None)
    chart = lines([Line("bits per number", points, 3)], title="Bits per number on the wire, over epochs", x="epoch",
                  y="bits per number", from_zero=True)  # fmt: skip
    said = f" At the end the rate was {32 / points[-1][1]:.3g}." if points and points[-1][1] else ""
    about = f"Bytes sent / numbers given, all layers and both directions; b bits are a rate of 32 / b.{said}"
    return figure("Bits and rate in effect", chart, about=about)


def _lag(profile: Profile) -> Safe:
    points = _over(profile, lambda total: total.lag / total.epochs)
    chart = lines([Line("steps late", points, 2)], title="How many steps late the oldest rows were, over epochs",
                  x="epoch", y="steps late", from_zero=True)  # fmt: skip
    return figure("Staleness in effect", chart, about="Age of the oldest rows that an epoch read; 0: all fresh.")


def cut_section(profile: Profile) -> list[Safe]:
    """Nodes, edges and halo rows by rank; which rank reads whose rows; shares by node type of a typed graph."""
    ranks = shown(profile, MOST_RANKS)
    kinds: tuple[tuple[str, Callable[[RankProfile], int], int], ...] = (
        ("nodes", lambda rank: rank.nodes, 0),
        ("edges", lambda rank: rank.arcs, 3),
        ("halo rows", lambda rank: sum(rank.halo), 2),
    )
    figures = []
    for name, value, colour in kinds:
        mean = sum(map(value, profile.ranks)) / len(profile.ranks)
        bars = [
            Bar(f"{number}", [(value(rank), colour, f"rank {number}: {count(value(rank))} {name}")])
            for number, rank in ranks
        ]
        most = max(map(value, profile.ranks))
        about = f"The largest share is {most / mean:.2f}x the mean." if mean else ""
        chart = columns(bars, title=f"{name} of every rank", x="rank", y=name, y_words=_thousands)
        figures.append(figure(name.capitalize(), chart, about=about))
    if len(profile.ranks) > 1:
        figures.append(_matrix(profile))
    cells = [
        (str(number), count(rank.nodes), count(rank.arcs), count(sum(rank.halo)), count(rank.train))
        for number, rank in ranks
    ]
    names = ("rank", "nodes", "edges", "halo rows", "training nodes")
    return [charts(figures), *_by_type(profile), folded("Numbers", table(names, cells))]


def _by_type(profile: Profile) -> list[Safe]:
    """Shares of node types in nodes and in halo rows; layers send rows of all types in one width."""
    crossing = max(1, sum(sum(own.halo) for own in profile.types))
    cells = [
        (own.name, count(min(own.nodes)), count(max(own.nodes)), f"{own.node_imbalance:.2f}x", count(sum(own.halo)),
         percent(sum(own.halo) / crossing))
        for own in profile.types
    ]  # fmt: skip
    names = ("node type", "least nodes of a rank", "most", "most / mean", "halo rows", "of all halo rows")
    return [table(names, cells, caption="By node type, over ranks")] if cells else []


def _thousands(value: float) -> str:
    return size(value).removesuffix("B").rstrip()


def _matrix(profile: Profile) -> Safe:
    ranks = [number for number, _ in shown(profile, MOST_CELLS)]
    cells = [[profile.ranks[reader].halo[owner] for owner in ranks] for reader in ranks]
    chart = heat(
        cells, title="Halo rows by reader and owner", x="owner", y="reader",
        words=lambda r, c: f"rank {ranks[r]} reads {count(cells[r][c])} rows of rank {ranks[c]}",
    )  # fmt: skip
    return figure(
        "Who reads whose rows", chart, about="Halo rows: each row of the chart is a reader, each column an owner."
    )


def memory_section(profile: Profile) -> list[Safe]:
    ranks = shown(profile, MOST_RANKS)
    kinds = [("the process", 0, "peak_memory_bytes")]
    kinds += [("tensors on the GPU", 5, "peak_device_bytes")] if any(r.peak_device_bytes for _, r in ranks) else []
    figures = []
    for name, colour, field in kinds:
        bars = [
            Bar(f"{number}", [(getattr(rank, field), colour, f"rank {number}: {size(getattr(rank, field))}")])
            for number, rank in ranks
        ]
        chart = columns(bars, title=f"Most memory of {name}, by rank", x="rank", y="memory", y_words=size)
        worst = max(getattr(rank, field) for _, rank in ranks)
        figures.append(figure(f"Most memory of {name}", chart, about=f"The worst rank: {size(worst)}."))
    cells = [
        (str(number), size(rank.peak_memory_bytes), size(rank.memory_bytes), size(rank.peak_device_bytes))
        for number, rank in ranks
    ]
    return [charts(figures), folded("Numbers", table(("rank", "process", "machine has", "GPU tensors"), cells))]
