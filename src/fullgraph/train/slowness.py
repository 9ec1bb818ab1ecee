"""A word to the user when late rows seem to keep a model from learning: by its loss, or by how late they are."""

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
LEARNT = 0.02  # of the first loss: below it, swings say nothing
LOOKS = 3  # at late rows, the last ones, of which the median counts
SMALL, NEARER = 0.05, 0.9  # an error of rows that does not matter; above this share of the first, it has not shrunk


def may_not_learn(*, averaged: bool) -> str:
    """What such rows can do, and what to try. averaged: a strategy that already averages them."""
    other = (
        "--partitioner metis, or --strategy vanilla"
        if averaged
        else "--strategy pipegcn-gf, --partitioner metis, or vanilla"
    )
    return f"on this cut that can keep a model from learning; try {other}"


class Slowness:
    """Looks now and then, where halo rows are late: gradients that come a step after their rows can make it swing.

    late: by the strategy; rows that were found to be late count, too. averaged: it averages them. rounded: rows are
    sent in few bits, and what that adds to their error never shrinks.
    """

    def __init__(self, *, rounded: bool, late: bool = False, averaged: bool = False) -> None:
        self.rounded, self.late, self.averaged, self.said = rounded, late, averaged, False

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        due = record.epoch >= FIRST and (record.epoch - FIRST) % EVERY == 0
        errors = [old.late for old in trainer.records if old.late is not None]
        if due and not self.said and (self.late or errors):
            losses = [old.loss for old in trainer.records]
            if text := hardly_learns(losses) or swings(losses) or ("" if self.rounded else lingers(errors)):
                note(f"{text}, and halo rows come late: {may_not_learn(averaged=self.averaged)}")
                self.said = True


def hardly_learns(losses: list[float]) -> str:
    """What to say of these losses; nothing, if they have fallen."""
    first, best = losses[0], min(losses[-RECENT:])
    if best <= FALL * first:
        return ""
    return f"the loss has hardly fallen in {len(losses)} epochs ({first:.3g} to {best:.3g})"


def swings(losses: list[float]) -> str:
    """What to say of these losses; nothing, if they keep close to the best so far."""
    ratios = [loss / best for loss, best in zip(losses, accumulate(losses, min), strict=True)]
    usual = median(ratios[-SWINGING:])
    if usual <= SWING or min(losses) < LEARNT * losses[0]:
        return ""
    return f"the loss swings ({usual:.2g} times the best so far in epochs up to {len(losses)})"


def lingers(errors: list[float]) -> str:
    """What to say of the errors of late rows at each look so far; nothing, if they are small or shrink."""
    if len(errors) < LOOKS or (now := median(errors[-LOOKS:])) < max(SMALL, NEARER * errors[0]):
        return ""
    return f"late rows are {now:.0%} off fresh ones, and were {errors[0]:.0%} off at first"
