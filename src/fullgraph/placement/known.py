"""Precomputed input: rows that never change, and the message that needs no exchange.

Legend: n owned rows, t of them that a layer computes, D features.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.nn.view import AtOnce, Features, Operand, RowMap


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Input rows and their aggregation, computed once."""

    kind: ClassVar[Literal["aggregate"]] = "aggregate"
    x: Features
    aggregated: Features
    _first: dict[int, "Known"] = field(default_factory=dict, init=False, repr=False)  # by number of rows

    def message(self, rows: int, ids: Tensor, row_map: RowMap) -> "KnownMessage":
        """The message of a layer that computes the first rows."""
        if rows not in self._first:
            self._first[rows] = Known(first_rows(self.x, rows), first_rows(self.aggregated, rows))
        return KnownMessage(self._first[rows], ids[:rows], row_map)


@dataclass(frozen=True, slots=True, eq=False)
class KnownHalo:
    """Input rows and their halo rows, fetched once."""

    kind: ClassVar[Literal["halo"]] = "halo"
    x: Features
    halo: Features

    def of(self, halo_rows: Tensor) -> "KnownHalo":
        """The same with only these halo rows."""
        if len(halo_rows) == self.halo.shape[0]:
            return self
        chosen = self.halo[halo_rows] if isinstance(self.halo, Tensor) else self.halo.take(halo_rows)
        return KnownHalo(self.x, chosen)


def first_rows(x: Features, rows: int) -> Features:
    """The first rows of x, without a copy."""
    if rows == x.shape[0]:
        return x
    return x[:rows] if isinstance(x, Tensor) else x.span(0, rows)


def with_first(x_nD: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(first rows of x, x); the gradient of the first rows is added to the gradient of x in place."""
    first_tD, x_nD = _WithFirst.apply(x_nD, count)  # type: ignore[no-untyped-call]
    return first_tD, x_nD


class _WithFirst(torch.autograd.Function):
    """(x[:t], x);  backward: dx = d2, with d1 added to its first rows in place, because nothing else uses d2."""

    @staticmethod
    def forward(ctx, x_nD: Tensor, count: int):  # type: ignore[no-untyped-def]
        ctx.rows = len(x_nD)
        ctx.set_materialize_grads(False)
        return x_nD[:count], x_nD.view_as(x_nD)

    @staticmethod
    def backward(ctx, first_tD: Tensor | None, grad_nD: Tensor | None):  # type: ignore[no-untyped-def]
        if first_tD is None:
            return grad_nD, None
        if grad_nD is None:
            return torch.nn.functional.pad(first_tD, (0, 0, 0, ctx.rows - len(first_tD))), None
        grad_nD[: len(first_tD)] += first_tD
        return grad_nD, None


class KnownMessage(AtOnce):
    """A message of precomputed input: nothing is sent, and dropout comes after the aggregation."""

    def __init__(self, known: Known, ids: Tensor, row_map: RowMap) -> None:
        self.known, self.ids, self.row_map = known, ids, row_map

    @cached_property
    def own(self) -> Operand:
        return self.row_map(self.known.x, self.ids)

    def aggregate(self) -> Operand:
        # A separate key: one mask for both would drop a feature from a row and from its neighbours' mean together.
        other = RowMap(relu=self.row_map.relu, p=self.row_map.p, key=self.row_map.key ^ 0x5DEECE66D)
        return other(self.known.aggregated, self.ids)
