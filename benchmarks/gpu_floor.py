"""The floor of an epoch: the bytes it must move between the GPU and its memory, at the rate of a large copy.

Every tensor that an epoch must read or write is counted once for each pass over it, as if caches were perfect within a
pass and every step on single numbers were fused with its neighbour:

    product    4 bytes an arc and 8 a row of structure, rows in, rows out; forward, and backward unless it is layer 0.
               A row that many arcs read counts ONCE. In truth each arc reads it again, from L2 at best, so an epoch on
               a dense graph stays far from this floor: what is missing is the price of those reads.
    dense      forward: inputs read, output written. backward: gradient and inputs read, inputs' gradients written.
    rows       norm, activation and dropout: read and written once; backward: gradient and input read, one written.
    loss       logits read, their gradient written.
    optimizer  Adam: weights, gradients and two moments read, weights and moments written, in fp32.

Layer 0's aggregation is known ahead where the model allows it. A layer that narrows its rows maps them first. Beside
the floor stand two counts that say where the rest goes: the bytes that arcs read through caches (every arc its row,
every product), and the floating-point operations of the dense products.
"""

from dataclasses import dataclass, field
from itertools import pairwise

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


def floor_of(
    kind: str, nodes: int, arcs: int, widths: list[int], itemsize: int, *, known: bool, norm: bool, heads: int = 4
) -> Floor:
    """Of one training epoch of a GCN, GraphSAGE or GAT on one rank; `known`: layer 0's aggregation is made ahead."""
    floor = Floor()
    for layer, (i, o) in enumerate(pairwise(widths)):
        first, last = layer == 0, layer == len(widths) - 2
        if kind == "gat":
            out = o * heads if last else o  # heads side by side, but for the last layer's mean
            _attention(floor, nodes, arcs, i, out, heads, itemsize, first)
        else:
            _convolution(floor, nodes, arcs, i, o, itemsize, 2 if kind == "sage" else 1, first, known and first)
        if not last:
            floor.add("rows", (2 + 3) * nodes * o * itemsize if norm else (2 + 2) * nodes * o * itemsize)
        weights = i * o * {"sage": 2, "gcn": 1, "gat": heads if last else 1}[kind]
        floor.add("optimizer", 7 * 4 * weights)
        floor.flops += 2 * nodes * weights * (2 if first else 3)
    floor.add("loss", 2 * nodes * widths[-1] * itemsize)
    return floor


def _convolution(
    floor: Floor, n: int, arcs: int, i: int, o: int, b: int, inputs: int, first: bool, known: bool
) -> None:
    """inputs: 2 where a row's own features and its neighbours' have weights of their own."""
    structure = 4 * arcs + 8 * n
    narrow = o < i and not known
    if known:
        floor.add("dense", n * b * (inputs * i + o) + n * b * (o + inputs * i))
        return
    crossing = o if narrow else i
    read, written = (i, inputs * o) if narrow else (inputs * i, o)
    floor.add("dense", n * b * (read + written) + n * b * (written + read + (0 if first else read)))
    for _ in range(2 if narrow or not first else 1):  # forward, and backward where a gradient is wanted
        floor.add("product", structure + 2 * n * crossing * b)
        floor.gathered += arcs * crossing * b


def _attention(floor: Floor, n: int, arcs: int, i: int, o: int, heads: int, b: int, first: bool) -> None:
    structure = 4 * arcs + 8 * n
    floor.gathered += 2 * arcs * (o + heads) * b
    floor.add("dense", n * b * (i + o) + n * b * (o + i + (0 if first else i)))
    scores = 2 * n * heads * b
    floor.add("product", structure + scores)  # the softmax's sums
    floor.add("product", structure + scores + n * o * b * 3)  # rows read; the result, and what its gradient needs
    floor.add("product", structure + 2 * scores + n * o * b * 4)  # backward: rows, result, gradient; one written


def copy_rate(bench: Bench, nbytes: int = 1 << 30) -> float:
    """Bytes a second that a large copy moves, read and written."""
    x = torch.empty(nbytes // 4, device=bench.device)
    y = torch.empty_like(x)
    return 2 * x.nbytes / (bench.ms(lambda: y.copy_(x)) / 1e3)
