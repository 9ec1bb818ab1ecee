"""Learning rates: pure functions of the epoch, so nothing of them needs saving."""

import math

from fullgraph.train.config import TrainConfig


def learning_rate(config: TrainConfig, before: int) -> float:
    """constant: lr.  cosine: lr (1 + cos(pi t/T)) / 2.  step: lr, a tenth of it after each third of the run.

    t = before: the epochs that are done. Epochs beyond the planned T keep the rate of the last one.
    """
    done = min(before, config.planned - 1) / config.planned
    if config.lr_schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    if config.lr_schedule == "step":
        return config.lr * 0.1 ** int(3 * done)
    return config.lr
