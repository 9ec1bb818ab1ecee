"""A word to the user when a run with late rows learns little or unsteadily, as its loss tells; else none."""

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
LEARNT = 0.2  # of the first loss: where the loss is below it, swings cost no score


class StaleWarning:
    """Looks now and then: gradients that come a step after their rows can keep a loss from falling, or make it swing.

    It does not look at how late rows are: that is the same in runs that score well and in others (docs/benchmarks.md).
    fixes: what may help this run.
    """

    def __init__(self, fixes: str) -> None:
        self.fixes, self.said = fixes, False

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        due = record.epoch >= FIRST and (record.epoch - FIRST) % EVERY == 0
        if due and not self.said and (text := trouble([old.loss for old in trainer.records])):
            note(f"{text}, and halo rows come late; if --strategy vanilla does better, try {self.fixes}")
            self.said = True


def fixes_for(*, method: str, averaged: bool) -> str:
    """What helped where late rows cost score, but for what the run has already: a cut, averages, rows in time."""
    cut = [] if method.split("-")[0] in ("metis", "fennel", "kaminpar", "mtkahypar") else ["--partitioner metis"]
    return ", or ".join([*cut, *([] if averaged else ["--strategy pipegcn-gf"]), "--strategy adaqp"])


def trouble(losses: list[float]) -> str:
    """What to say of these losses; nothing, if they fall and keep close to the best."""
    return hardly_learns(losses) or swings(losses)


def hardly_learns(losses: list[float]) -> str:
    """What to say of these losses; nothing, if they have fallen."""
    first, best = losses[0], min(losses[-RECENT:])
    if best <= FALL * first:
        return ""
    return f"the loss has hardly fallen in {len(losses)} epochs ({first:.3g} to {best:.3g})"


def swings(losses: list[float]) -> str:
    """What to say of these losses; nothing, if they keep close to the best so far, or are small by now."""
    ratios = [loss / best for loss, best in zip(losses, accumulate(losses, min), strict=True)]
    usual = median(ratios[-SWINGING:])
    if usual <= SWING or median(losses[-SWINGING:]) < LEARNT * losses[0]:
        return ""
    return f"the loss swings ({usual:.2g} times the best so far in epochs up to {len(losses)})"
