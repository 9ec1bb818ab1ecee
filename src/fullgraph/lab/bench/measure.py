"""Measure one turn of a strategy on one rank: seconds, bytes, messages alone, memory."""

import ctypes
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.device import begin_peak, peak_bytes, synchronize
from fullgraph.lab.bench.hosts import sent
from fullgraph.partition import Part
from fullgraph.report import peak_memory_bytes
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Key, Noted, Pending, Recording, Transport, rank_table

WARM_UP = 2  # steps before a turn is timed; they also fill late rows


class Memory(NamedTuple):
    """The peak memory that a strategy needed on this rank, in the process and on the device."""

    process: int
    device: int


@dataclass(frozen=True)
class Contender:
    """A strategy that is ready to train, and the transport that records what it sends."""

    strategy: str
    part: Part
    trainer: Trainer
    recording: Recording
    memory: Memory


class Turn(NamedTuple):
    """Figures per epoch of one turn: over all ranks, then per rank."""

    epoch_s: float
    messages_s: float
    own_s: list[float]  # each rank's steps without their waiting
    wait_s: list[float]
    sum_wait_s: list[float]  # the part of the waiting for gradient all-reduces
    thread_s: list[float]
    processor_s: list[float]
    bytes: float
    weight_bytes: float
    wire_bytes: float
    wire_packets: float


class Gauge:
    """Measures contenders on this rank; all ranks make the same calls."""

    def __init__(self, link: Transport, device: torch.device, epochs: int) -> None:
        self.link, self.device, self.epochs = link, device, epochs
        self.calls = 0
        self.base = _resident_bytes()

    def of_ranks(self, *values: float) -> Tensor:
        """Every rank's values [ranks, values]; no rank returns before all ranks have called."""
        self.calls += 1
        return rank_table(self.link, Key("bench", self.calls), values or (0.0,))

    def meet(self) -> None:
        """Wait for this rank's device, then for all ranks."""
        synchronize(self.device)
        self.of_ranks()

    def turn(self, contender: Contender) -> Turn:
        """Train some epochs, then send the messages of one of them again."""
        trainer, recording = contender.trainer, contender.recording
        before = sent()  # no message is in flight here, nor below
        for _ in range(WARM_UP):
            trainer.train_step()
        self.meet()
        start, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
        tallies, notes = [], []
        for _ in range(self.epochs):
            recording.notes = []
            tallies.append(trainer.train_step()[1])
            notes.append(recording.notes)
        recording.notes = None
        thread, process = time.thread_time() - thread, time.process_time() - process
        self.meet()
        epoch_s = (time.perf_counter() - start) / self.epochs
        trainer.shard.state()  # waits for messages in flight
        self.meet()
        crossed = [(now - then) / (WARM_UP + self.epochs) for now, then in zip(sent(), before, strict=True)]
        waits = mean(tally.wait_s for tally in tallies)
        own = mean(tally.step_s for tally in tallies) - waits
        rows, weights = mean(t.halo_bytes for t in tallies), mean(t.weight_bytes for t in tallies)
        sums = mean(tally.waited_for("weights") for tally in tallies)
        of_each = own, waits, sums, thread / self.epochs, process / self.epochs
        table = self.of_ranks(*of_each, rows, weights, *crossed)
        messages_s = self._alone(recording, self._usual(notes))
        each, together = table.split([len(of_each), table.shape[1] - len(of_each)], dim=1)
        return Turn(epoch_s, messages_s, *each.T.tolist(), *together.sum(0).tolist())

    def _usual(self, notes: list[list[Noted]]) -> list[Noted]:
        """The messages of the step with the median bytes, the same step on all ranks: some steps send nothing."""
        totals = self.of_ranks(*(sum(note.nbytes for note in step) for step in notes)).sum(0)
        return notes[int(totals.argsort(stable=True)[len(notes) // 2])]

    def _alone(self, recording: Recording, notes: Sequence[Noted]) -> float:
        """Seconds to send messages of these sizes, in this order, while nothing else runs."""
        largest = max((nbytes for note in notes for nbytes in note.outgoing.values()), default=0)
        blank = torch.ones(largest, dtype=torch.uint8, device=self.device)
        sums = [None if n.summed is None else torch.zeros_like(n.summed, memory_format=torch.contiguous_format)
                for n in notes]  # fmt: skip
        self.meet()
        start = time.perf_counter()
        pending: list[Pending[object]] = []
        for note, total in zip(notes, sums, strict=True):
            link, key = recording.links[note.fork], replace(note.key, channel=f"alone/{note.key.channel}", use="other")
            if total is not None:
                pending.append(link.all_reduce(key, total))
            else:
                rows = {peer: blank[:nbytes] for peer, nbytes in note.outgoing.items()}
                pending.append(link.begin(key, rows, note.incoming))
        for message in pending:
            message.wait()
        synchronize(self.device)
        return float(self.of_ranks(time.perf_counter() - start).max())

    @contextmanager
    def memory(self) -> Iterator[list[Memory]]:
        """Append the peak memory that the block needs, without what was there before it.

        A process's memory before its first contender counts for every contender.
        """
        found: list[Memory] = []
        gc.collect()
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
        there, forgets = _resident_bytes(), _forget_peak()
        held = begin_peak(self.device)
        yield found
        process = peak_memory_bytes() - (there - self.base if forgets else 0)
        found.append(Memory(process, peak_bytes(self.device) - held))


def _resident_bytes() -> int:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) * 1024
    return 0


def _forget_peak() -> bool:
    """Reset the kernel's peak memory of this process; if it refuses, the peak is that of all contenders."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
