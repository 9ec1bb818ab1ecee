"""Problems that a run's losses show, in words; the terminal and the page of a run use the same thresholds."""

from itertools import accumulate
from statistics import median

RECENT = 10  # the best of this many last epochs counts
FALL = 0.75  # above this share of the first loss, the loss has hardly fallen
SWING = 1.2  # limit of loss / best loss so far: steady trainings have a median below 1.1, unsteady ones above 1.25
SWINGING = 30  # the median of this many last epochs counts
LEARNT = 0.2  # below this share of the first loss, swings do not lower the score


def trouble(losses: list[float]) -> str:
    """Describe a problem with these losses; empty if they fall and stay close to the best."""
    return hardly_learns(losses) or swings(losses)


def hardly_learns(losses: list[float]) -> str:
    """Describe losses that have hardly fallen; empty if they have fallen."""
    first, best = losses[0], min(losses[-RECENT:])
    if best <= FALL * first:
        return ""
    return f"the loss has hardly fallen in {len(losses)} epochs ({first:.3g} to {best:.3g})"


def swings(losses: list[float]) -> str:
    """Describe losses that swing; empty if they stay close to the best so far, or are small."""
    ratios = [loss / best for loss, best in zip(losses, accumulate(losses, min), strict=True)]
    usual = median(ratios[-SWINGING:])
    if usual <= SWING or median(losses[-SWINGING:]) < LEARNT * losses[0]:
        return ""
    return f"the loss swings ({usual:.2g} times the best so far in epochs up to {len(losses)})"
