"""A few bits a number, and for every row as many as it was given."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from fullgraph.codec.base import Shape
from fullgraph.codec.lowbit import CHOICES, LowBit
from fullgraph.ops.lowbit import lowbit_spans, row_bytes
from fullgraph.transport.key import Key


@dataclass(frozen=True, slots=True, eq=False)
class ByRow:
    """LowBit(b) for the rows whose bits are b, those of fewer bits first. Both ends know the bits."""

    bits_n: Tensor  # on the host, each one of CHOICES

    def encode(self, x: Tensor, key: Key) -> Tensor:
        wires = [codec.encode(x[rows.to(x.device)], name) for codec, rows, name in self._groups(key)]
        return torch.cat(wires) if wires else torch.empty(0, dtype=torch.uint8, device=x.device)

    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor:
        out = torch.empty(shape, dtype=dtype, device=wire.device)
        for codec, rows, part, name in self._parts(wire, shape, key):
            out[rows.to(out.device)] = codec.decode(part, (len(rows), *shape[1:]), dtype, name)
        return out

    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int:
        return sum(len(rows) * row_bytes(prod(shape[1:]), codec.bits) for codec, rows, _ in self._groups(key))

    def spans(self, wire: Tensor, shape: Shape, key: Key) -> Tensor:
        """The span of every row, as both ends read it off the wire [n], on the host."""
        spans_n = torch.zeros(shape[0])
        for codec, rows, part, _ in self._parts(wire, shape, key):
            spans_n[rows] = lowbit_spans(part.view(len(rows), -1), codec.bits).cpu()
        return spans_n

    def _groups(self, key: Key) -> Iterator[tuple[LowBit, Tensor, Key]]:
        """The codec, the rows and the key (noise of its own) of each number of bits there is."""
        for place, bits in enumerate(CHOICES):
            rows = (self.bits_n == bits).nonzero().flatten()
            if len(rows):
                yield LowBit(bits), rows, replace(key, chunk=len(CHOICES) * key.chunk + place)

    def _parts(self, wire: Tensor, shape: Shape, key: Key) -> Iterator[tuple[LowBit, Tensor, Tensor, Key]]:
        """The same, with the bytes of each."""
        for codec, rows, name in self._groups(key):
            size = len(rows) * row_bytes(prod(shape[1:]), codec.bits)
            yield codec, rows, wire[:size], name
            wire = wire[size:]
