"""The parts that a rank's layers are computed in, one after the other: their rows, sources and matrices.

A part's columns are its own rows, then the other rows that it reads, ascending: like a rank's own and halo columns.

Legend: n rows of the rank, t of a part, m that the part reads (its own and others), e edges into the part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgraph.ops.transpose import indptr_of
from fullgraph.partition import Part
from fullgraph.placement.holding.adjacency import Arcs, Matrices, build
from fullgraph.placement.holding.whole import pack, unpack
from fullgraph.placement.streamed.files import FiledRows, HeldRows, Rows, Shelf
from fullgraph.transport import Bundle

ARCS_AT_ONCE = 1 << 22
ROW_WORK = 8  # computing a row takes about as long as this many edges


class Size(NamedTuple):
    """The size of a part: its rows, the rows that it reads, its edges."""

    rows: int
    reads: int
    arcs: int


@dataclass(frozen=True, eq=False)
class ArcFile:
    """A rank's edges by target, in memory or in a file."""

    indptr: Tensor  # int64 [n+1]
    indices: Rows
    weight: Rows | None

    @classmethod
    def of(cls, part: Part) -> "ArcFile":
        def rows(name: str, held: Tensor) -> Rows:
            return HeldRows(held) if part.folder is None else FiledRows.of_npy(part.folder / f"{name}.npy")

        weight = None if part.weight is None else rows("weight", part.weight)
        return cls(part.indptr, rows("indices", part.indices), weight)

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    def of_rows(self, first: int, last: int) -> Arcs:
        """The edges into consecutive rows; columns are the rank's rows."""
        low, high = self.indptr[[first, last]].tolist()
        indices = self._read(self.indices, low, high)
        weight = None if self.weight is None else self._read(self.weight, low, high)
        return Arcs(self.indptr[first : last + 1] - low, indices, weight, 0)

    def sources(self, first: int, last: int) -> Iterator[Tensor]:
        """The sources of the edges into consecutive rows, in blocks."""
        low, high = self.indptr[[first, last]].tolist()
        for begin in range(low, high, ARCS_AT_ONCE):
            yield self._read(self.indices, begin, min(high, begin + ARCS_AT_ONCE))

    @staticmethod
    def _read(rows: Rows, low: int, high: int) -> Tensor:
        out = torch.empty(high - low, dtype=rows.dtype)
        rows.read(low, out)
        return out


def cuts_of(indptr: Tensor, parts: int) -> list[int]:
    """Boundaries of parts with about equal work. Some may be equal: a part may have no rows."""
    n = len(indptr) - 1
    work = indptr + ROW_WORK * torch.arange(n + 1)
    inner = torch.searchsorted(work, torch.arange(1, parts) * int(work[-1]) // parts)
    return [0, *inner.tolist(), n]


def sizes_of(arcs: ArcFile, cuts: Sequence[int]) -> list[Size]:
    """The sizes of the parts between these boundaries."""
    if len(cuts) == 2:
        return [Size(arcs.num_rows, arcs.num_rows, int(arcs.indptr[-1]))]
    read_n = torch.empty(arcs.num_rows, dtype=torch.bool)
    sizes = []
    for first, last in pairwise(cuts):
        _mark(arcs, first, last, read_n)
        low, high = arcs.indptr[[first, last]].tolist()
        sizes.append(Size(last - first, last - first + int(read_n.sum()), high - low))
    return sizes


def _mark(arcs: ArcFile, first: int, last: int, read_n: Tensor) -> None:
    """Mark the rows outside a part that it reads."""
    read_n.zero_()
    for block in arcs.sources(first, last):
        read_n[block.long()] = True
    read_n[first:last] = False


@dataclass(frozen=True, eq=False)
class RowPart:
    """One part: its rows, the other rows that it reads, and its matrices, which may be left out."""

    first: int
    last: int
    others: Tensor  # int64 [m-t], ascending
    matrices: Matrices | None

    @property
    def num_rows(self) -> int:
        return self.last - self.first

    @property
    def num_reads(self) -> int:
        return self.num_rows + len(self.others)

    def gather(self, rows: Rows, width: int, dtype: torch.dtype) -> Tensor:
        """The rows that the part reads: its own first."""
        out_mD = torch.empty(self.num_reads, width, dtype=dtype)
        rows.read(self.first, out_mD[: self.num_rows])
        rows.pick(self.others, out_mD[self.num_rows :])
        return out_mD


class Parts:
    """The parts of a rank's rows; their matrices are made once and kept in a file without a name."""

    def __init__(
        self, arcs: ArcFile, cuts: Sequence[int], aggregation: str, dtype: torch.dtype, shelf: Shelf
    ) -> None:  # fmt: skip
        self.spans = [(first, last) for first, last in pairwise(cuts) if last > first]
        self._shelf = shelf
        self._kept: list[tuple[Any, list[int], int]] = []  # description, tensors and other rows of each part
        n = arcs.num_rows
        number_n, read_n = torch.empty(n, dtype=torch.int32), torch.empty(n, dtype=torch.bool)
        scale_n = torch.zeros(n, dtype=dtype) if aggregation == "gcn" else None
        for fills in (True, False) if scale_n is not None else (False,):
            for first, last in self.spans:
                others, local = _localised(arcs, first, last, number_n, read_n)

                def of_others(values: Tensor, others: Tensor = others) -> Tensor:
                    known = torch.zeros(n, dtype=values.dtype) if scale_n is None else scale_n
                    return known[others, None]

                matrices = build(local, aggregation, of_others, dtype, joined=True)
                if fills and scale_n is not None:  # global degrees scale the columns of every part
                    assert matrices.inner.row_scale is not None
                    scale_n[first:last] = matrices.inner.row_scale
                else:
                    self._keep(matrices, others)

    def _keep(self, matrices: Matrices, others: Tensor) -> None:
        bundle = pack({"inner": matrices.inner, "outer": matrices.outer, "arcs": matrices.arcs})
        numbers = [self._shelf.put(tensor) for tensor in bundle.tensors]
        self._kept.append((bundle.text, numbers, self._shelf.put(others)))

    def __len__(self) -> int:
        return len(self.spans)

    def open(self, number: int, *, bare: bool) -> RowPart:
        """Read a part. bare: for a layer that reads only its own rows."""
        first, last = self.spans[number]
        if bare:
            return RowPart(first, last, torch.empty(0, dtype=torch.int64), None)
        text, numbers, others = self._kept[number]
        held = unpack(Bundle(text, [self._shelf.get(number) for number in numbers]))
        matrices = Matrices(held["inner"], held["outer"], held["arcs"])  # type: ignore[arg-type]
        return RowPart(first, last, self._shelf.get(others), matrices)


def _localised(arcs: ArcFile, first: int, last: int, number_n: Tensor, read_n: Tensor) -> tuple[Tensor, Arcs]:
    """The other rows that a part reads, and its edges between its own numbers. The last two are work space."""
    _mark(arcs, first, last, read_n)
    others = read_n.nonzero().flatten()
    count = last - first
    number_n[first:last] = torch.arange(count, dtype=torch.int32)
    number_n[others] = torch.arange(count, count + len(others), dtype=torch.int32)
    found = arcs.of_rows(first, last)
    for block in found.indices.split(ARCS_AT_ONCE):
        block.copy_(number_n[block.long()])
    return others, Arcs(found.indptr, found.indices, found.weight, len(others))


def even_arcs(size: Size, weighted: bool, dtype: torch.dtype) -> Arcs:
    """Random edges of that size, for a trial."""
    rows, reads, arcs = size
    generator = torch.Generator().manual_seed(0)
    indptr = torch.arange(rows + 1) * arcs // max(1, rows)
    indices = torch.randint(0, max(1, reads), (arcs,), generator=generator, dtype=torch.int32)
    weight = torch.rand(arcs, generator=generator, dtype=dtype) if weighted else None
    return Arcs(indptr_of(indptr.diff()), indices, weight, reads - rows)
