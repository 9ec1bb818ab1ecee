"""A user's objects that fail."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Failing:
    def __call__(self, logits, target):
        return {}["nothing"]


@dataclass(frozen=True)
class Dealt:
    def assign(self, graph, parts, *, seed):
        return np.arange(graph.num_nodes) % parts


class Silent(Exception):
    def __str__(self):
        raise ValueError("no text")


def fail(error):
    raise error


def again():
    return again()
