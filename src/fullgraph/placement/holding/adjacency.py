"""The matrix that a view multiplies by, split into arcs from owned rows and arcs from halo rows.

Legend: n owned rows, h halo rows, e arcs; local columns 0..n-1 are owned, n..n+h-1 halo.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.graph_types import EDGE_TYPE
from fullgraph.ops import Adjacency, Groups, RelationArcs, Structure
from fullgraph.ops.transpose import indptr_of, transpose

ARCS_AT_ONCE = 1 << 26
ATTENDS = ("attention", "relation attention")  # aggregations that keep the pattern of arcs, and no matrix
BY_RELATION = ("relations", "relation attention")
HaloOf = Callable[[Tensor], Tensor]  # owned values [n, k] -> their copies on halo rows [h, k]


@dataclass(frozen=True, slots=True)
class Arcs:
    """Arcs into owned rows, CSR by target, weights optional."""

    indptr: Tensor  # [n+1]
    indices: Tensor  # [e]
    weight: Tensor | None
    num_halo: int
    undirected: bool = False  # has the reverse of every arc between owned rows
    attr: Tensor | None = None  # [e, K] features of arcs; only a user's own model reads them
    fields: Mapping[str, Tensor] = field(default_factory=dict)  # [e, ...] by name; of a typed graph, EDGE_TYPE
    num_sources: int | None = None  # owned columns, if sources are nodes of another type; None: num_owned

    @property
    def num_owned(self) -> int:
        return len(self.indptr) - 1

    @property
    def owned_columns(self) -> int:
        return self.num_owned if self.num_sources is None else self.num_sources

    @property
    def device(self) -> torch.device:
        return self.indptr.device

    def to(self, device: torch.device) -> "Arcs":
        moved = replace(self, indptr=self.indptr.to(device), indices=self.indices.to(device))
        return moved.with_values(self, lambda values: values.to(device))

    def with_values(self, of: "Arcs", change: Callable[[Tensor], Tensor]) -> "Arcs":
        """The same pattern with the changed weights, features and fields of another one's arcs."""
        weight, attr = (None if values is None else change(values) for values in (of.weight, of.attr))
        return replace(
            self, weight=weight, attr=attr, fields={name: change(values) for name, values in of.fields.items()}
        )

    def targets(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(self.num_owned, device=self.device), self.indptr.diff())

    def degree(self, dtype: torch.dtype) -> Tensor:
        """The weighted number of arcs into each owned row. A rank has all of these arcs, so it is the global degree."""
        if self.weight is None or not self.num_owned:
            return self.indptr.diff().to(dtype)
        # Row by row, because index_add_ on a GPU adds in a different order every time.
        return torch.segment_reduce(self.weight.to(dtype), "sum", lengths=self.indptr.diff(), initial=0, unsafe=True)

    def keep(self, mask: Tensor) -> "Arcs":
        """Only the arcs where `mask` is true."""
        kept = torch.nn.functional.pad(mask.cumsum(0), (1, 0))
        pattern = Arcs(kept[self.indptr], self.indices[mask], None, self.num_halo, num_sources=self.num_sources)
        return pattern.with_values(self, lambda values: values[mask])

    def sources_of(self, rows_n: Tensor) -> Tensor:
        """Mask [n+h] of the rows that the chosen rows read."""
        read = torch.zeros(self.num_owned + self.num_halo, dtype=torch.bool, device=self.device)
        for first, last in self._pieces():
            low, high = self.indptr[[first, last]].tolist()
            chosen = torch.repeat_interleave(rows_n[first:last], self.indptr[first : last + 1].diff())
            read[self.indices[low:high][chosen].long()] = True
        return read

    def reordered(self, order_n: Tensor) -> "Arcs":
        """The same arcs with rows and owned columns in another order; columns ascend in each row."""
        if self.attr is not None or self.fields:  # sort the arcs' numbers, then use them to sort all arrays of arcs
            numbers = torch.arange(len(self.indices), device=self.device)
            moved = replace(self, weight=numbers, attr=None, fields={}).reordered(order_n)
            arcs = moved.weight
            assert arcs is not None
            return moved.with_values(self, lambda values: values[arcs])
        n, size = self.num_owned, self.num_owned + self.num_halo
        number = torch.arange(size, dtype=torch.int32, device=self.device)
        number[order_n] = torch.arange(n, dtype=torch.int32, device=self.device)
        indptr = indptr_of(self.indptr.diff()[order_n])
        indices, weight = torch.empty_like(self.indices), None if self.weight is None else torch.empty_like(self.weight)
        moved = replace(self, indptr=indptr, indices=indices, weight=weight)
        for first, last in moved._pieces():
            low, high = indptr[[first, last]].tolist()
            piece = self.pick(order_n[first:last])
            indices[low:high] = number[piece.indices.long()]
            if weight is not None and piece.weight is not None:
                weight[low:high] = piece.weight
        if self.undirected and not self.num_halo and weight is None:
            return replace(moved, indices=transpose(indptr, indices, n, with_perm=False)[1])  # the pattern itself
        turned, rows, perm = transpose(indptr, indices, size, with_perm=weight is not None)
        weight = weight if weight is None else weight[perm.long()]
        _, columns, perm = transpose(turned, rows, n, with_perm=weight is not None)
        return replace(moved, indices=columns, weight=weight if weight is None else weight[perm.long()])

    def _pieces(self) -> list[tuple[int, int]]:
        """Ranges of rows with at most ARCS_AT_ONCE arcs each, so that little is copied at once."""
        even = torch.arange(0, int(self.indptr[-1]), ARCS_AT_ONCE, device=self.device)
        return list(pairwise(sorted({0, *torch.searchsorted(self.indptr, even).tolist(), self.num_owned})))

    def pick(self, rows: Tensor) -> "Arcs":
        """The arcs into some rows, in the order of these rows; columns are unchanged."""
        degrees = self.indptr.diff()[rows]
        indptr = indptr_of(degrees)
        shift = torch.repeat_interleave(self.indptr[rows] - indptr[:-1], degrees)
        arcs = torch.arange(len(shift), device=self.device) + shift
        return Arcs(indptr, self.indices[arcs], None if self.weight is None else self.weight[arcs], self.num_halo)

    def with_loops(self) -> "Arcs":
        """Exactly one self loop on every owned row: its own, or a new one of weight one (as in PyG)."""
        targets = self.targets()
        is_loop = self.indices == targets
        rest = self.keep(~is_loop)
        # In column order, so that a symmetric pattern stays symmetric: after the columns below the row's own number.
        below = torch.nn.functional.pad((rest.indices < targets[~is_loop]).cumsum(0), (1, 0))
        rows = torch.arange(self.num_owned, device=self.device)
        indptr = rest.indptr + torch.arange(self.num_owned + 1, device=self.device)
        loops = indptr[:-1] + below[rest.indptr[1:]] - below[rest.indptr[:-1]]
        is_new = torch.zeros(int(indptr[-1]), dtype=torch.bool, device=self.device)
        is_new[loops] = True
        indices = self.indices.new_empty(len(is_new))
        indices[~is_new], indices[loops] = rest.indices, rows.to(self.indices.dtype)
        weight = None
        if self.weight is not None and rest.weight is not None:
            kept = self.weight.new_ones(self.num_owned)
            kept[targets[is_loop]] = self.weight[is_loop]
            weight = self.weight.new_empty(len(is_new))
            weight[~is_new], weight[loops] = rest.weight, kept
        return Arcs(indptr, indices, weight, self.num_halo)

    def split(self) -> tuple["Arcs", "Arcs"]:
        """Arcs from owned rows, and arcs from halo rows (columns counted from the first halo row)."""
        if self.num_halo == 0:
            return self, Arcs(torch.zeros_like(self.indptr), self.indices[:0], _head(self.weight), 0)
        is_inner = self.indices < self.owned_columns
        inner, outer = replace(self.keep(is_inner), undirected=self.undirected), self.keep(~is_inner)
        return inner, Arcs(outer.indptr, outer.indices - self.owned_columns, outer.weight, self.num_halo)


def _head(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight[:0]


@dataclass(frozen=True, eq=False)
class Matrices:
    """M x = inner @ x_owned + outer @ x_halo; or, for attention, only the pattern of M.

    With groups, M has a row for each owned row and relation that has edges into it, sorted by relation.
    """

    inner: Adjacency
    outer: Adjacency
    arcs: Structure
    groups: Groups | None = None
    kind_e: Tensor | None = None  # [e], the relation of each of `arcs`, by which those of a row are sorted

    @cached_property
    def by_relation(self) -> RelationArcs:
        """The arcs of attention by relation."""
        assert self.kind_e is not None, "the arcs of this aggregation have no relation"
        return RelationArcs.of(self.arcs, self.kind_e)

    def into(self, targets: int) -> "Matrices":
        """The rows of M that add to the first `targets` rows, if M is grouped; else M."""
        if self.groups is None:
            return self
        mask = self.groups.rows < targets
        kept = mask.nonzero().flatten()
        arcs = self.arcs.span(0, len(kept))
        return Matrices(self.inner.take(kept), self.outer.take(kept), arcs, self.groups.kept(mask))

    def num_rows(self, targets: int) -> int:
        """How many of M's first rows add to the first `targets` rows, after `into`."""
        return targets if self.groups is None else self.inner.shape[0]

    def first(self, rows: int, cols: int, read_h: Tensor) -> "Matrices":
        """M's first rows, whose arcs come only from the first `cols` owned rows and from halo rows in `read_h`."""
        number_h = torch.cumsum(read_h, 0, dtype=torch.int32) - 1
        owned = torch.arange(self.inner.shape[1], dtype=torch.int32, device=read_h.device)
        inner, outer = self.inner, self.outer
        arcs = self.arcs.first(rows, cols + int(read_h.sum()), torch.cat([owned, number_h + cols]))
        return Matrices(
            _first(inner, rows, inner.structure.first(rows, cols), slice(cols)),
            _first(outer, rows, outer.structure.first(rows, int(read_h.sum()), number_h), read_h),
            arcs,
            self.groups,
            None if self.kind_e is None else self.kind_e[: arcs.num_arcs],
        )

    def renumbered(self, number_h: Tensor) -> "Matrices":
        """M over halo rows in another order: number_h[j] is the new number of halo row j."""
        owned = torch.arange(self.inner.shape[1], dtype=torch.int32, device=number_h.device)
        columns = torch.cat([owned, len(owned) + number_h.int()])
        outer, scale = self.outer, self.outer.col_scale
        pattern = outer.structure.first(outer.shape[0], outer.shape[1], number_h)
        scale = None if scale is None else torch.empty_like(scale).index_copy_(0, number_h, scale)
        arcs = self.arcs.first(self.arcs.num_rows, self.arcs.num_cols, columns) if self.arcs.num_arcs else self.arcs
        return replace(self, outer=Adjacency(pattern, outer.weight, outer.row_scale, scale), arcs=arcs)

    def to(self, device: torch.device) -> "Matrices":
        groups = None if self.groups is None else self.groups.to(device)
        kind_e = None if self.kind_e is None else self.kind_e.to(device)
        return Matrices(
            self.inner.to(device=device), self.outer.to(device=device), self.arcs.to(device), groups, kind_e
        )


def _first(m: Adjacency, rows: int, pattern: Structure, cols: slice | Tensor) -> Adjacency:
    """M's first rows on the given pattern, with the given columns' scales."""
    return Adjacency(
        pattern,
        None if m.weight is None else m.weight[: pattern.num_arcs],
        None if m.row_scale is None else m.row_scale[:rows],
        None if m.col_scale is None else m.col_scale[cols],
    )


def column_squares(m: Adjacency) -> Tensor:
    """The sum of the squared numbers in every column [C], on the host; parallel arcs are added first."""
    s = m.structure
    numbers = torch.ones(s.num_arcs, dtype=torch.float32, device=s.indices.device) if m.weight is None else m.weight
    numbers = numbers if m.row_scale is None else numbers * m.row_scale[s.rows]
    numbers = numbers if m.col_scale is None else numbers * m.col_scale[s.indices.long()]
    pairs, place = torch.unique(s.rows.cpu() * s.num_cols + s.indices.long().cpu(), return_inverse=True)
    entries = torch.zeros(len(pairs), dtype=torch.float64).index_add_(0, place, numbers.double().cpu())
    return torch.zeros(s.num_cols, dtype=torch.float64).index_add_(0, pairs % max(s.num_cols, 1), entries.square())


def dense_is_less(entries: int, full: int) -> bool:
    """Whether a dense matrix takes less memory and time than a sparse matrix with this number of entries."""
    return 3 * entries > full


def fine(dtype: torch.dtype) -> torch.dtype:
    """The type of factors and labels beside rows of `dtype`: at least 32 bits."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def build(
    arcs: Arcs, aggregation: str, halo_of: HaloOf, dtype: torch.dtype, *, joined: bool = False
) -> Matrices:  # fmt: skip
    """The matrix of an aggregation, normalised with global degrees (halo degrees come from their owners).

    joined: owned and halo columns are one matrix, `inner`, so that a row's sum has one order.

    gcn:  D^-1/2 (A + I) D^-1/2      mean:  D^-1 A      sum:  A      attention:  the pattern of A + I
    relations:  D_r^-1 A_r for every relation r, as one matrix with groups of rows
    relation attention:  the pattern of A, with the relation of every arc
    """
    n, h, dtype = arcs.num_owned, arcs.num_halo, fine(dtype)
    row = col = None
    if aggregation in BY_RELATION and EDGE_TYPE not in arcs.fields:
        raise InputError("models for typed graphs need a typed graph (docs/typed.md): use gcn, sage, gin or gat")
    if aggregation == "relations":
        return _by_relation(arcs, dtype)
    if aggregation in ATTENDS:
        kind_e = None
        if aggregation == "attention":
            arcs = arcs.with_loops()
        else:
            kind_e = arcs.fields[EDGE_TYPE].long()
            order = torch.argsort(kind_e, stable=True)
            order = order[torch.argsort(arcs.targets()[order], stable=True)]
            arcs, kind_e = replace(arcs, indices=arcs.indices[order]), kind_e[order]
        whole = Structure(arcs.indptr, arcs.indices, n + h)
        nothing = Arcs(torch.zeros_like(arcs.indptr), arcs.indices[:0], None, 0)
        nothing_n, nothing_h = (_matrix(nothing, cols, None, None, dtype) for cols in (n, h))
        return Matrices(nothing_n, nothing_h, whole, None, kind_e)
    if aggregation == "gcn":
        arcs = arcs.with_loops()
        row = arcs.degree(dtype).clamp(min=0).rsqrt().nan_to_num(posinf=0.0)
        col = torch.cat([row, halo_of(row[:, None])[:, 0]])
    elif aggregation == "mean":
        degree = arcs.degree(dtype)
        row = torch.where(degree != 0, 1 / degree, torch.zeros_like(degree))
    columns = arcs.owned_columns
    none = Structure(torch.zeros_like(arcs.indptr), arcs.indices[:0], columns + h)
    if joined:
        outer = Arcs(none.indptr, none.indices, _head(arcs.weight), 0)
        return Matrices(_matrix(arcs, columns + h, row, col, dtype), _matrix(outer, 0, row, None, dtype), none)
    inner, outer = arcs.split()
    return Matrices(
        _matrix(inner, columns, row, None if col is None else col[:n], dtype),
        _matrix(outer, h, row, None if col is None else col[n:], dtype),
        none,
    )


def _by_relation(arcs: Arcs, dtype: torch.dtype) -> Matrices:
    """The mean over the arcs of each relation, with a row for each target row that has arcs of the relation."""
    n, kinds, targets = arcs.num_owned, arcs.fields[EDGE_TYPE].long(), arcs.targets()
    order = torch.argsort(kinds, stable=True)  # arcs of a target row stay together, columns ascending
    pairs, degrees = torch.unique_consecutive(kinds[order] * n + targets[order], return_counts=True)
    indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
    stacked = Arcs(indptr, arcs.indices[order], None if arcs.weight is None else arcs.weight[order], arcs.num_halo)
    degree, is_inner = stacked.degree(dtype), stacked.indices < n
    row = torch.where(degree != 0, 1 / degree, torch.zeros_like(degree))
    inner, outer = stacked.keep(is_inner), stacked.keep(~is_inner)
    return Matrices(
        _matrix(inner, n, row, None, dtype),
        _matrix(replace(outer, indices=outer.indices - n), arcs.num_halo, row, None, dtype),
        Structure(torch.zeros_like(indptr), arcs.indices[:0], n + arcs.num_halo),
        Groups.of(pairs // max(1, n), pairs % max(1, n)),
    )


def _matrix(arcs: Arcs, cols: int, row: Tensor | None, col: Tensor | None, dtype: torch.dtype) -> Adjacency:
    weight = None if arcs.weight is None else arcs.weight.to(dtype)
    pattern = Structure(arcs.indptr, arcs.indices, cols)
    if arcs.undirected and weight is None and cols == arcs.num_owned:
        pattern.paired(pattern, None)
    return Adjacency(pattern, weight, row, col)
