"""A local graph made ready to be seen, through channels of its own each time."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fullgraph.exchange import Clock, Wire, Wires
from fullgraph.nn.view import Features
from fullgraph.ops import aligned_rows, host_rows
from fullgraph.placement.channel_view import Known, KnownHalo
from fullgraph.placement.holding.live import Live
from fullgraph.placement.holding.local import SPLITS, LocalGraph
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.shard import ResumableView, Rows
from fullgraph.transport import Key, Transport

COLUMNS = 32  # of input rows on the host, aggregated at once
ROWS = 1 << 17  # brought to the device at once for that


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scene(ABC):
    """What a rank holds of one graph; a placement adds how it sees the rest."""

    local: LocalGraph
    transport: Transport
    num_nodes: int
    counts: dict[str, int]  # split -> nodes over all ranks
    known: Known | KnownHalo | None = None

    @abstractmethod
    def view(self, name: str, wire: Wires, clock: Clock, rules: Rules = Rules()) -> ResumableView: ...

    def trimmed(self, live: Live | None) -> Self:
        """The same scene for training, where layers compute only the rows that are read, if the placement can."""
        return self

    @property
    def live(self) -> dict[int, int]:
        """By layer: how many rows of this rank it computes, where those are not all."""
        return {}

    def rows(self, name: str, wire: Wires, clock: Clock, rules: Rules) -> Rows:
        splits = {split: mask.nonzero().flatten() for split, mask in self.local.masks.items()}
        view = self.view(name, wire, clock, rules)
        return Rows(view, self.local.x, self.local.y, splits, self.counts, owners=self.transport, live=self.live)

    def knowing(self, aggregated: Features | None, name: str) -> Self:
        """The same scene with its input's aggregation: the given one, else of dense rows, by one exact pass."""
        x, device = self.local.x, self.local.y.device
        if aggregated is not None:
            return replace(self, known=Known(x, aggregated.to(device=device)))
        if not isinstance(x, Tensor):
            return self
        with torch.no_grad():
            if host_rows.elsewhere(x, device):
                return replace(self, known=Known(x, self._by_columns(x, f"setup/{name} features")))
            x, aggregated = aligned_rows(x), aligned_rows(self._aggregated(x, f"setup/{name} features").to(device))
        return replace(self, local=replace(self.local, x=x), known=Known(x, aggregated))

    def _aggregated(self, x: Tensor, name: str) -> Tensor:
        return self.view(name, Wire(), Clock()).aggregate(x, 0)

    def _by_columns(self, x_nD: Tensor, name: str) -> Tensor:
        """The aggregation of rows on the host, of a few columns at a time: the device never holds all of either."""
        out_nD = torch.empty_like(x_nD, pin_memory=x_nD.is_pinned())
        for first in range(0, x_nD.shape[1], COLUMNS):
            columns = slice(first, first + COLUMNS)
            here_nk = x_nD.new_empty(out_nD[:, columns].shape, device=self.local.y.device)
            for rows, x_bD in host_rows.blocks_on(x_nD, here_nk.device, ROWS):
                here_nk[rows] = x_bD[:, columns]
            out_nD[:, columns] = self._aggregated(here_nk, f"{name} {first}")
        return out_nD


def counted(local: LocalGraph, transport: Transport, name: str) -> tuple[int, dict[str, int]]:
    """Nodes of the graph, and of each split, over all ranks."""
    counts = torch.tensor([len(local.ids), *(int(local.masks[split].sum()) for split in SPLITS)])
    nodes, *splits = transport.all_reduce(Key(f"setup/{name} counts", 0), counts).wait().tolist()
    return nodes, dict(zip(SPLITS, splits, strict=True))
