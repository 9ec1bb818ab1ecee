"""Fewer halo rows: each pair of ranks exchanges a minimum vertex cover of its edges, as rows and as sums of rows.

Only the reader has all edges into its rows. So it chooses the cover, and tells each owner once which rows and sums it
needs.

Legend: R matrix rows, h halo rows, H rows and sums that cross, e arcs.
"""

from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fullgraph.ops import Adjacency, Structure
from fullgraph.ops.transpose import indptr_of
from fullgraph.partition.cover import cover_columns
from fullgraph.placement.halo import told_owners
from fullgraph.placement.holding.live import LayerRows
from fullgraph.plan import CoverRoute, HaloRoute
from fullgraph.plan.cover import largest
from fullgraph.transport import Transport

Counts = tuple[int, ...]  # by rank


def covered(rows: LayerRows, dtype: torch.dtype, transport: Transport, name: str) -> LayerRows:
    """The same layer with the fewest rows and sums in its halo; only for a layer that computes weighted sums."""
    device, halo_ids = rows.halo_ids.device, rows.halo_ids.cpu()
    outer, given = rows.matrices.outer.to(device="cpu"), rows.route.recv_counts
    owner_h = torch.repeat_interleave(torch.arange(len(given)), torch.tensor(given))
    alone_h = torch.from_numpy(cover_columns(outer.structure.indptr.numpy(), outer.structure.indices.numpy(), given))
    outer, sums, owner_H = divided(outer, alone_h, owner_h, dtype)
    counts = tuple(torch.bincount(owner_H, minlength=len(given)).tolist())
    matrix, sent = _asked(sums, counts, rows, transport, name)
    numbers = HaloRoute(torch.arange(sum(sent)), sent, counts, sum(sent))
    return replace(
        rows,
        halo_ids=largest(sums.structure, halo_ids).to(device),
        route=numbers.to(device),
        matrices=replace(rows.matrices, outer=outer.to(device=device)),
        cover=CoverRoute(numbers.to(device), matrix.to(device=device)),
    )


def divided(
    outer: Adjacency, alone_h: Tensor, owner_h: Tensor, dtype: torch.dtype
) -> tuple[Adjacency, Adjacency, Tensor]:
    """Divide the halo's matrix [R, h] into two:  outer = new [R, H] . sums [H, h].

    alone_h: mask of the halo rows that cross as they are. owner_h: by halo row, a number; the columns of a row of
    `sums` have the same one, which the third result [H] has in ascending order. A sum crosses divided by its number of
    rows, because a codec may not have the range of the sum. dtype: of factors.
    """
    s = outer.structure
    columns_e, rows_e, size = s.indices.long(), s.rows, max(1, s.num_rows)
    summed_e = ~alone_h[columns_e]
    pairs, place_e = torch.unique(owner_h[columns_e[summed_e]] * size + rows_e[summed_e], return_inverse=True)

    singles = alone_h.nonzero().flatten()
    owner_H = torch.cat([owner_h[singles], pairs // size])
    order_H = torch.argsort(owner_H, stable=True)
    number_H = torch.empty_like(order_H)
    number_H[order_H] = torch.arange(len(order_H))

    weight_e = outer.weight
    if outer.col_scale is not None:
        weight_e = (1 if weight_e is None else weight_e) * outer.col_scale[columns_e]

    def matrix(rows: Tensor, columns: Tensor, weights: Tensor | None, shape: tuple[int, int]) -> Adjacency:
        """The matrix of these entries; weights: None means ones."""
        order = torch.argsort(rows * max(1, shape[1]) + columns, stable=True)
        pattern = Structure(indptr_of(torch.bincount(rows, minlength=shape[0])), columns[order].int(), shape[1])
        return Adjacency(pattern, None if weights is None else weights[order])

    def weights(of_singles: int, of_arcs: Tensor) -> Tensor | None:
        return None if weight_e is None else torch.cat([weight_e.new_ones(of_singles), weight_e[of_arcs]])

    ones, shape = len(singles), (len(order_H), len(alone_h))
    rows_H = number_H[torch.cat([torch.arange(ones), ones + place_e])]
    sums = matrix(rows_H, torch.cat([singles, columns_e[summed_e]]), weights(ones, summed_e), shape)
    number_h = torch.zeros_like(owner_h)
    number_h[singles] = number_H[:ones]
    into_R = torch.cat([pairs % size, rows_e[~summed_e]])
    from_H = torch.cat([number_H[ones:], number_h[columns_e[~summed_e]]])
    new = matrix(into_R, from_H, weights(len(pairs), ~summed_e), (s.num_rows, len(order_H)))
    terms_H = sums.structure.indptr.diff().to(dtype)
    new = Adjacency(new.structure, new.weight, outer.row_scale, terms_H)
    sums = Adjacency(sums.structure, sums.weight, 1 / terms_H)
    return new, sums, owner_H[order_H]


def _asked(
    sums: Adjacency, counts: Counts, rows: LayerRows, transport: Transport, name: str
) -> tuple[Adjacency, Counts]:
    """The matrix of the rows and sums that the peers of this rank ask for, and how many of them by peer."""
    first_H, first_h = (list(accumulate(by_peer, initial=0)) for by_peer in (counts, rows.route.recv_counts))
    patterns, weights = dict[int, Tensor](), dict[int, Tensor]()
    for peer, (span, start) in enumerate(zip(pairwise(first_H), first_h[:-1], strict=True)):
        if counts[peer]:
            part = sums.span(*span)
            lengths, columns = part.structure.indptr.diff(), part.structure.indices.long() - start
            patterns[peer] = torch.cat([torch.tensor([counts[peer]]), lengths, columns])
            weights |= {} if part.weight is None else {peer: part.weight}
    asked = told_owners(rows.route, patterns, torch.int64, transport, f"{name} sums")
    sent = tuple(int(asked[peer][0]) if peer in asked else 0 for peer in range(len(counts)))
    told, slices = dict[int, Tensor](), rows.route.send_slices()
    if sums.weight is not None:
        told = told_owners(rows.route, weights, sums.weight.dtype, transport, f"{name} weights")
    nothing = torch.empty(0, dtype=torch.int64)
    lengths = torch.cat([nothing, *(asked[peer][1 : 1 + sent[peer]] for peer in asked)])
    columns = torch.cat([nothing, *(slices[peer].cpu()[asked[peer][1 + sent[peer] :]] for peer in asked)])
    weight = None if sums.weight is None else torch.cat([sums.weight[:0], *told.values()])
    assert sums.row_scale is not None
    scale = 1 / lengths.to(sums.row_scale.dtype)
    return Adjacency(Structure(indptr_of(lengths), columns.int(), rows.sources), weight, scale), sent
