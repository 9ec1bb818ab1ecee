"""The whole matrix in blocks of rows and columns, so that a block's product needs only the blocks that it reads.

Legend: N nodes in blocks, N_b of them in block b.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.holding.adjacency import Arcs, Matrices
from fullgraph.placement.holding.shared import Patterned
from fullgraph.placement.holding.whole import share_whole
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.transport import Transport


@dataclass(frozen=True, eq=False)
class Grid:
    """Z_b = sum_j M_bj X_j  over the cells that have arcs; for attention, the pattern of each block's rows."""

    cells: dict[tuple[int, int], Adjacency]  # the diagonal always, so that every block is read
    patterns: tuple[Structure, ...]  # [N_b, N], self loops included

    def row(self, block: int) -> dict[int, Adjacency]:
        """The cells of a block's rows, by the block that they read."""
        return {j: cell for (b, j), cell in self.cells.items() if b == block}

    def to(self, device: torch.device) -> "Grid":
        cells = {place: cell.to(device=device) for place, cell in self.cells.items()}
        return Grid(cells, tuple(pattern.to(device) for pattern in self.patterns))


def whole_grid(
    graph: RankGraph, number_n: Tensor, sizes: tuple[int, ...], transport: Transport, aggregation: str,
    dtype: torch.dtype, name: str,
) -> Grid:  # fmt: skip
    """The grid of the whole graph, shared by a machine's ranks; blocks of those sizes follow one another."""

    def make(matrices: Matrices) -> Mapping[str, Patterned]:
        cells = {f"{b} {j}": cell for (b, j), cell in _cells(matrices.inner, sizes).items()}
        return cells | {f"{b}": pattern for b, pattern in enumerate(_patterns(matrices.arcs, sizes))}

    shared = share_whole(make, graph, number_n, sum(sizes), transport, aggregation, dtype, name)
    cells, patterns = {}, []
    for place, value in shared.items():
        if isinstance(value, Adjacency):
            b, j = map(int, place.split())
            cells[b, j] = value
        else:
            patterns.append(value)
    return Grid(cells, tuple(patterns))


def _cells(matrix: Adjacency, sizes: tuple[int, ...]) -> dict[tuple[int, int], Adjacency]:
    if len(sizes) == 1:
        return {(0, 0): matrix}
    ends = torch.tensor(list(accumulate(sizes)))
    cols = None if matrix.col_scale is None else matrix.col_scale.split(sizes)
    cells = {}
    for b, span in enumerate(_spans(sizes)):
        rows = matrix.span(*span)
        arcs = Arcs(rows.structure.indptr, rows.structure.indices, rows.weight, 0)
        block_of = torch.bucketize(arcs.indices, ends, right=True)
        for j, size in enumerate(sizes):
            chosen = block_of == j
            if j != b and not bool(chosen.any()):
                continue
            cell = arcs.keep(chosen)
            pattern = Structure(cell.indptr, cell.indices - (int(ends[j]) - size), size)
            cells[b, j] = Adjacency(pattern, cell.weight, rows.row_scale, None if cols is None else cols[j])
    if matrix.structure.T is matrix.structure:
        for (b, j), one in cells.items():
            one.structure.paired(cells[j, b].structure, None)
    return cells


def _patterns(arcs: Structure, sizes: tuple[int, ...]) -> list[Structure]:
    return [arcs.span(low, high) for low, high in _spans(sizes)] if len(sizes) > 1 else [arcs]


def _spans(sizes: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    return pairwise([0, *accumulate(sizes)])
