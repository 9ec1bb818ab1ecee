"""Advice from the figures of a run: each rule reads one figure and suggests what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean

from fullgraph.lab.html.numbers import percent, seconds
from fullgraph.lab.html.past import PastRun
from fullgraph.report.losses import trouble
from fullgraph.report.profile import LAG, Bin, Profile, RankProfile
from fullgraph.words import size

MUCH_WAIT = 0.3  # share of an epoch
SOME_WAIT = 0.1
MUCH_LOST = 0.05  # share of an epoch that a rank works longer than the mean
EXPLAINED = 1.15  # times its share of the edges, a rank's work is not explained by them
FULL_BITS = 16  # bits per number on the wire; as many are hardly compressed
MEMORY = 0.8  # share of a machine's memory
PATIENCE = 5  # evaluations without a better score
LEAST_GAIN = 3  # how many times fewer bytes a strategy must send to be suggested


def advice(run: PastRun) -> list[str]:
    """One text for each figure that stands out; empty if none does."""
    rules: list[Callable[[PastRun, Profile], Iterator[str]]] = [_cores, _work, _waits, _sums, _halo, _memory]
    found = [text for rule in rules for text in rule(run, run.profile)] if run.profile else []
    return [*found, *_learning(run)]


def warm(bins: tuple[Bin, ...]) -> Bin:
    """The sum over a rank's epochs, without the first bin if there are others, because first epochs compile."""
    rest = bins[1:] if len(bins) > 3 else bins
    return sum(rest[1:], rest[0]) if rest else Bin()


def waited(rank: RankProfile) -> float:
    """The share of a rank's epochs that it waits for rows or sums gradients."""
    total = warm(rank.bins)
    return (total.wait_s + total.sum_s) / total.step_s if total.step_s else 0.0


def _cores(run: PastRun, profile: Profile) -> Iterator[str]:
    """Ranks that compute on a CPU and share its cores."""
    for host in sorted({rank.host for rank in profile.ranks}):
        there = [rank for rank in profile.ranks if rank.host == host and not rank.device_bytes]
        cores, threads = max((rank.cores for rank in there), default=0), sum(rank.threads for rank in there)
        share = mean(map(waited, there)) if there else 0.0
        if cores and threads > cores and share > SOME_WAIT:
            yield (
                f"{len(there)} ranks with {threads} threads compete for {cores} cores on {host}, and {percent(share)} "
                f"of the epoch is waiting: try as many ranks as cores."
            )


def _work(run: PastRun, profile: Profile) -> Iterator[str]:
    """A rank that works longer than the others, while they wait: its part is larger, or its machine is slower."""
    sums = [warm(rank.bins) for rank in profile.ranks]
    each = [total.compute_s / total.epochs for total in sums]
    worst = max(range(len(each)), key=each.__getitem__)
    usual, epoch_s = mean(each), max(total.step_s / total.epochs for total in sums)
    if len(each) < 2 or each[worst] < LAG * usual or each[worst] - usual < MUCH_LOST * epoch_s:
        return
    arcs = [rank.arcs for rank in profile.ranks]
    slow, share = each[worst] / max(usual, 1e-9), arcs[worst] / max(mean(arcs), 1e-9)
    begin = f"Rank {worst} computes {seconds(each[worst])} per epoch, {slow:.1f}x the mean, and the others wait for it"
    if slow > EXPLAINED * share:
        there = profile.ranks[worst].host
        yield (
            f"{begin}; it has {share:.1f}x the mean's edges. Look for another program on {there}, a slower "
            "processor, or fewer threads than elsewhere."
        )
    else:
        yield f"{begin}, because it has {share:.1f}x the mean's edges: {_balanced(run)}."


def _balanced(run: PastRun) -> str:
    """What balances edges, other than what the run's partitioner was told already."""
    if not run.partitioner.startswith("metis"):
        return "--partitioner metis balances them"
    given = dict(run.options).get("partitioner.degree_weight", "0")
    if given in ("0", "0.0"):
        return "partition with -p degree_weight=1"
    return f"metis was told to balance them (degree_weight {given}) and could not; use fewer ranks"


def _waits(run: PastRun, profile: Profile) -> Iterator[str]:
    sums = [warm(rank.bins) for rank in profile.ranks]
    shares = [total.wait_s / total.step_s if total.step_s else 0.0 for total in sums]
    total = sum(sums[1:], sums[0])
    share = mean(shares)
    if share < MUCH_WAIT or not total.numbers:
        return
    bits, late = 8 * total.bytes / total.numbers, total.lag / total.epochs > 0.5
    gain = gain_of_one_bit(profile)
    begin = f"{percent(share)} of the epoch waits for messages"
    if min(shares) < 0.5 * max(shares) and max(shares) > MUCH_WAIT and len(shares) > 1:
        least_waiting = min(range(len(shares)), key=shares.__getitem__)
        yield (
            f"{begin}, of rank {least_waiting} only {percent(shares[least_waiting])}: the others wait for its work, "
            "not for messages."
        )
    elif bits >= FULL_BITS and gain > LEAST_GAIN:
        yield f"{begin}: --strategy sylvie-a would send 1/{gain:.0f} of the bytes, one step late; sylvie-s in step."
    elif not late:
        yield f"{begin}: rows that are read one step late hide it (--strategy pipegcn, or sylvie-a with few bits)."
    else:
        yield f"{begin}, although rows are late and take {bits:.2g} bits per number: use fewer ranks, or a faster link."


def _sums(run: PastRun, profile: Profile) -> Iterator[str]:
    sums = [warm(rank.bins) for rank in profile.ranks]
    shares = [total.sum_s / total.step_s if total.step_s else 0.0 for total in sums]
    if mean(shares) > MUCH_WAIT:
        least = min(range(len(shares)), key=shares.__getitem__)
        yield (
            f"{percent(mean(shares))} of the epoch goes into the gradient all-reduce, where every rank waits for the "
            f"last one; rank {least} spends the least time there, so it is most often the last."
        )


def gain_of_one_bit(profile: Profile) -> float:
    """The bytes sent, divided by the bytes of the same rows at one bit per number and four bytes per row."""
    flows = [flow for rank in profile.ranks for flow in rank.traffic]
    least = sum(4 * flow.rows + (flow.numbers + 7) // 8 for flow in flows)
    return sum(flow.bytes for flow in flows) / least if least else 0.0


def _halo(run: PastRun, profile: Profile) -> Iterator[str]:
    nodes, halo = sum(rank.nodes for rank in profile.ranks), sum(sum(rank.halo) for rank in profile.ranks)
    ranks = len(profile.ranks)
    border = 2 * nodes * (ranks - 1) / ranks
    halos = any(flow.channel.startswith("halo") for rank in profile.ranks for flow in rank.traffic)
    waits = mean(map(waited, profile.ranks)) if profile.ranks else 0.0
    fits = not profile.types and ":" not in run.model  # a mixture takes our models of graphs with one type
    if ranks > 1 and halos and halo > border and waits > SOME_WAIT and fits:
        yield (
            f"{percent(waits)} of the epoch is waiting, and halos have {halo / nodes:.1f} rows per node: --strategy "
            f"mixgcn would move {border / halo:.2f} of them, and fewer ranks fewer still."
        )


def _memory(run: PastRun, profile: Profile) -> Iterator[str]:
    for host in sorted({rank.host for rank in profile.ranks}):
        there = [rank for rank in profile.ranks if rank.host == host]
        used, has = sum(rank.peak_memory_bytes for rank in there), max(rank.memory_bytes for rank in there)
        if has and used > MEMORY * has:
            yield (
                f"Ranks on {host} held up to {size(used)} of its {size(has)}: --checkpoint-layers keeps less for the "
                "backward pass, and more machines hold less each."
            )
    for number, rank in enumerate(profile.ranks):
        if rank.device_bytes and rank.peak_device_bytes > MEMORY * rank.device_bytes:
            yield (
                f"Rank {number} held up to {size(rank.peak_device_bytes)} of its GPU's {size(rank.device_bytes)}: "
                "--checkpoint-layers or --features-on host take less."
            )


def _learning(run: PastRun) -> Iterator[str]:
    late = run.profile is not None and run.profile.total.lag > 0
    if late and len(run.records) >= 50 and (text := trouble([record.loss for record in run.records])):
        yield f"{text[0].upper()}{text[1:]}, and halo rows come late: compare with --strategy vanilla."
    if run.outcome is None or len(run.records) < 20:
        return
    best, last = run.outcome.best_epoch, run.outcome.epochs
    after = sum(record.val is not None for record in run.records[best:])  # evaluations that were no better
    if best == last:
        yield f"The best validation score came in the last epoch, {last}: more epochs may score higher (--epochs)."
    elif best and best <= 0.5 * last and after > PATIENCE and dict(run.options).get("train.patience", "0") == "0":
        spent = sum(record.epoch_s for record in run.records[best:])
        yield (
            f"The best validation score came in epoch {best} of {last}; the {seconds(spent)} after it gave no better "
            f"one: --patience {PATIENCE} would have stopped."
        )
