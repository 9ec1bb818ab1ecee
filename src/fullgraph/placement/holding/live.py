"""Live rows: a layer computes only the rows that the loss reads, directly or through the layers after it.

Owned rows are sorted by their distance to a training node. So the rows that a layer computes come first among
the rows that the previous layer computed, and its matrix is the first rows of the whole matrix.

Legend: n owned rows, h halo rows.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from fullgraph.placement.halo import asked_of_owners, narrowed
from fullgraph.placement.holding.adjacency import Matrices
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.plan import CoverRoute, HaloRoute, HostRoutes
from fullgraph.transport import Key, Transport

# Per graph layer: how many hops from a training node its output is read; None: everywhere.
Hops = tuple[int | None, ...]
LEVELS = torch.int16  # holds the hops of the deepest model, and one more
WORTH = 0.95  # a layer keeps all rows if it would still compute more than this share of its arcs


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerRows:
    """The rows that a layer computes (the first `targets`) and reads (the first `sources`, and a halo)."""

    targets: int
    sources: int
    halo_ids: Tensor  # [h]
    route: HaloRoute  # of numbers, such as ids
    matrices: Matrices
    cover: CoverRoute | None = None  # of rows and sums of rows; None: rows take `route`
    by_host: HostRoutes | None = None  # if rows of other hosts cross once for all ranks of this one

    def first(self, targets: int, sources: int, transport: Transport, name: str) -> "LayerRows":
        """The same layer for fewer rows; all arcs into them come from the first `sources` rows or the halo."""
        matrices = self.matrices.into(targets)
        rows = matrices.num_rows(targets)
        outer = matrices.outer.structure if matrices.outer.structure.num_arcs else None
        if outer is not None:
            read = outer.indices[: int(outer.indptr[rows])]
        else:  # attention keeps its arcs in one pattern
            arcs = matrices.arcs
            read = arcs.indices[: int(arcs.indptr[targets])] if arcs.num_arcs else arcs.indices
            read = read[read >= self.sources] - self.sources
        read_h = torch.zeros_like(self.halo_ids, dtype=torch.bool)
        read_h[read.long()] = True
        kept_n = torch.arange(self.sources, device=read_h.device) < sources
        return LayerRows(
            targets=targets,
            sources=sources,
            halo_ids=self.halo_ids[read_h],
            route=narrowed(self.route, kept_n, read_h, transport, name),
            matrices=matrices.first(rows, sources, read_h),
        )


@dataclass(frozen=True, eq=False)
class Live:
    """The rows that each layer computes: all rows whose level is at most the layer's hops."""

    level_n: Tensor  # hops from a training node; rows must be sorted by it
    hops: Hops
    computed: dict[int, int] = field(default_factory=dict)  # rows of all ranks, by layer that does not compute all

    def in_order(self) -> "Live":
        """The same levels on the host, after the rows were sorted by level."""
        return replace(self, level_n=self.level_n.cpu().sort().values)

    def layers(self, whole: LayerRows, transport: Transport) -> dict[int, LayerRows]:
        """The layers that do not compute all rows, by number."""
        targets = [whole.targets if hop is None else int((self.level_n <= hop).sum()) for hop in self.hops]
        return {
            layer: whole.first(rows, read, transport, f"setup/live halo {layer}")
            for layer, (read, rows) in enumerate(pairwise([whole.sources, *targets]))
            if self.hops[layer] is not None
        }


def live_rows(graph: RankGraph, hops: Hops, transport: Transport, worth: float = WORTH) -> Live | None:
    """The rows that each layer computes, after sorting by level; None if almost no rows can be left out."""
    level_n = _levels(graph, max(hop for hop in hops if hop is not None), transport)
    hops, computed = _worthwhile(graph, level_n, hops, transport, worth)
    kept = [hop for hop in hops if hop is not None]
    if not kept:
        return None
    return Live(level_n.clamp(max=max(kept) + 1), hops, computed)  # rows farther away need no order


def _levels(graph: RankGraph, deepest: int, transport: Transport) -> Tensor:
    """Hops from every owned row to the nearest training node that reads it, [n]; deepest + 1 if it is farther."""
    n = len(graph.rows.ids)
    near = graph.rows.masks["train"].clone()
    level_n = torch.full((n,), deepest + 1, dtype=LEVELS, device=near.device)
    level_n[near] = 0
    for hop in range(1, deepest + 1):
        read = graph.arcs.sources_of(near)
        near |= read[:n]
        asked = asked_of_owners(graph.rows.route, read[n:], transport, f"setup/live {hop}")
        for peer, rows in graph.rows.route.send_slices().items():
            near[rows[asked[peer]]] = True
        level_n[near & (level_n > hop)] = hop
    return level_n


def _worthwhile(
    graph: RankGraph, level_n: Tensor, hops: Hops, transport: Transport, worth: float
) -> tuple[Hops, dict[int, int]]:
    """Each layer's hops, None if the rows within them have nearly all arcs; and the rows of all ranks within them."""
    wanted = sorted({hop for hop in hops if hop is not None})
    degree_n = graph.arcs.indptr.diff()
    near = [level_n <= hop for hop in wanted]
    arcs, rows = [degree_n[rows].sum() for rows in near], [rows.sum() for rows in near]
    total, *counts = (
        transport.all_reduce(Key("setup/live arcs", 0), torch.stack([degree_n.sum(), *arcs, *rows]).cpu())
        .wait()
        .tolist()
    )
    kept = {
        hop: rows
        for hop, arcs, rows in zip(wanted, counts[: len(wanted)], counts[len(wanted) :], strict=True)
        if arcs <= worth * total
    }
    trimmed = tuple(hop if hop in kept else None for hop in hops)
    return trimmed, {layer: kept[hop] for layer, hop in enumerate(trimmed) if hop is not None}
