"""What a person sees of training: a table that changes on a terminal, lines elsewhere."""

import time
from contextlib import ExitStack

from fullgraph.display import Display
from fullgraph.report import EpochRecord
from fullgraph.tasks import metric_name
from fullgraph.train.trainer import Trainer
from fullgraph.words import count, duration, milliseconds, score, size

QUIET_S = 9.5  # a line at least every ten seconds
LAG = 1.25  # a rank lags that works so many times the mean of all ranks, and so many seconds longer
LAG_S = 0.005
STEADY = 0.8  # share of the past in a rank's mean
MOST_RANKS = 8  # lines of ranks


class Progress:
    """A table on a terminal; elsewhere a line with every score, and at least every ten seconds.

    Seconds of ranks are those that the epoch's record is made of: nothing is measured for the table's sake.
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
            for line in self.ranks.news():
                self.display.line(line)
        self.display.progress(record.epoch, 0, piece=f"epoch {record.epoch + 1}/{self.epochs}")

    def close(self) -> None:
        self._open.close()

    def _left(self, record: EpochRecord, form: str) -> str:
        """Seconds to the last epoch, evaluations among them, at the pace so far; nothing after the last."""
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
    """How long each rank works and waits in an epoch, as means that forget; said where one of them lags."""

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []  # of work and of waiting, by rank
        self._told: int | None = None

    def add(self, seconds: list[list[float]]) -> None:
        """seconds: of each rank's step in all, and of its waiting."""
        new = [(max(0.0, step - wait), wait) for step, wait in seconds]
        old = self.seconds or new
        self.seconds = [
            (STEADY * work + (1 - STEADY) * more, STEADY * wait + (1 - STEADY) * longer)
            for (work, wait), (more, longer) in zip(old, new, strict=True)
        ]

    def lagging(self) -> tuple[int, float] | None:
        """The rank that holds the others up, and its work as a multiple of the mean."""
        works = [work for work, _ in self.seconds]
        mean = sum(works) / max(1, len(works))
        if len(works) < 2 or max(works) < LAG * mean or max(works) - mean < LAG_S:
            return None
        return works.index(max(works)), max(works) / mean

    def rows(self) -> list[tuple[str, ...]]:
        """A line a rank, the slowest first where there are many; none, if all keep up."""
        slow = self.lagging()
        if slow is None:
            return []
        by_work = sorted(range(len(self.seconds)), key=lambda rank: -self.seconds[rank][0])
        shown = sorted(by_work[:MOST_RANKS])
        rows = [(f"rank {r}", "", "", *map(milliseconds, self.seconds[r]), "", "") for r in shown]
        place = shown.index(slow[0])
        rows[place] = (*rows[place][:-2], "", f"lags: {slow[1]:.1f}x")
        return rows

    def news(self) -> list[str]:
        """The same as one line, when it is another rank than the last time."""
        slow = self.lagging()
        if (slow and slow[0]) == self._told:
            return []
        self._told = slow and slow[0]
        if slow is None:
            return ["no rank lags any more"]
        work, wait = self.seconds[slow[0]]
        return [
            f"rank {slow[0]} lags: {milliseconds(work)} of work an epoch, {slow[1]:.1f}x the mean; "
            f"it waits {milliseconds(wait)}"
        ]


def text(record: EpochRecord, epochs: int, metric: str) -> str:
    val = "" if record.val is None else f"  val {metric} {record.val:.4f}"
    return (
        f"epoch {record.epoch}/{epochs}  loss {record.loss:.4f}{val}  {milliseconds(record.epoch_s)}"
        f"  wait {milliseconds(record.wait_s)}  {size(record.bytes)}"
    )
