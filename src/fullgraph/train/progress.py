"""What a person sees while a run goes on: one live line on a terminal, plain lines elsewhere."""

import sys
from dataclasses import replace

from fullgraph.report import EpochRecord
from fullgraph.tasks import metric_name
from fullgraph.train.trainer import Trainer


def text(record: EpochRecord, epochs: int, metric: str) -> str:
    score = "" if record.val is None else f"  val {metric} {record.val:.4f}"
    return (
        f"epoch {record.epoch}/{epochs}  loss {record.loss:.4f}{score}  {record.epoch_s * 1e3:.1f} ms"
        f"  wait {record.wait_s * 1e3:.1f} ms  {_size(record.bytes)}"
    )


def _size(nbytes: int) -> str:
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


class Lines:
    """A line whenever there is a score."""

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if record.val is not None:
            print(text(record, trainer.config.epochs, metric_name(trainer.task)), flush=True)

    def close(self) -> None:
        pass


class LiveLine:
    """One line that changes every epoch; the last score stays in it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=8, transient=False)
        self._live.start()
        self._val = ""

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if record.val is not None:
            self._val = f"  [bold]val {metric_name(trainer.task)} {record.val:.4f}[/]"
        bare = replace(record, val=None)
        self._live.update(text(bare, trainer.config.epochs, metric_name(trainer.task)) + self._val)

    def close(self) -> None:
        self._live.stop()


def progress() -> Lines | LiveLine:
    """One live line on a terminal, plain ones elsewhere or without rich."""
    if not sys.stdout.isatty():
        return Lines()
    try:
        return LiveLine()
    except ImportError:
        return Lines()
