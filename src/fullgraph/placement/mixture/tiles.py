"""The whole matrix in blocks of rows and columns, so that a block's product needs only the blocks that it reads.

Legend: N nodes in blocks, N_b of them in block b.

With live rows, every rank's rows are sorted by their distance to a training node. So a layer computes the first rows of
every rank, as in a partitioned graph (holding/live.py), and reads columns of only the rows that those need.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.holding.adjacency import Arcs, Matrices
from fullgraph.placement.holding.live import Live
from fullgraph.placement.holding.whole import Leaders, Patterned, share_matrices, share_whole
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.transport import Key, Transport, gather_rows


@dataclass(frozen=True)
class BlockRows:
    """The number of rows of every rank in every block. Nodes are numbered by block, then by owner."""

    rank: int
    table: tuple[tuple[int, ...], ...]  # [block][rank]

    @property
    def own(self) -> list[int]:
        """Rows of this rank, by block."""
        return [rows[self.rank] for rows in self.table]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of all ranks, by block."""
        return tuple(map(sum, self.table))

    @property
    def of_ranks(self) -> tuple[int, ...]:
        """Rows in all blocks, by rank."""
        return tuple(map(sum, zip(*self.table, strict=True)))

    def numbers(self) -> Tensor:
        """The numbers of this rank's rows."""
        starts = [sum(self.sizes[:b]) + sum(rows[: self.rank]) for b, rows in enumerate(self.table)]
        return torch.cat([torch.arange(start, start + n) for start, n in zip(starts, self.own, strict=True)])

    def by_block(self, x_ND: Tensor) -> list[Tensor]:
        """Split rows that are sorted by rank into blocks."""
        blocks = len(self.table)
        if blocks == 1:
            return [x_ND]
        parts = x_ND.split([n for rank in zip(*self.table, strict=True) for n in rank])
        return [torch.cat(parts[b::blocks]) for b in range(blocks)]


@dataclass(frozen=True, eq=False)
class Grid:
    """Z_b = sum_j M_bj X_j  over the cells that have arcs; for attention, the pattern of each block's rows."""

    cells: dict[tuple[int, int], Adjacency]  # always with the diagonal, so that every block is read
    patterns: tuple[Structure, ...]  # [N_b, N], self loops included

    def row(self, block: int) -> dict[int, Adjacency]:
        """The cells in a block's rows, by the block of their columns."""
        return {j: cell for (b, j), cell in self.cells.items() if b == block}

    def to(self, device: torch.device) -> "Grid":
        cells = {place: cell.to(device=device) for place, cell in self.cells.items()}
        return Grid(cells, tuple(pattern.to(device) for pattern in self.patterns))


def whole_grid(
    graph: RankGraph, number_n: Tensor, sizes: tuple[int, ...], transport: Transport, aggregation: str,
    dtype: torch.dtype, name: str,
) -> Grid:  # fmt: skip
    """The grid of the whole graph, in memory that a machine's ranks share, with blocks of the given sizes."""

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


@dataclass(frozen=True, eq=False)
class LayerTiles:
    """The rows of all ranks that a layer reads and computes, and the matrix between them."""

    sources: BlockRows
    targets: BlockRows
    grid: Grid

    @property
    def own(self) -> int:
        """Rows of this rank that the layer computes."""
        return sum(self.targets.own)

    @cached_property
    def among(self) -> Tensor | None:
        """With one block: the targets' positions among the sources of all ranks; None if they are the same rows."""
        if self.targets == self.sources:
            return None
        (read,), (computed,) = self.sources.table, self.targets.table
        pairs = zip(accumulate(read[:-1], initial=0), computed, strict=True)
        device = self.grid.patterns[0].indptr.device
        return torch.cat([torch.arange(first, first + rows, device=device) for first, rows in pairs])


def fewer_tiles(
    whole: LayerTiles, live: Live, transport: Transport, device: torch.device, name: str
) -> dict[int, LayerTiles]:
    """The layers that compute fewer rows, by number; their matrices are kept once per machine."""
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
    """The targets' rows over the sources' columns; all arcs into targets come from sources."""
    picked = matrix.take(targets_N.nonzero().flatten())
    number_N = torch.cumsum(sources_N, 0, dtype=torch.int32) - 1
    pattern = Structure(picked.structure.indptr, number_N[picked.structure.indices.long()], int(sources_N.sum()))
    col_scale = None if picked.col_scale is None else picked.col_scale[sources_N]
    return Adjacency(pattern, picked.weight, picked.row_scale, col_scale)
