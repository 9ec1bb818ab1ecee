"""The pattern of a sparse matrix, and the matrix M = diag(r) A diag(c) with that pattern.

Rows with very many arcs are cut into pieces: as a whole, a GPU program would finish them long after all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.ops.parallel import balanced_cuts, num_chunks
from fullgraph.ops.transpose import INT32_MAX, indptr_of, is_symmetric, transpose

SCANNED_AT_ONCE = 1 << 24  # rows


@dataclass(frozen=True)
class LongRows:
    """The rows with more than `chunk` arcs. Piece p: up to `chunk` arcs of row rows[p], from places[p] * chunk on."""

    rows: Tensor  # int32 [P]
    places: Tensor  # int32 [P]
    distinct: Tensor  # int32 [L], the long rows, ascending
    first: Tensor  # int32 [L+1]; row distinct[k] has the pieces first[k] .. first[k+1]-1

    @property
    def num_pieces(self) -> int:
        return self.rows.numel()


def long_rows(indptr: Tensor, chunk: int) -> LongRows:
    """Find the long rows. The table is small, because it has no entry for other rows."""
    found = []
    for start in range(0, indptr.numel() - 1, SCANNED_AT_ONCE):
        degree = indptr[start : start + SCANNED_AT_ONCE + 1].diff()
        found.append((degree > chunk).nonzero().view(-1) + start)
    rows = torch.cat(found) if found else indptr.new_empty(0)
    counts = (indptr[rows + 1] - indptr[rows] + chunk - 1) // chunk
    first = indptr_of(counts)
    owner = torch.repeat_interleave(torch.arange(rows.numel(), device=rows.device), counts)
    places = torch.arange(owner.numel(), device=rows.device) - first[owner]
    return LongRows(rows[owner].int(), places.int(), rows.int(), first.int())


M = TypeVar("M")


class _Turned(Generic[M]):
    """An object's link to its transpose. The first object holds the second; the second has a weak reference back.

    Two objects that held each other would wait for the cyclic garbage collector, together with their arrays.
    """

    def __init__(self) -> None:
        self.held: M | None = None
        self.origin: ref[M] | None = None

    def get(self) -> M | None:
        return self.origin() if self.held is None and self.origin is not None else self.held


@dataclass
class _Memo:
    """Results that a structure keeps after their first computation."""

    symmetric: bool = False
    perm: Tensor | None = None
    cuts: dict[int, list[int]] = field(default_factory=dict)
    long_rows: dict[int, LongRows] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Structure:
    """Arcs in CSR by target: row i lists the sources indices[indptr[i]:indptr[i+1]]; duplicates are kept."""

    indptr: Tensor  # int64 [R+1]
    indices: Tensor  # int32 [E]
    num_cols: int
    _turned: "_Turned[Structure]" = field(default_factory=_Turned, init=False, repr=False)
    _memo: _Memo = field(default_factory=_Memo, init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self)  # before the cast, which could turn a wrong index into a valid one
        object.__setattr__(self, "indptr", self.indptr.to(torch.int64).contiguous())
        object.__setattr__(self, "indices", self.indices.to(torch.int32).contiguous())

    @property
    def num_rows(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_arcs(self) -> int:
        return self.indices.numel()

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, self.num_cols

    @property
    def T(self) -> "Structure":
        """The transposed pattern, sources ascending; the object itself if the pattern is symmetric."""
        if self._memo.symmetric:
            return self
        known = self._turned.get()
        if known is None:
            self._memo.perm = None  # the origin, if there was one, became invalid with the order of its arcs
            known = self._transpose()
            self.paired(known, None)
        return known

    @property
    def perm(self) -> Tensor:
        """The origin of T's arcs: entry k of T is entry perm[k] of this structure."""
        turned = self.T
        if self._memo.perm is None:
            if turned is not self and self._turned.held is None:
                # T existed first. Its rows may be unsorted, so sorting again could give a different order.
                self._memo.perm = torch.empty_like(turned.perm)
                order = torch.arange(self.num_arcs, dtype=turned.perm.dtype, device=turned.perm.device)
                self._memo.perm[turned.perm.long()] = order
            else:
                self._memo.perm = transpose(self.indptr, self.indices, self.num_cols, with_perm=True)[2]
        return self._memo.perm

    def paired(self, turned: "Structure", perm: Tensor | None) -> "Structure":
        """Record a transpose that is already computed, and the origin of its arcs; return this pattern."""
        if turned is self:
            self._memo.symmetric = True
        elif turned._turned.held is not self:
            self._turned.held, turned._turned.origin = turned, ref(self)
        if perm is not None:
            self._memo.perm = perm
        return self

    def _transpose(self) -> "Structure":
        square = self.num_rows == self.num_cols
        if square and self.indices.is_cuda and is_symmetric(self.indptr, self.indices):
            return self
        indptr, indices, _ = transpose(self.indptr, self.indices, self.num_cols, with_perm=False)
        if square and not indices.is_meta and torch.equal(indptr, self.indptr) and torch.equal(indices, self.indices):
            return self
        return Structure(indptr, indices, self.num_rows)

    @cached_property
    def rows(self) -> Tensor:
        """The row of every arc, int64 [E]; only the reference backend needs this array."""
        counts = self.indptr.diff()
        return torch.repeat_interleave(
            torch.arange(self.num_rows, device=counts.device), counts, output_size=self.num_arcs
        )

    def cuts(self, width: int) -> Sequence[int]:
        """Return row boundaries of chunks of equal work, for a kernel with `width` multiply-adds per arc."""
        chunks = num_chunks((self.num_arcs + self.num_rows) * width)
        if chunks not in self._memo.cuts:
            self._memo.cuts[chunks] = balanced_cuts(self.indptr.numpy(), chunks)
        return self._memo.cuts[chunks]

    def long_rows(self, chunk: int) -> LongRows:
        """Return the rows with more than `chunk` arcs, cut into pieces of at most `chunk` arcs."""
        if chunk not in self._memo.long_rows:
            self._memo.long_rows[chunk] = long_rows(self.indptr, chunk)
        return self._memo.long_rows[chunk]

    def span(self, first: int, last: int) -> "Structure":
        """Return rows first..last-1, which share this structure's memory."""
        low, high = int(self.indptr[first]), int(self.indptr[last])
        return Structure(self.indptr[first : last + 1] - low, self.indices[low:high], self.num_cols)

    def first(self, rows: int, num_cols: int, number_C: Tensor | None = None) -> "Structure":
        """Return the first rows over other columns: number_C[j] is the new number of column j."""
        indices = self.indices[: int(self.indptr[rows])]
        indices = indices if number_C is None else number_C[indices.long()]
        return Structure(self.indptr[: rows + 1], indices, num_cols)

    def to(self, device: torch.device | str) -> "Structure":
        """Return the same pattern on another device, or itself if it is there already."""
        if self.indptr.device == torch.device(device):
            return self
        there = Structure(self.indptr.to(device), self.indices.to(device), self.num_cols)
        return there.paired(there, None) if self._memo.symmetric else there


@dataclass(frozen=True, eq=False)
class Adjacency:
    """M = diag(row_scale) A diag(col_scale),  A[i, j] = weight of the arc j -> i;  None means ones."""

    structure: Structure
    weight: Tensor | None = None  # [E]
    row_scale: Tensor | None = None  # [R]
    col_scale: Tensor | None = None  # [C]
    _turned: "_Turned[Adjacency]" = field(default_factory=_Turned, init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = {"weight": self.structure.num_arcs, "row_scale": self.shape[0], "col_scale": self.shape[1]}
        for name, size in sizes.items():
            value: Tensor | None = getattr(self, name)
            if value is None:
                continue
            if value.shape != (size,):
                raise InputError(f"{name} has shape {tuple(value.shape)}; give one number for each, shape ({size},)")
            object.__setattr__(self, name, value.detach().contiguous())

    @property
    def shape(self) -> tuple[int, int]:
        return self.structure.shape

    @property
    def T(self) -> "Adjacency":
        """The transposed matrix:  M^T = diag(col_scale) A^T diag(row_scale)."""
        known = self._turned.get()
        if known is None:
            weight = None if self.weight is None else self.weight.index_select(0, self.structure.perm)
            known = self._hold_transpose(weight)
        return known

    def paired(self, weight: Tensor | None) -> "Adjacency":
        """Record the weights of the transpose, which are already computed; return this matrix."""
        self._hold_transpose(weight)
        return self

    def _hold_transpose(self, weight: Tensor | None) -> "Adjacency":
        turned = Adjacency(self.structure.T, weight, self.col_scale, self.row_scale)
        self._turned.held, turned._turned.origin = turned, ref(self)
        return turned

    def with_weight(self, weight: Tensor | None) -> "Adjacency":
        """Return a matrix with other weights on the same pattern, whose transpose is not computed again."""
        return Adjacency(self.structure, weight, self.row_scale, self.col_scale)

    def span(self, first: int, last: int) -> "Adjacency":
        """Return rows first..last-1, which share this matrix's memory."""
        low, high = int(self.structure.indptr[first]), int(self.structure.indptr[last])
        weight = None if self.weight is None else self.weight[low:high]
        row_scale = None if self.row_scale is None else self.row_scale[first:last]
        return Adjacency(self.structure.span(first, last), weight, row_scale, self.col_scale)

    def take(self, rows: Tensor) -> "Adjacency":
        """Return a copy of the given rows, in the given order."""
        counts = self.structure.indptr.diff()[rows]
        indptr = indptr_of(counts)
        shift = self.structure.indptr[rows] - indptr[:-1]
        arcs = torch.arange(int(indptr[-1]), device=counts.device) + torch.repeat_interleave(shift, counts)
        structure = Structure(indptr, self.structure.indices[arcs], self.structure.num_cols)
        weight = None if self.weight is None else self.weight[arcs]
        return Adjacency(structure, weight, None if self.row_scale is None else self.row_scale[rows], self.col_scale)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "Adjacency":
        """Return the matrix with another type or device, or itself if nothing changes."""
        structure = self.structure if device is None else self.structure.to(device)
        old = (self.weight, self.row_scale, self.col_scale)
        new = [None if t is None else t.to(device=device, dtype=dtype) for t in old]
        same = structure is self.structure and all(a is b for a, b in zip(old, new, strict=True))
        return self if same else Adjacency(structure, *new)


def _check(s: Structure) -> None:
    # The kernels do not check bounds: a wrong index would corrupt memory instead of raising an error.
    if s.num_cols > INT32_MAX:
        raise InputError(
            f"{s.num_cols} columns do not fit int32 indices; use more parts, so that each has fewer columns"
        )
    if s.indptr.dim() != 1 or s.indices.dim() != 1 or s.indptr.numel() == 0:
        raise InputError("indptr and indices must be vectors; indptr must have one entry more than rows")
    if s.indptr.is_meta:  # shapes only
        return
    if int(s.indptr[0]) != 0 or int(s.indptr[-1]) != s.num_arcs or bool((s.indptr.diff() < 0).any()):
        raise InputError(f"indptr must rise from 0 to the number of edges, {s.num_arcs}; give CSR row pointers")
    if s.num_arcs and (int(s.indices.min()) < 0 or int(s.indices.max()) >= s.num_cols):
        raise InputError(f"indices must lie in [0, {s.num_cols}); raise num_cols or correct the edges")
