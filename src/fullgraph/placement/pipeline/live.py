"""Live rows of a pipeline: a layer computes, of every chunk, only the rows that the loss reads.

The rows of a chunk are in the order of their distance to a training node. So what a layer computes of a chunk are its
first rows, as where rows have a halo (holding/live.py). A historical row is read where the fresh one would be, so
snapshots need no other rows; and the gradients of other rows are zero, historical or not.

Legend: W ways, K chunks a way, V levels: hops from a training node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.holding.live import Hops


@dataclass(frozen=True, eq=False)
class LiveRows:
    """How many rows of every chunk of a way each layer computes."""

    whole: Sequence[int]  # by chunk: all rows
    fewer: Mapping[int, Sequence[int]] = field(default_factory=dict)  # by layer, where those are not all; then by chunk
    arcs: Mapping[int, float] = field(default_factory=dict)  # of the same layers: their share of the way's arcs

    def after(self, layer: int) -> Sequence[int]:
        """By chunk: how many rows there are behind a layer, which may be a dense one."""
        trimmed = [found for found in self.fewer if found <= layer]
        return self.fewer[max(trimmed)] if trimmed else self.whole

    def shares(self, layer: int) -> tuple[float, float]:
        """Of all rows, and of all arcs, those that a layer has to do with."""
        return sum(self.after(layer)) / max(1, sum(self.whole)), self.arcs.get(layer, 1.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Numbering:
    """Nodes numbered by way, then by chunk, then by level."""

    number_n: Tensor  # of this rank's rows
    starts: Tensor  # [W, K + 1] where each way's chunks begin
    near: Tensor  # [W, K, V] rows of a chunk that are so near, or nearer
    hops: Hops  # by layer; None: it computes all rows

    @property
    def trimmed(self) -> list[int]:
        """The layers that do not compute all rows."""
        return [layer for layer, hop in enumerate(self.hops) if hop is not None]

    def computed(self, layer: int | None) -> Tensor:
        """How many rows a layer computes [W, K]; all of them are computed by no layer (None), and before the first."""
        hop = None if layer is None or layer < 0 else self.hops[layer]
        return self.near[:, :, -1 if hop is None else hop]

    def is_computed(self, way: int, layer: int | None) -> Tensor:
        """Which rows of a way a layer computes, [w]."""
        starts = self.starts[way]
        sizes = starts.diff()
        within = torch.arange(int(sizes.sum())) - torch.repeat_interleave(starts[:-1] - starts[0], sizes)
        return within < torch.repeat_interleave(self.computed(layer)[way], sizes)


def rows_kept(matrix: Adjacency, kept_R: Tensor) -> Adjacency:
    """The matrix with the other rows empty."""
    counts = matrix.structure.indptr.diff()
    arcs = torch.repeat_interleave(kept_R, counts)
    indptr = torch.nn.functional.pad((counts * kept_R).cumsum(0), (1, 0))
    pattern = Structure(indptr, matrix.structure.indices[arcs], matrix.structure.num_cols)
    weight = None if matrix.weight is None else matrix.weight[arcs]
    return Adjacency(pattern, weight, matrix.row_scale, matrix.col_scale)
