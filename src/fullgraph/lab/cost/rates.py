"""How long work takes on a machine: a few tables, from measurements (calibrate.py) or from a data sheet."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fullgraph.lab.cost.script import Work
from fullgraph.storage import read_record, write_document
from fullgraph.values import Range, Value, tree_of

Positive = Annotated[float, Range(0, 1e30)]
FIX = "make it again with `fullgraph calibrate`"


@dataclass(frozen=True, kw_only=True)
class Curve(Value):
    """A figure at some sizes; between them it follows a power of the size, beyond them it stays as it is."""

    sizes: tuple[Positive, ...]
    values: tuple[Positive, ...]

    def at(self, size: float) -> float:
        sizes, values = self.sizes, self.values
        if size <= sizes[0] or len(sizes) == 1:
            return values[0]
        if size >= sizes[-1]:
            return values[-1]
        right = bisect_left(sizes, size)
        low, high = sizes[right - 1], sizes[right]
        part = math.log(size / low) / math.log(high / low)
        return math.exp(math.log(values[right - 1]) * (1 - part) + math.log(values[right]) * part)


@dataclass(frozen=True, kw_only=True)
class Rates(Value):
    """Seconds of one rank, with the threads or the device that it has.

    arc, row: of a sparse product, for each arc and each row, by width. arc_near: of an arc whose source lies close to
    the other rows that are read; a graph's own `near` says how many are so.
    flop, flop_back: of a dense product of many rows with a matrix, and of its weights' gradient, by the mean of the
    matrix's two sides. byte: of what passes over numbers, by its bytes. chosen: of a byte of rows picked from many.
    number: of dropout. encode, decode: of a number, by bits. arc_number: of a number that each arc has (attention).
    call: of each operation besides. scale: what a real step took to what these figures say.
    """

    device: str
    threads: Annotated[int, Range(1, 4096)] = 1
    arc: Curve
    arc_near: Curve
    row: Curve
    flop: Curve
    flop_back: Curve
    byte: Curve
    chosen: Positive
    number: Positive
    encode: Curve
    decode: Curve
    arc_number: Positive
    call: Positive
    scale: Positive = 1.0

    def seconds(self, work: Work, near: float = 0.0) -> float:
        """near: which share of arcs reads rows close to one another, from 0 to 1."""
        match work.kind, work.sizes:
            case "product", (rows, arcs, width):
                arc = self.arc.at(width) * (1 - near) + self.arc_near.at(width) * near
                taken = width * (arcs * arc + rows * self.row.at(width))
            case "dense", (m, k, n):
                taken = self._dense(m, k, n)
            case "pass", (nbytes,):
                taken = nbytes * self.byte.at(nbytes)
            case "rows", (rows, width):
                taken = rows * width * 8 * self.chosen
            case "dropout", (numbers,):
                taken = numbers * self.number
            case "encode", (numbers, bits):
                taken = numbers * self.encode.at(bits)
            case "decode", (numbers, bits):
                taken = numbers * self.decode.at(bits)
            case "arcs", (arcs, heads):
                taken = arcs * heads * self.arc_number
            case _:
                raise AssertionError(f"work of a kind that has no price: {work}")
        return self.scale * (self.call + taken)

    def _dense(self, m: int, k: int, n: int) -> float:
        longest = max(m, k, n)
        side = math.sqrt(m * k * n / max(1, longest))
        curve = self.flop_back if k == longest and k > max(m, n) else self.flop
        return 2 * m * k * n * curve.at(side)

    def write(self, path: Path, over: str = "") -> None:
        write_document(path, tree_of(self), over)

    @classmethod
    def read(cls, path: Path) -> Rates:
        return read_record(cls, path, fix=FIX)
