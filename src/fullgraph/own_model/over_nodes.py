"""Means, sums and extremes over all nodes inside a model: equal on one rank and on many.

In a distributed forward pass, torch's x.mean(0), x.sum(0) and x.amax(0) mean the same; these functions make it
explicit.

Legend: N nodes, D features.
"""

from torch import Tensor


def mean_over_nodes(x: Tensor) -> Tensor:
    """The mean row [D] over all N nodes; gradients flow back to all of them."""
    return x.mean(0)


def sum_over_nodes(x: Tensor) -> Tensor:
    """The sum [D] of the rows of all N nodes."""
    return x.sum(0)


def max_over_nodes(x: Tensor) -> Tensor:
    """The largest value [D] of each feature over all N nodes."""
    return x.amax(0)
