"""Quantize every row with a number of bits that was chosen for that row."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.codec.base import Shape
from fullgraph.codec.lowbit import CHOICES, LowBit
from fullgraph.ops.lowbit import lowbit_spans, row_bytes
from fullgraph.transport.key import Key


@dataclass(frozen=True, eq=False)
class ByRow:
    """Encode each row with LowBit(its bits), grouped by number of bits in ascending order. Both ends know `bits_n`."""

    bits_n: Tensor  # on the host, each one of CHOICES

    @cached_property
    def _rows(self) -> list[tuple[int, Tensor]]:
        """For every number of bits in use: its index in CHOICES and its rows."""
        found = ((place, (self.bits_n == bits).nonzero().flatten()) for place, bits in enumerate(CHOICES))
        return [(place, rows) for place, rows in found if len(rows)]

    def encode(self, x: Tensor, key: Key) -> Tensor:
        if len(self._rows) == 1:
            ((codec, _, name),) = self._groups(key)
            return codec.encode(x, name)
        wires = [codec.encode(x[rows.to(x.device)], name) for codec, rows, name in self._groups(key)]
        return torch.cat(wires) if wires else torch.empty(0, dtype=torch.uint8, device=x.device)

    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor:
        if len(self._rows) == 1:
            ((codec, _, name),) = self._groups(key)
            return codec.decode(wire, shape, dtype, name)
        out = torch.empty(shape, dtype=dtype, device=wire.device)
        for codec, rows, part, name in self._parts(wire, shape, key):
            out[rows.to(out.device)] = codec.decode(part, (len(rows), *shape[1:]), dtype, name)
        return out

    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int:
        return sum(len(rows) * row_bytes(prod(shape[1:]), CHOICES[place]) for place, rows in self._rows)

    def spans(self, wire: Tensor, shape: Shape, key: Key) -> Tensor:
        """Read the span (max - min) of every row from its bytes [n], on the host. Both ends get the same values."""
        spans_n = torch.zeros(shape[0])
        for codec, rows, part, _ in self._parts(wire, shape, key):
            spans_n[rows] = lowbit_spans(part.view(len(rows), -1), codec.bits).cpu()
        return spans_n

    def _groups(self, key: Key) -> Iterator[tuple[LowBit, Tensor, Key]]:
        """For every number of bits in use: the codec, the rows, and a key that gives the group its own noise."""
        for place, rows in self._rows:
            yield LowBit(CHOICES[place]), rows, replace(key, chunk=len(CHOICES) * key.chunk + place)

    def _parts(self, wire: Tensor, shape: Shape, key: Key) -> Iterator[tuple[LowBit, Tensor, Tensor, Key]]:
        """The groups of `_groups`, each with its bytes."""
        for codec, rows, name in self._groups(key):
            size = len(rows) * row_bytes(prod(shape[1:]), codec.bits)
            yield codec, rows, wire[:size], name
            wire = wire[size:]
