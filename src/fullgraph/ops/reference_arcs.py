"""Blocks of arcs, so that intermediate results with one value per (arc, feature) stay small."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from fullgraph.ops.structure import Structure

BLOCK = 1 << 24  # maximum numbers of an intermediate result with one value per (arc, feature)


class ArcBlock(NamedTuple):
    """Some arcs and their rows."""

    arcs: slice
    target: Tensor
    source: Tensor


def arc_blocks(s: Structure, numbers: int) -> Iterator[ArcBlock]:
    """Yield blocks of arcs; their intermediate results have at most `BLOCK` numbers."""
    step = max(1, BLOCK // max(1, numbers))
    for e in range(0, s.num_arcs, step):
        block = slice(e, e + step)
        yield ArcBlock(block, s.rows[block], s.indices[block].long())
