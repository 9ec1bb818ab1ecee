"""A local graph made ready to be seen, through channels of its own each time."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fullgraph.exchange import Clock, Wire, Wires
from fullgraph.nn.view import Features
from fullgraph.placement.channel_view import Known
from fullgraph.placement.live import Live
from fullgraph.placement.local import SPLITS, LocalGraph
from fullgraph.placement.shard import ResumableView, Rows
from fullgraph.transport import Key, Transport


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scene(ABC):
    """What a rank holds of one graph; a placement adds how it sees the rest."""

    local: LocalGraph
    transport: Transport
    num_nodes: int
    counts: dict[str, int]  # split -> nodes over all ranks
    known: Known | None = None

    @abstractmethod
    def view(self, name: str, wire: Wires, clock: Clock, narrow_first: bool = True) -> ResumableView: ...

    def trimmed(self, live: Live | None) -> Self:
        """The same scene for training, where layers compute only the rows that are read, if the placement can."""
        return self

    def rows(self, name: str, wire: Wires, clock: Clock, narrow_first: bool) -> Rows:
        splits = {split: mask.nonzero().flatten() for split, mask in self.local.masks.items()}
        return Rows(self.view(name, wire, clock, narrow_first), self.local.x, self.local.y, splits, self.counts)

    def knowing(self, aggregated: Features | None, name: str) -> Self:
        """The same scene with its input's aggregation: the given one, else of dense rows, by one exact pass."""
        x = self.local.x
        if aggregated is None and isinstance(x, Tensor):
            with torch.no_grad():
                aggregated = self.view(f"setup/{name} features", Wire(), Clock()).aggregate(x, 0)
        if aggregated is None:
            return self
        return replace(self, known=Known(x, aggregated.to(device=self.local.y.device)))


def counted(local: LocalGraph, transport: Transport, name: str) -> tuple[int, dict[str, int]]:
    """Nodes of the graph, and of each split, over all ranks."""
    counts = torch.tensor([len(local.ids), *(int(local.masks[split].sum()) for split in SPLITS)])
    nodes, *splits = transport.all_reduce(Key(f"setup/{name} counts", 0), counts).wait().tolist()
    return nodes, dict(zip(SPLITS, splits, strict=True))
