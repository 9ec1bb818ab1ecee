"""Quantize rows with few bits, and more important rows with more bits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from fullgraph.codec.base import Shape
from fullgraph.codec.lowbit import CHOICES, LowBit
from fullgraph.transport.key import Key

GRADES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Graded:
    """Encode rows of grade g = 0..3 with LowBit(min(b 2^g, 8)), grade by grade; b depends on the step  (Sylvie, ICDE
    2024).

    Both ends know the grades of a message's rows, so they know its size without communication.
    """

    bits_at: Callable[[int], int]  # step -> b
    grades_of: Callable[[Key], Tensor]  # message -> [n] grades of its rows

    def encode(self, x: Tensor, key: Key) -> Tensor:
        wires = [codec.encode(x[rows.to(x.device)], name) for codec, rows, name in self._groups(key)]
        return torch.cat(wires) if wires else torch.empty(0, dtype=torch.uint8, device=x.device)

    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor:
        out = torch.empty(shape, dtype=dtype, device=wire.device)
        for codec, rows, name in self._groups(key):
            part = (len(rows), *shape[1:])
            size = codec.nbytes(part, dtype, name)
            out[rows.to(out.device)] = codec.decode(wire[:size], part, dtype, name)
            wire = wire[size:]
        return out

    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int:
        return sum(codec.nbytes((len(rows), prod(shape[1:])), dtype, name) for codec, rows, name in self._groups(key))

    def _groups(self, key: Key) -> Iterator[tuple[LowBit, Tensor, Key]]:
        """For every grade that occurs: the codec, the rows, and a key that gives the grade its own noise."""
        bits, grades_n = self.bits_at(key.step), self.grades_of(key)
        for grade in range(GRADES):
            rows = (grades_n == grade).nonzero().flatten()
            if len(rows):
                yield LowBit(min(bits << grade, CHOICES[-1])), rows, replace(key, chunk=GRADES * key.chunk + grade)


def quartiles(values_n: Tensor, among: Tensor) -> Tensor:
    """The grade of each value: 0 in the lowest quarter of `among`, 3 in the highest; equal values have equal grades."""
    if not len(among):
        return torch.zeros_like(values_n, dtype=torch.uint8)
    ordered = among.sort().values
    bounds = ordered[[max(len(ordered) * quarter // GRADES - 1, 0) for quarter in range(1, GRADES)]]
    return torch.bucketize(values_n, bounds).to(torch.uint8)
