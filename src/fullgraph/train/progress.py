"""The display of training: a live table on a terminal, lines elsewhere."""

import time
from contextlib import ExitStack

from fullgraph.display import Display
from fullgraph.report import EpochRecord
from fullgraph.report.profile import LAG
from fullgraph.tasks import metric_name
from fullgraph.train.trainer import Trainer
from fullgraph.words import count, duration, milliseconds, score, size

QUIET_S = 9.5  # print a line at least every ten seconds
LAG_S = 0.005  # a rank that lags works this much longer than the mean
STEADY = 0.8  # weight of the past in a rank's running mean
MOST_RANKS = 8  # at most this many lines of ranks


class Progress:
    """A live table on a terminal; elsewhere a line per score, and at least one every ten seconds.

    Seconds per rank come from the epoch's record: the table needs no extra measurement.
    """

    def __init__(self, display: Display, trainer: Trainer) -> None:
        self.display, self.epochs, self.metric = display, trainer.config.epochs, metric_name(trainer.task)
        self.first, self.began = trainer.epoch, time.perf_counter()
        self.val: float | None = None
        self.ranks = Ranks()
        self._open = ExitStack()
        epochs = f"epochs {self.first + 1} to {self.epochs}" if self.first else count(self.epochs, "epoch")
        self._open.enter_context(display.phase(f"training {epochs}", self.epochs))

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        self.val = self.val if record.val is None else record.val
        self.ranks.add(trainer.rank_seconds)
        if self.display.live:
            self.display.progress(record.epoch, self.epochs, rows=(*self._table(record), *self.ranks.rows()))
            return
        if record.val is not None or self.display.quiet_for() > QUIET_S:
            self.display.line(text(record, self.epochs, self.metric) + self._left(record, "  {} left"))
            for line in self.ranks.changes():
                self.display.line(line)
        self.display.progress(record.epoch, 0, piece=f"epoch {record.epoch + 1}/{self.epochs}")

    def close(self) -> None:
        self._open.close()

    def _left(self, record: EpochRecord, form: str) -> str:
        """Return the estimated time to the last epoch, including evaluations; empty after the last epoch."""
        left = self.epochs - record.epoch
        spent = time.perf_counter() - self.began
        return form.format(duration(spent / (record.epoch - self.first) * left)) if left else ""

    def _table(self, record: EpochRecord) -> tuple[tuple[str, ...], ...]:
        head = ("epoch", "loss", f"val {self.metric}", "epoch time", "waiting", "bytes", "left")
        cells = (
            f"{record.epoch}/{self.epochs}", f"{record.loss:.4f}", "" if self.val is None else score(self.val),
            milliseconds(record.epoch_s), milliseconds(record.wait_s), size(record.bytes), self._left(record, "{}"),
        )  # fmt: skip
        return head, cells


class Ranks:
    """Running means of each rank's work and waiting time per epoch; shown if a rank lags."""

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []  # (work, waiting) by rank
        self._reported: int | None = None

    def add(self, seconds: list[list[float]]) -> None:
        """seconds: (whole step, waiting) of each rank."""
        new = [(max(0.0, step - wait), wait) for step, wait in seconds]
        old = self.seconds or new
        self.seconds = [
            (STEADY * work + (1 - STEADY) * more, STEADY * wait + (1 - STEADY) * longer)
            for (work, wait), (more, longer) in zip(old, new, strict=True)
        ]

    def lagging(self) -> tuple[int, float] | None:
        """Return the rank that delays the others, and its work as a multiple of the mean."""
        works = [work for work, _ in self.seconds]
        mean = sum(works) / max(1, len(works))
        if len(works) < 2 or max(works) < LAG * mean or max(works) - mean < LAG_S:
            return None
        return works.index(max(works)), max(works) / mean

    def rows(self) -> list[tuple[str, ...]]:
        """Return one line per rank, at most MOST_RANKS of the slowest; none if no rank lags."""
        slow = self.lagging()
        if slow is None:
            return []
        by_work = sorted(range(len(self.seconds)), key=lambda rank: -self.seconds[rank][0])
        shown = sorted(by_work[:MOST_RANKS])
        rows = [(f"rank {r}", "", "", *map(milliseconds, self.seconds[r]), "", "") for r in shown]
        place = shown.index(slow[0])
        rows[place] = (*rows[place][:-2], "", f"lags: {slow[1]:.1f}x")
        return rows

    def changes(self) -> list[str]:
        """Return a line about the lagging rank if it has changed since the last call."""
        slow = self.lagging()
        if (slow and slow[0]) == self._reported:
            return []
        self._reported = slow and slow[0]
        if slow is None:
            return ["no rank lags any more"]
        work, wait = self.seconds[slow[0]]
        return [
            f"rank {slow[0]} lags: {milliseconds(work)} of work per epoch, {slow[1]:.1f}x the mean; "
            f"it waits {milliseconds(wait)}"
        ]


def text(record: EpochRecord, epochs: int, metric: str) -> str:
    val = "" if record.val is None else f"  val {metric} {record.val:.4f}"
    return (
        f"epoch {record.epoch}/{epochs}  loss {record.loss:.4f}{val}  {milliseconds(record.epoch_s)}"
        f"  wait {milliseconds(record.wait_s)}  {size(record.bytes)}"
    )
