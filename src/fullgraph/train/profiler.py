"""Measurements of all ranks after a run, gathered by rank 0 and written to profile.json."""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from fullgraph.device import description, is_accelerator, peak_bytes
from fullgraph.exchange import Channel
from fullgraph.partition import Part
from fullgraph.proc import num_cores
from fullgraph.report import EpochRecord, Tally, peak_memory_bytes
from fullgraph.report.profile import FILE, Bins, Flow, Piece, PlannedLayer, Profile, RankProfile, read_profile
from fullgraph.report.spans import COMPUTE, PIECE, Rows
from fullgraph.report.terminal import tolerated
from fullgraph.tasks import metric_name
from fullgraph.train.result import versions
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Key
from fullgraph.transport.gather import texts_for_first
from fullgraph.values import read_value, tree_of

CANDIDATES = 4  # epochs that are kept, of which one is shown as typical
MOST_PIECES = 400  # the longest pieces of the typical epoch
MOST_CALLS = 20_000  # calls to compute the expected bytes of channels
SHOWN = ("pack", "unpack", "wait", "sum", "update", "encode", "decode")


class Profiler:
    """Called after every epoch, on every rank."""

    def __init__(self, trainer: Trainer, part: Part, folder: Path) -> None:
        self.trainer, self.part, self.folder = trainer, part, folder
        self.before = self._before()
        self.began = trainer.epoch  # epochs done before this process
        self.bins = Bins(() if self.before is None else self.before.ranks[trainer.shard.transport.rank].bins)
        self.kept: dict[int, tuple[Piece, ...]] = {}  # pieces of the last candidate epochs

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        tally = trainer.meter.last
        self.bins.add(tally.share(), tally.numbers, tally.halo_bytes, tally.lag)
        done = record.epoch - self.began
        if done & (done + 1) == 0:  # 1, 3, 7, 15, ...: never an epoch that compares late rows with fresh ones
            self.kept[record.epoch] = pieces_of(tally)
            for old in list(self.kept)[:-CANDIDATES]:
                del self.kept[old]

    def _before(self) -> Profile | None:
        """Return the profile of the epochs before this process, if it covers exactly those epochs."""
        with suppress(Exception):  # a damaged profile counts as missing
            previous = read_profile(self.folder)
            if previous is not None and len(previous.ranks) == self.trainer.shard.transport.size:
                last = previous.first_epoch - 1 + sum(bin.epochs for bin in previous.ranks[0].bins)
                return previous if last == self.trainer.epoch else None
        return None

    def finish(self) -> None:
        """Write profile.json; every rank must call this. A failure here does not fail the run."""
        transport, epoch = self.trainer.shard.transport, self._typical()
        text = ""
        with tolerated(f"the profile of rank {transport.rank}"):
            text = json.dumps(tree_of(replace(self._rank(), typical=self.kept.get(epoch, ()))))
        texts = texts_for_first(text, transport, Key("profile", self.trainer.epoch))
        if transport.rank == 0 and all(text.strip() for text in texts):
            with tolerated(self.folder / FILE):
                self._assembled(texts, epoch).write(self.folder)

    def _assembled(self, texts: list[str], epoch: int) -> Profile:
        ranks = [read_value(RankProfile, json.loads(text), "a rank's profile") for text in texts]
        return Profile(
            first_epoch=self.before.first_epoch if self.before else self.began + 1,
            typical_epoch=epoch,
            metric=metric_name(self.trainer.task),
            versions=versions(),
            ranks=_aligned(ranks),
            plan=tuple(
                PlannedLayer(
                    layer=of.layer, sends=of.sends, known=of.known, columns=of.width, rows=of.rows, parts=of.parts
                )
                for of in self.trainer.shard.executor.plans(self.trainer.model)
            ),
            types=self.part.manifest.figures.types,
        )

    def _typical(self) -> int:
        """Return the kept epoch whose duration is closest to the median; the same on all ranks."""
        seconds = {record.epoch: record.epoch_s for record in self.trainer.records}
        if not self.kept:
            return 0
        usual = median(seconds.values())
        return min(self.kept, key=lambda epoch: abs(seconds[epoch] - usual))

    def _rank(self) -> RankProfile:
        part, shard = self.part, self.trainer.shard
        device = shard.train.y.device
        name, memory = description(device) if is_accelerator(device) else (_processor(), 0)
        return RankProfile(
            host=platform.node(),
            device=name,
            threads=torch.get_num_threads(),
            cores=num_cores(),
            peak_memory_bytes=peak_memory_bytes(),
            memory_bytes=_memory(),
            peak_device_bytes=peak_bytes(device),
            device_bytes=memory,
            nodes=len(part.ids),
            arcs=int(part.indptr[-1]),
            train=int(part.train_mask.sum()),
            halo=tuple(part.recv_counts),
            bins=self.bins.bins,
            traffic=self._traffic(),
            memory=() if shard.memory is None else (shard.memory,),
        )

    def _traffic(self) -> tuple[Flow, ...]:
        """Return sent and expected bytes by channel, including epochs before this process."""
        meter, channels = self.trainer.meter, self.trainer.shard.clock.channels
        expected = expected_bytes(channels, range(self.began, self.trainer.epoch))
        rank = self.trainer.shard.transport.rank
        old = {(f.channel, f.way): f for f in (self.before.ranks[rank].traffic if self.before else ())}
        flows = []
        for name in sorted({*meter.traffic, *expected, *old}):
            sent = meter.traffic.get(name)
            ours = {field: getattr(sent, field, 0) for field in ("messages", "rows", "numbers", "bytes")}
            ours["expected"] = expected.get(name, 0)
            theirs = {field: getattr(old[name], field) if name in old else 0 for field in ours}
            flows.append(Flow(channel=name[0], way=name[1], **{field: ours[field] + theirs[field] for field in ours}))
        return tuple(flows)


def expected_bytes(channels: dict[str, Channel], steps: range) -> dict[tuple[str, str], int]:
    """Return the bytes that this rank should receive in these steps, by channel and direction.

    Long ranges are sampled.
    """
    sums: dict[tuple[str, str], float] = {}
    most = max(16, MOST_CALLS // max(1, 2 * len(channels)))
    for name, channel in channels.items():
        used = range(max(steps.start, channel.since), min(steps.stop, channel.until))
        picked = _sample(used, most)
        for way, inbox in (("forward", channel.features), ("backward", channel.gradients)):
            expected = sum(map(inbox.expected_bytes, picked)) * len(used) / max(1, len(picked))
            if expected:
                label = PIECE.sub("", name), way
                sums[label] = sums.get(label, 0.0) + expected
    return {label: round(value) for label, value in sums.items()}


def _sample(steps: range, most: int) -> Sequence[int]:
    """Pick `most` steps, spread by the golden ratio, so that the sample does not follow a schedule's period."""
    if len(steps) <= most:
        return steps
    return [steps[int((i * 0.6180339887) % 1 * len(steps))] for i in range(most)]


def pieces_of(tally: Tally) -> tuple[Piece, ...]:
    """Return a step in pieces, on the host's clock; the first piece is the whole step."""
    rows = Rows()
    assert tally.step is not None
    pieces = [Piece(kind=COMPUTE, row=COMPUTE, start=tally.began, end=tally.began + tally.step_s)]
    for span in tally.spans:
        if span.kind in SHOWN and not (span.kind == "wait" and span.use == "weights"):  # that wait is inside the sum
            start, end = tally.when(span.interval)
            about = f"{span.key.channel} {span.key.way}" if span.key is not None else span.about
            place = tally.began + start, tally.began + end
            pieces.append(Piece(kind=span.kind, row=rows.name(span.row), start=place[0], end=place[1], about=about))
    longest = sorted(pieces[1:], key=lambda piece: piece.start - piece.end)[:MOST_PIECES]
    return (pieces[0], *sorted(longest, key=lambda piece: piece.start))


def _aligned(ranks: list[RankProfile]) -> tuple[RankProfile, ...]:
    """Align typical epochs: by the shared clock on one machine, else by the end of the gradient all-reduce."""
    starts = [rank.typical[0].start if rank.typical else 0.0 for rank in ranks]
    zeros = [min(starts)] * len(ranks)
    if len({rank.host for rank in ranks}) > 1:
        sums = [max((p.end for p in rank.typical if p.kind == "sum"), default=0.0) for rank in ranks]
        longest = max(end - start for end, start in zip(sums, starts, strict=True))
        zeros = [end - longest for end in sums]
    return tuple(
        replace(
            rank,
            typical=tuple(replace(p, start=round(p.start - zero, 7), end=round(p.end - zero, 7)) for p in rank.typical),
        )
        for rank, zero in zip(ranks, zeros, strict=True)
    )


def _processor() -> str:
    with suppress(OSError):
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def _memory() -> int:
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0
