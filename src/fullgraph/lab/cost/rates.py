"""How long work takes on a machine: tables from measurements (calibrate.py) or from a data sheet.

Data sheets are for devices that cannot be measured here. The shares of a sheet's figures that our kernels reach are
assumed, not measured. `fullgraph calibrate` measures them on a device that is present.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from fullgraph.errors import InputError, nearest
from fullgraph.lab.cost.script import Work
from fullgraph.storage import read_record, write_document
from fullgraph.values import Range, Value, tree_of

Positive = Annotated[float, Range(0, 1e30)]
FIX = "make it again with `fullgraph calibrate`"


@dataclass(frozen=True, kw_only=True)
class Curve(Value):
    """Figures at some sizes: a power law between two sizes, constant beyond the first and the last."""

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
    """Seconds of one rank, with its threads or its device.

    arc, row: time of a sparse product per arc and per row, by width. arc_near: per arc whose source is close to other
    rows that are read; `near` of a graph is the share of such arcs.
    flop, flop_back: of a dense product of many rows with a matrix, and of its weights' gradient, by the mean of the
    matrix's two sides. byte: of elementwise passes, by their bytes. chosen: per byte of rows picked from many.
    number: time of dropout per number. encode, decode: per number, by bits. arc_number: per number that each arc has
    (attention). call: per operation, in addition. scale: the ratio of a real step's time to the sum of these figures.
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
        """near: the share of arcs that read rows close to one another, from 0 to 1."""
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
                raise AssertionError(f"work of an unknown kind: {work}")
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


# assumed shares of the sheet's figures; near rows are mostly in the cache
PASSES, PRODUCTS, NEAR, DENSE = 0.8, 0.5, 1.6, 0.6
LAUNCH_S = 6e-6


class Sheet(NamedTuple):
    """Bytes per second, and float32 operations per second."""

    bandwidth: float
    flops: float


DEVICES = {
    "rtx2080ti": Sheet(616e9, 13.4e12),
    "t4": Sheet(300e9, 8.1e12),
    "v100": Sheet(900e9, 15.7e12),
    "a100": Sheet(1555e9, 19.5e12),
    "h100": Sheet(3350e9, 67e12),
    "h200": Sheet(4800e9, 67e12),
}


def rates_of(name: str) -> Rates:
    if name not in DEVICES:
        told = f"device {name!r} is unknown{nearest(name, DEVICES)}"
        raise InputError(f"{told}; known: here, a file of `fullgraph calibrate`, {', '.join(DEVICES)}")
    sheet = DEVICES[name]
    byte = 1 / sheet.bandwidth

    def always(value: float) -> Curve:
        return Curve(sizes=(1.0,), values=(value,))

    return Rates(
        device=name,
        arc=always(4 * byte / PRODUCTS),
        arc_near=always(4 * byte / PRODUCTS / NEAR),
        row=always(8 * byte / PASSES),
        flop=always(1 / (DENSE * sheet.flops)),
        flop_back=always(1 / (DENSE * sheet.flops)),
        byte=always(byte / PASSES),
        chosen=byte / PRODUCTS,
        number=8 * byte / PASSES,
        encode=always(5 * byte / PASSES),
        decode=always(5 * byte / PASSES),
        arc_number=12 * byte / PASSES,
        call=LAUNCH_S,
    )
