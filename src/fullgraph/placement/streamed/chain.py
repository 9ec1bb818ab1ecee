"""A model as links between values: which rows each block reads, which it writes, and which values share a store.

Value 0 is the input. A value has rows, and in the backward pass gradients of these rows; both live in stores that
other values use before and afterwards. A block may pass a value on unchanged; its gradients then add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.nn import Chain
from fullgraph.nn.conv import Conv
from fullgraph.nn.model import Block, State
from fullgraph.nn.norm import BatchNorm
from fullgraph.nn.view import Features, GraphView


@dataclass(frozen=True, eq=False)
class Link:
    """A block, the values that it reads, and the values of its output; `new` are those that it computes."""

    block: Block
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    spreads: bool  # whether it reads rows of neighbours

    @property
    def new(self) -> list[tuple[int, int]]:
        """(place in its output, value) of the values that it computes."""
        return [(place, value) for place, value in enumerate(self.writes) if value not in self.reads]


@dataclass(frozen=True, eq=False)
class Links:
    """The blocks of a model in order, and the width of each value."""

    links: tuple[Link, ...]
    widths: tuple[int, ...]  # by value; the last ones are the model's output

    @classmethod
    def of(cls, model: Chain, x: Features, view: GraphView, *, known: bool) -> "Links":
        """Run the model on few rows, and see what passes from block to block. known: its input is precomputed."""
        if any(isinstance(part, BatchNorm) for part in model.modules()):
            raise InputError("a batch norm needs all rows at once, and layers in parts have some: use --norm layer")
        values: list[Tensor | Features] = [x]
        state: State = (x,)
        links = list[Link]()
        with torch.no_grad():
            for block in model.blocks:
                out = block(state, view)
                reads = tuple(_place(values, one) for one in state)
                values += [one for one in out if not any(one is held for held in values)]
                writes = tuple(_place(values, one) for one in out)
                spreads = any(isinstance(part, Conv) for part in block.modules()) and not (known and not links)
                links.append(Link(block, reads, writes, spreads))
                state = out
        return cls(tuple(links), tuple(int(value.shape[1]) for value in values))

    def kind(self, value: int) -> tuple[int, bool]:
        """The width of a value, and whether a block reads it of neighbours."""
        return self.widths[value], any(link.spreads and value in link.reads for link in self.links)

    def first_reader(self, value: int) -> int:
        return min((place for place, link in enumerate(self.links) if value in link.reads), default=len(self.links))


def _place(values: Sequence[object], one: object) -> int:
    return next(place for place, held in enumerate(values) if held is one)


@dataclass
class Slots:
    """Which store holds the rows and the gradients of each value; a store is used again as soon as it is free."""

    kinds: list[tuple[int, bool]] = field(default_factory=list)  # by store: its width, and whether parts read others'
    rows: dict[int, int] = field(default_factory=dict)  # by value
    grads: dict[int, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, model: Links) -> "Slots":
        slots, last = cls(), len(model.links) - 1
        for link in model.links[:last]:
            for _, value in link.new:
                slots.rows[value] = slots._take(model.kind(value))
        for place in range(last, -1, -1):
            link = model.links[place]
            for value in link.reads:
                if value and value not in slots.grads:
                    slots.grads[value] = slots._take(model.kind(value))
            for value in link.reads:
                if value and model.first_reader(value) == place:
                    slots._free.append(slots.rows[value])
            for _, value in link.new:
                if value in slots.grads:
                    slots._free.append(slots.grads[value])
        return slots

    def _take(self, kind: tuple[int, bool]) -> int:
        for place in self._free:
            if self.kinds[place] == kind:
                self._free.remove(place)
                return place
        self.kinds.append(kind)
        return len(self.kinds) - 1
