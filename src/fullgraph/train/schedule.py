"""Learning rates: pure functions of the epoch, without state to save."""

import math

from fullgraph.train.config import TrainConfig


def learning_rate(config: TrainConfig, before: int) -> float:
    """constant: lr.  cosine: lr (1 + cos(pi t/T)) / 2.  step: lr, divided by ten after each third of the run.

    t = before: the number of finished epochs. Epochs after the planned T keep the last rate.
    """
    done = min(before, config.planned - 1) / config.planned
    if config.lr_schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    if config.lr_schedule == "step":
        return config.lr * 0.1 ** int(3 * done)
    return config.lr
