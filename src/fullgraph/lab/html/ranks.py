"""Page sections over all ranks: the time of epochs, the partition, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from fullgraph.lab.html.advice import warm
from fullgraph.lab.html.charts import Bar, Block, Lane, Line, columns, heat, legend, lines, rows, timeline
from fullgraph.lab.html.document import Safe, charts, figure, folded, table, tag
from fullgraph.lab.html.numbers import count, percent, seconds
from fullgraph.lab.html.past import PastRun
from fullgraph.report.profile import Bin, Profile, RankProfile
from fullgraph.words import size

# Parts of an epoch: name, colour, field of a bin.
PARTS = (("compute", 0, "compute_s"), ("pack and unpack", 1, "pack_s"), ("waiting for rows", 2, "wait_s"),
         ("gradient all-reduce", 3, "sum_s"))  # fmt: skip
BESIDE = (("encode and decode", 4, "code_s"), ("hidden communication", 5, "hidden_s"))
PIECES = {"compute": 0, "pack": 1, "unpack": 1, "wait": 2, "sum": 3, "update": 6, "encode": 4, "decode": 4}
MOST_RANKS = 64  # in a chart
MOST_LANES = 8  # ranks in a timeline, and charts over the run
MOST_CELLS = 48
COMPILES = 2.0  # times the usual epoch; a longer first epoch compiled kernels


def shown(profile: Profile, most: int) -> list[tuple[int, RankProfile]]:
    """The ranks that a chart has room for: the slowest ones, in order."""
    numbered = list(enumerate(profile.ranks))
    if len(numbered) <= most:
        return numbered
    slowest = sorted(numbered, key=lambda pair: -sum(bin.compute_s for bin in pair[1].bins))[:most]
    return sorted(slowest)


def epoch_section(run: PastRun) -> list[Safe]:
    """A sentence, bars by rank, epochs over the run, a timeline of a typical epoch, and ranks by epochs."""
    profile = run.profile
    epochs = sum(bin.epochs for bin in profile.ranks[0].bins) if profile is not None and profile.ranks else 0
    figures = [_epochs(run)] if run.records else []
    if profile is None or not epochs:
        return [tag("p", "The parts of an epoch are known when the run ends."), charts(figures)]
    totals = [warm(rank.bins) for rank in profile.ranks]
    whole = sum(total.step_s for total in totals) or 1.0
    parts = [f"{name} {percent(sum(getattr(total, field) for total in totals) / whole)}" for name, _, field in PARTS]
    words = (
        f"Of an epoch's time, in the mean of the ranks: {', '.join(parts)}. The gradient all-reduce includes waiting "
        f"for the last rank. Epochs {profile.first_epoch} to {profile.first_epoch + epochs - 1} were measured."
    )
    figures.insert(0, _by_rank(profile))
    if profile.typical_epoch:
        figures.append(_typical(profile))
    figures += [_over_the_run(profile)]
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
    """Seconds over epochs; a first epoch that is much longer is told instead of drawn."""
    records, about = run.records, ""
    usual = median(r.epoch_s for r in records)
    if len(records) > 3 and records[0].epoch_s > COMPILES * usual:
        about = f"Epoch 1 took {seconds(records[0].epoch_s)}, with the compilation of kernels, and is not drawn. "
        records = records[1:]
    curves = [
        Line("epoch", [(float(r.epoch), r.epoch_s) for r in records], 0),
        Line("all waiting", [(float(r.epoch), r.wait_s) for r in records], 2, dash=1),
    ]
    if for_rows := [(float(r.epoch), r.row_wait_s) for r in records if r.row_wait_s is not None]:
        curves.append(Line("for rows", for_rows, 1, dash=2))
    chart = lines(curves, title="Seconds of an epoch, over epochs", x="epoch", y="per epoch", y_words=seconds,
                  from_zero=True)  # fmt: skip
    key = legend([(line.name, line.colour) for line in curves], [line.dash for line in curves])
    about += "The slowest rank of each epoch. All waiting is for rows and in gradient all-reduces."
    return figure("Epochs", chart, about=about, below=key)


def _bar(label: str, total: Bin, parts: Sequence[tuple[str, int, str]]) -> Bar:
    pieces = []
    for name, colour, field in parts:
        value = getattr(total, field) / total.epochs
        share = min(1.0, getattr(total, field) / total.step_s) if total.step_s else 0.0
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
    named = ("compute", "pack and unpack", "waiting for rows", "gradient all-reduce", "encode and decode")
    key = legend([*((name, colour) for colour, name in enumerate(named)), ("update", 6)])
    about = f"Epoch {profile.typical_epoch}, whose time is nearest the median. Thin rows are threads of the transport."
    return figure("A typical epoch", chart, about=about, below=key, full=True)


def _over_the_run(profile: Profile) -> Safe:
    """Ranks by epochs: seconds of each rank's own work."""
    ranks = shown(profile, MOST_RANKS)
    first, heads, last = profile.first_epoch, list[str](), list[int]()
    for bin in profile.ranks[0].bins:
        heads.append(str(first))
        first += bin.epochs
        last.append(first - 1)
    cells = [[(bin.compute_s + bin.pack_s) / bin.epochs for bin in rank.bins] for _, rank in ranks]
    skip = 1 if len(heads) > 3 and median(row[0] for row in cells) > COMPILES * median(row[1] for row in cells) else 0
    cells, heads, last = [row[skip:] for row in cells], heads[skip:], last[skip:]
    names = [f"rank {number}" for number, _ in ranks]

    def words(r: int, c: int) -> str:
        bin = ranks[r][1].bins[c + skip]
        epochs = f"epoch {heads[c]}" if str(last[c]) == heads[c] else f"epochs {heads[c]} to {last[c]}"
        parts = ", ".join(f"{name} {seconds(getattr(bin, field) / bin.epochs)}" for name, _, field in PARTS)
        return f"{names[r]}, {epochs}: {parts}"

    chart = heat(cells, title="Work of every rank over the run", x="epoch", y="rank", words=words, rows=names,
                 columns=heads, shown=seconds, wide=True, low=min(value for row in cells for value in row))  # fmt: skip
    most = max(value for row in cells for value in row)
    about = f"Seconds of own work per epoch, without waiting; the darkest cell is {seconds(most)}."
    if skip:
        about += " The first epoch, with the compilation of kernels, is left out."
    return figure("Work of every rank over the run", chart, about=about, full=True)


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
