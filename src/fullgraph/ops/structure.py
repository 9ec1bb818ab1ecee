"""The pattern of a sparse matrix, and the matrix M = diag(r) A diag(c) built on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops.long_rows import LongRows, long_rows
from fullgraph.ops.parallel import balanced_cuts, num_chunks
from fullgraph.ops.transpose import INT32_MAX, indptr_of, is_symmetric, transpose

M = TypeVar("M")


class _Turned(Generic[M]):
    """What an object knows of its transpose. The first of the two holds the second, which only points back.

    Two objects that held one another would wait for the cyclic collector, and so would their arrays.
    """

    def __init__(self) -> None:
        self.held: M | None = None
        self.origin: ref[M] | None = None

    def get(self) -> M | None:
        return self.origin() if self.held is None and self.origin is not None else self.held


@dataclass
class _Memo:
    """What a structure computed once."""

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
        _check(self)  # before the cast, in which a wrong index might become a right one
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
        """The transposed pattern, sources ascending; the object itself when the pattern is symmetric."""
        if self._memo.symmetric:
            return self
        known = self._turned.get()
        if known is None:
            self._memo.perm = None  # if there was an origin, it is gone, and the order of its arcs with it
            known = self._transpose()
            self.paired(known, None)
        return known

    @property
    def perm(self) -> Tensor:
        """Where T's arcs come from: T's entry k is this structure's entry perm[k]."""
        turned = self.T
        if self._memo.perm is None:
            if turned is not self and self._turned.held is None:
                # T was there first; its rows may be unsorted, so sorting again need not give them back.
                self._memo.perm = torch.empty_like(turned.perm)
                order = torch.arange(self.num_arcs, dtype=turned.perm.dtype, device=turned.perm.device)
                self._memo.perm[turned.perm.long()] = order
            else:
                self._memo.perm = transpose(self.indptr, self.indices, self.num_cols, with_perm=True)[2]
        return self._memo.perm

    def paired(self, turned: "Structure", perm: Tensor | None) -> "Structure":
        """This pattern with the transpose (and where that comes from) that someone computed already."""
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
        """The row of every arc, int64 [E]; only the reference path needs it spelled out."""
        counts = self.indptr.diff()
        return torch.repeat_interleave(
            torch.arange(self.num_rows, device=counts.device), counts, output_size=self.num_arcs
        )

    def cuts(self, width: int) -> Sequence[int]:
        """Row boundaries of chunks of equal work, for a kernel that does `width` multiply-adds per arc."""
        chunks = num_chunks((self.num_arcs + self.num_rows) * width)
        if chunks not in self._memo.cuts:
            self._memo.cuts[chunks] = balanced_cuts(self.indptr.numpy(), chunks)
        return self._memo.cuts[chunks]

    def long_rows(self, chunk: int) -> LongRows:
        """The rows of more than `chunk` arcs, cut into pieces of at most that many."""
        if chunk not in self._memo.long_rows:
            self._memo.long_rows[chunk] = long_rows(self.indptr, chunk)
        return self._memo.long_rows[chunk]

    def span(self, first: int, last: int) -> "Structure":
        """Rows first..last-1, which share this one's memory."""
        low, high = int(self.indptr[first]), int(self.indptr[last])
        return Structure(self.indptr[first : last + 1] - low, self.indices[low:high], self.num_cols)

    def first(self, rows: int, num_cols: int, number_C: Tensor | None = None) -> "Structure":
        """The first rows over other columns: `number_C` says what becomes of each that they read."""
        indices = self.indices[: int(self.indptr[rows])]
        indices = indices if number_C is None else number_C[indices.long()]
        return Structure(self.indptr[: rows + 1], indices, num_cols)

    def to(self, device: torch.device | str) -> "Structure":
        """The same pattern on another device (itself when it is there already)."""
        if self.indptr.device == torch.device(device):
            return self
        there = Structure(self.indptr.to(device), self.indices.to(device), self.num_cols)
        return there.paired(there, None) if self._memo.symmetric else there


@dataclass(frozen=True, eq=False)
class Adjacency:
    """M = diag(row_scale) A diag(col_scale),  A[i, j] = weight of the arc j -> i;  what is None counts as ones."""

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
        """This matrix with the weights of its transpose, which someone computed already."""
        self._hold_transpose(weight)
        return self

    def _hold_transpose(self, weight: Tensor | None) -> "Adjacency":
        turned = Adjacency(self.structure.T, weight, self.col_scale, self.row_scale)
        self._turned.held, turned._turned.origin = turned, ref(self)
        return turned

    def with_weight(self, weight: Tensor | None) -> "Adjacency":
        """Other weights on the same pattern, whose transpose is not computed again."""
        return Adjacency(self.structure, weight, self.row_scale, self.col_scale)

    def span(self, first: int, last: int) -> "Adjacency":
        """Rows first..last-1, which share this one's memory."""
        low, high = int(self.structure.indptr[first]), int(self.structure.indptr[last])
        weight = None if self.weight is None else self.weight[low:high]
        row_scale = None if self.row_scale is None else self.row_scale[first:last]
        return Adjacency(self.structure.span(first, last), weight, row_scale, self.col_scale)

    def take(self, rows: Tensor) -> "Adjacency":
        """A copy of these rows, in this order."""
        counts = self.structure.indptr.diff()[rows]
        indptr = indptr_of(counts)
        shift = self.structure.indptr[rows] - indptr[:-1]
        arcs = torch.arange(int(indptr[-1]), device=counts.device) + torch.repeat_interleave(shift, counts)
        structure = Structure(indptr, self.structure.indices[arcs], self.structure.num_cols)
        weight = None if self.weight is None else self.weight[arcs]
        return Adjacency(structure, weight, None if self.row_scale is None else self.row_scale[rows], self.col_scale)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "Adjacency":
        """The same matrix with its numbers in another type, on another device (itself when nothing changes)."""
        structure = self.structure if device is None else self.structure.to(device)
        old = (self.weight, self.row_scale, self.col_scale)
        new = [None if t is None else t.to(device=device, dtype=dtype) for t in old]
        same = structure is self.structure and all(a is b for a, b in zip(old, new, strict=True))
        return self if same else Adjacency(structure, *new)


def _check(s: Structure) -> None:
    # The kernels do not check bounds, so a wrong index would corrupt memory instead of raising.
    if s.num_cols > INT32_MAX:
        raise InputError(
            f"{s.num_cols} columns do not fit int32 indices; use more parts, so that each has fewer columns"
        )
    if s.indptr.dim() != 1 or s.indices.dim() != 1 or s.indptr.numel() == 0:
        raise InputError("indptr and indices must be vectors, indptr with one entry more than there are rows")
    if s.indptr.is_meta:  # sizes alone
        return
    if int(s.indptr[0]) != 0 or int(s.indptr[-1]) != s.num_arcs or bool((s.indptr.diff() < 0).any()):
        raise InputError(f"indptr must rise from 0 to the number of arcs, {s.num_arcs}; give CSR row pointers")
    if s.num_arcs and (int(s.indices.min()) < 0 or int(s.indices.max()) >= s.num_cols):
        raise InputError(f"indices must lie in [0, {s.num_cols}); raise num_cols or correct the arcs")
