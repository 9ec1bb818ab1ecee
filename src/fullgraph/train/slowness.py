"""A word to the user when late rows seem to keep a model from learning."""

from fullgraph.report import EpochRecord
from fullgraph.report.terminal import note
from fullgraph.train.trainer import Trainer

LOOK = 50  # epochs until one may judge
RECENT = 10  # the last ones, of which the best counts
FALL = 0.75  # of the first loss: above it, the loss has hardly fallen


class Slowness:
    """Looks once, where halo rows are late: gradients that come a step after the rows they are for can swing."""

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if record.epoch == LOOK and any(old.late is not None for old in trainer.records):
            text = hardly_learns([old.loss for old in trainer.records])
            if text:
                note(text)


def hardly_learns(losses: list[float]) -> str:
    """What to say of these losses; nothing, if they have fallen."""
    first, best = losses[0], min(losses[-RECENT:])
    if best <= FALL * first:
        return ""
    return (
        f"the loss has hardly fallen in {len(losses)} epochs ({first:.3g} to {best:.3g}), and halo rows come late: on "
        "this cut that can keep a model from learning; try --strategy pipegcn-gf, --partitioner metis, or vanilla"
    )
