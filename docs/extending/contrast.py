"""A model: each layer subtracts the mean of the neighbours from the row of a node, both mapped."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fullgraph.nn import Conv, Linear, Stack
from fullgraph.values import Range


class ContrastConv(Conv):
    """Z = X W + b - share * mean_{j -> i} X_j V."""

    sums: ClassVar[bool] = True

    def __init__(self, in_width, out_width, share):
        super().__init__(in_width, out_width)
        self.own, self.neighbours, self.share = (
            Linear(in_width, out_width),
            Linear(in_width, out_width, bias=False),
            share,
        )

    def forward(self, x, view, layer, row_map):
        own, mean = self.own_and_neighbours(self.own, self.neighbours, x, view, layer, row_map)
        return own - self.share * mean


@dataclass(frozen=True, kw_only=True)
class Contrast(Stack):
    """Has the options of all models, such as layers, hidden, norm and dropout; and `share`."""

    aggregation: ClassVar[str] = "mean"
    share: Annotated[float, Range(0, 10)] = 1.0

    def conv(self, in_width, out_width, *, last):
        return ContrastConv(in_width, out_width, self.share)
