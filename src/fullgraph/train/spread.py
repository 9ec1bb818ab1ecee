"""Weights and buffers with a row per node: each rank holds the rows of its own nodes, and their gradients are local.

A whole state has all rows in their order. Optimizers that update each number separately need no change.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.transport import Key, Transport


class Held(NamedTuple):
    """The rows `ids` of `total` that a rank holds."""

    ids: Tensor
    total: int


class SpreadRows:
    """The tensors of a model, by their names in its state, of which this rank holds some rows."""

    def __init__(self, held: Mapping[str, Held], transport: Transport | None = None, key: str = "") -> None:
        """transport: connects the ranks that hold the other rows. key: the name of the messages."""
        self._held = {name: Held(ids.cpu(), total) for name, (ids, total) in held.items()}
        self.transport, self._key, self._gathered = transport, key, 0

    def __bool__(self) -> bool:
        return bool(self._held)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def whole(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state dict with the rows of all ranks; every rank must call this."""
        return {name: self.gathered(name, x) if name in self else x for name, x in state.items()}

    @torch.no_grad()
    def gathered(self, name: str, rows: Tensor) -> Tensor:
        """The rows of all nodes in the tensor of that name, or in one of the same rows."""
        assert self.transport is not None
        self._gathered += 1
        out = spread(rows.detach().cpu(), *self._held[name])
        whole = out.to(torch.uint8) if out.dtype == torch.bool else out
        whole = self.transport.all_reduce(Key(f"{self._key} whole", self._gathered), whole).wait()
        return whole.to(rows.device, rows.dtype)

    def at_places(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This rank's rows at their places among all rows, zeros elsewhere."""
        return {name: spread(x, *self._held[name]) if name in self else x for name, x in values.items()}

    def own(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Reduce a whole state dict to this rank's rows."""
        return {name: self.rows_of(name, x) if name in self else x for name, x in state.items()}

    def rows_of(self, name: str, whole: Tensor) -> Tensor:
        ids, total = self._held[name]
        if whole.shape[:1] != (total,):
            raise InputError(f"a table has {len(whole)} rows where the graph has {total} nodes")
        return whole[ids.to(whole.device)]


def spread(rows: Tensor, ids: Tensor, total: int) -> Tensor:
    """The rows at their places among all rows, zeros elsewhere."""
    out = rows.new_zeros(total, *rows.shape[1:])
    out[ids.to(rows.device)] = rows
    return out
