"""A word to the user when late rows seem to keep a model from learning."""

from itertools import accumulate
from statistics import median

from fullgraph.report import EpochRecord
from fullgraph.report.terminal import note
from fullgraph.train.trainer import Trainer

FIRST, EVERY = 50, 25  # epochs until one may judge, and between two looks
RECENT = 10  # the last epochs, of which the best counts
FALL = 0.75  # of the first loss: above it, the loss has hardly fallen
SWING = 1.2  # times the best loss so far: the median of steady trainings is below 1.1, of unsteady ones above 1.25
SWINGING = 30  # the last epochs, of which the median counts
FIX = (
    "and halo rows come late: on this cut that can keep a model from learning; try --strategy pipegcn-gf, "
    "--partitioner metis, or vanilla"
)


class Slowness:
    """Looks now and then, where halo rows are late: gradients that come a step after their rows can make it swing."""

    def __init__(self) -> None:
        self.said = False

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        due = record.epoch >= FIRST and (record.epoch - FIRST) % EVERY == 0
        if due and not self.said and any(old.late is not None for old in trainer.records):
            losses = [old.loss for old in trainer.records]
            if text := hardly_learns(losses) or swings(losses):
                note(text)
                self.said = True


def hardly_learns(losses: list[float]) -> str:
    """What to say of these losses; nothing, if they have fallen."""
    first, best = losses[0], min(losses[-RECENT:])
    if best <= FALL * first:
        return ""
    return f"the loss has hardly fallen in {len(losses)} epochs ({first:.3g} to {best:.3g}), {FIX}"


def swings(losses: list[float]) -> str:
    """What to say of these losses; nothing, if they keep close to the best so far."""
    ratios = [loss / best for loss, best in zip(losses, accumulate(losses, min), strict=True)]
    usual = median(ratios[-SWINGING:])
    if usual <= SWING:
        return ""
    return f"the loss swings ({usual:.2g} times the best so far in epochs up to {len(losses)}), {FIX}"
