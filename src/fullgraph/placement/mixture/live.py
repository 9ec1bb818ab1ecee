"""Live rows of a mixture: a layer aggregates only rows that the loss reads, and columns of only the rows they need.

Every rank's rows are in the order of their distance to a training node. So what a layer computes is the first rows of
every rank, as where rows have a halo (holding/live.py).
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.holding.live import Live
from fullgraph.placement.holding.shared import Leaders, Patterned, share_matrices
from fullgraph.placement.mixture.grid import Grid
from fullgraph.placement.mixture.rows import BlockRows
from fullgraph.transport import Key, Transport, gather_rows


@dataclass(frozen=True, eq=False)
class LayerTiles:
    """What a layer reads and what it computes, of all ranks, and the matrix between the two."""

    sources: BlockRows
    targets: BlockRows
    grid: Grid

    @property
    def own(self) -> int:
        """Rows of this rank that the layer computes."""
        return sum(self.targets.own)

    @cached_property
    def among(self) -> Tensor | None:
        """Of one block: where the targets are among the sources of all ranks; None: they are the same rows."""
        if self.targets == self.sources:
            return None
        (read,), (computed,) = self.sources.table, self.targets.table
        pairs = zip(accumulate(read[:-1], initial=0), computed, strict=True)
        device = self.grid.patterns[0].indptr.device
        return torch.cat([torch.arange(first, first + rows, device=device) for first, rows in pairs])


def fewer_tiles(
    whole: LayerTiles, live: Live, transport: Transport, device: torch.device, name: str
) -> dict[int, LayerTiles]:
    """The layers that compute fewer rows than there are, by number; their matrices are held once on every machine."""
    (counts,) = whole.sources.table
    level_N = gather_rows(live.level_n.cpu(), transport, Key(f"{name} levels", 0))
    everywhere = torch.ones_like(level_N, dtype=torch.bool)
    read = [everywhere, *(everywhere if hop is None else level_N <= hop for hop in live.hops)]
    layers = {layer: pair for layer, pair in enumerate(pairwise(read)) if live.hops[layer] is not None}

    def make(leaders: Leaders) -> dict[str, Patterned] | None:
        if transport.rank not in leaders:
            return None
        grid = whole.grid.to(torch.device("cpu"))
        matrix, arcs = grid.cells[0, 0], Adjacency(grid.patterns[0])
        cells: dict[str, Patterned] = {f"{layer}": _between(matrix, *pair) for layer, pair in layers.items()}
        return cells | {f"{layer} arcs": _between(arcs, *pair).structure for layer, pair in layers.items() if attends}

    def rows(kept_N: Tensor) -> BlockRows:
        of_ranks = tuple(int(kept.sum()) for kept in kept_N.split(counts))
        return BlockRows(whole.sources.rank, (of_ranks,))

    attends = whole.grid.patterns[0].num_arcs > 0
    shared = share_matrices(make, transport, f"{name} structure")
    found = {}
    for layer, (sources_N, targets_N) in layers.items():
        cell, arcs = shared[f"{layer}"], shared[f"{layer} arcs"] if attends else whole.grid.patterns[0]
        assert isinstance(cell, Adjacency)
        assert isinstance(arcs, Structure)
        grid = Grid({(0, 0): cell}, (arcs,))
        found[layer] = LayerTiles(rows(sources_N), rows(targets_N), grid.to(device))
    return found


def _between(matrix: Adjacency, sources_N: Tensor, targets_N: Tensor) -> Adjacency:
    """The rows of the targets, which have no arc from a row that is no source."""
    picked = matrix.take(targets_N.nonzero().flatten())
    number_N = torch.cumsum(sources_N, 0, dtype=torch.int32) - 1
    pattern = Structure(picked.structure.indptr, number_N[picked.structure.indices.long()], int(sources_N.sum()))
    col_scale = None if picked.col_scale is None else picked.col_scale[sources_N]
    return Adjacency(pattern, picked.weight, picked.row_scale, col_scale)
