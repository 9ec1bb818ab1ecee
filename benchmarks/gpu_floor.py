"""The floor of an epoch: the minimum bytes between the GPU and its memory, at the rate of a large copy.

Every tensor that an epoch must read or write counts once per pass over it, as if caches were perfect within a pass and
every elementwise step were fused with its neighbour:

    product    4 bytes per arc and 8 per row of structure, rows in, rows out; forward, and backward except in layer 0.
               A row that many arcs read counts ONCE. In reality each arc reads it again, at best from L2, so an epoch
               on a dense graph stays far above this floor: the difference is the cost of those reads.
    dense      forward: inputs read, output written. backward: gradient and inputs read, inputs' gradients written.
    rows       norm, activation and dropout: read and written once; backward: gradient and input read, one written.
    loss       logits read, their gradient written.
    optimizer  Adam: weights, gradients and two moments read, weights and moments written, in fp32.

Only the rows that training computes count (live rows). Layer 0's aggregation is known ahead if the model allows it.
A layer that narrows its rows maps them first. Two more counts explain the difference: the bytes that arcs read through
caches (one row per arc and product), and the floating-point operations of the dense products.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from gpu_common import Bench


@dataclass
class Floor:
    """Bytes of an epoch, by kind."""

    bytes: dict[str, int] = field(default_factory=dict)
    gathered: int = 0  # bytes that arcs read, mostly from caches
    flops: int = 0  # of dense products

    def add(self, kind: str, nbytes: int) -> None:
        self.bytes[kind] = self.bytes.get(kind, 0) + nbytes

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


class Size(NamedTuple):
    """A layer computes `targets` rows and reads `sources` rows along `arcs`."""

    targets: int
    sources: int
    arcs: int


def floor_of(
    kind: str, sizes: list[Size], widths: list[int], itemsize: int, *, known: bool, norm: bool, heads: int = 4
) -> Floor:
    """Return the floor of a training epoch on one rank; `known`: layer 0's aggregation is computed ahead."""
    floor, last = Floor(), len(sizes) - 1
    for layer, ((i, o), size) in enumerate(zip(pairwise(widths), sizes, strict=True)):
        first, inputs = layer == 0, 2 if kind == "sage" else 1
        out = o * heads if kind == "gat" and layer == last else o  # the last layer averages its heads
        if kind == "gat":
            _attention(floor, size, i, out, heads, itemsize, first)
        else:
            _convolution(floor, size, i, o, itemsize, inputs, first, known and first)
        if layer != last:
            floor.add("rows", (5 if norm else 4) * size.targets * o * itemsize)
        floor.add("optimizer", 7 * 4 * inputs * i * out)
    floor.add("loss", 2 * sizes[-1].targets * widths[-1] * itemsize)
    return floor


def _convolution(floor: Floor, size: Size, i: int, o: int, b: int, inputs: int, first: bool, known: bool) -> None:
    """inputs: 2 if a row's own features and its neighbours' features have separate weights."""
    t, n, arcs = size
    narrow, passes = o < i and not known, 2 if first else 3  # passes of dense work: forward, weights, inputs
    mapped = n + (inputs - 1) * t if narrow else inputs * t  # rows multiplied by a weight matrix
    read, written = (n * i, mapped * o) if narrow else (mapped * i, t * o)
    floor.add("dense", b * (2 * (read + written) + (0 if first else read)))
    floor.flops += 2 * passes * mapped * i * o
    if known:
        return
    crossing = o if narrow else i
    for _ in range(2 if narrow or not first else 1):  # forward, and backward if a gradient is needed
        floor.add("product", 4 * arcs + 8 * t + (n + t) * crossing * b)
        floor.gathered += arcs * crossing * b


def _attention(floor: Floor, size: Size, i: int, o: int, heads: int, b: int, first: bool) -> None:
    t, n, arcs = size
    structure, scores = 4 * arcs + 8 * t, (t + n) * heads * b
    floor.add("dense", b * n * (2 * (i + o) + (0 if first else i)))
    floor.flops += 2 * (2 if first else 3) * n * i * o
    floor.add("product", structure + scores)  # the sums of the softmax
    floor.add("product", structure + scores + b * o * (n + 2 * t))  # rows; the result, and tensors for its gradient
    floor.add("product", structure + 2 * scores + b * o * (2 * n + 2 * t))  # backward: rows, result, gradients
    floor.gathered += 2 * arcs * (o + heads) * b


def copy_rate(bench: Bench, nbytes: int = 1 << 30) -> float:
    """Return the bytes per second of a large copy, read and written."""
    x = torch.empty(nbytes // 4, device=bench.device)
    y = torch.empty_like(x)
    return 2 * x.nbytes / (bench.ms(lambda: y.copy_(x)) / 1e3)
