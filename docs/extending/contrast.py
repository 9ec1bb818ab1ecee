"""A model: each layer sees a row beside its difference from the mean of its neighbours."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fullgraph.nn import Conv, Linear, Stack
from fullgraph.values import Range


class ContrastConv(Conv):
    """Z = X W + b - share * mean_{j -> i} X_j V."""

    def __init__(self, in_width, out_width, share):
        super().__init__(in_width, out_width)
        self.own, self.neighbours, self.share = (
            Linear(in_width, out_width),
            Linear(in_width, out_width, bias=False),
            share,
        )

    def forward(self, x, view, layer, row_map):
        if self.plan(x, view, layer).maps_first:  # narrower after the map, or sparse before it
            rows = row_map(x, view.ids)
            return self.own(rows) - self.share * view.aggregate(self.neighbours(rows), layer)
        message = view.send(x, layer, row_map)
        own = self.own(message.own)  # hides the wire
        return own - self.share * self.neighbours(message.aggregate())


@dataclass(frozen=True, kw_only=True)
class Contrast(Stack):
    """Has the options of all models, such as layers, hidden, norm and dropout; and `share`."""

    aggregation: ClassVar[str] = "mean"
    share: Annotated[float, Range(0, 10)] = 1.0

    def conv(self, in_width, out_width, *, last):
        return ContrastConv(in_width, out_width, self.share)
