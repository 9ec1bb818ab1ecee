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
from fullgraph.placement.streamed.files import FiledRows, HeldRows, Rows, Shelf, Store
from fullgraph.plan import HaloRoute
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
    """One part, as if it were a rank of its own.

    The other rows that it reads are its halo. In a store of halo rows those of all parts follow one another; `halo` is
    where its own begin, and `places` are where its rows begin in the halo of every part that reads them.
    """

    first: int
    last: int
    halo: int
    others: Tensor  # int64, ascending
    route: HaloRoute
    places: tuple[int, ...]  # by reading part
    matrices: Matrices | None  # None: for a layer that reads only its own rows

    @property
    def num_rows(self) -> int:
        return self.last - self.first

    @property
    def num_reads(self) -> int:
        """The rows that a layer reads for it."""
        return self.num_rows + (0 if self.matrices is None else len(self.others))


class Parts:
    """The parts of a rank's rows; their matrices and routes are made once and kept in a file without a name."""

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
        self._connect()

    def _keep(self, matrices: Matrices, others: Tensor) -> None:
        bundle = pack({"inner": matrices.inner, "outer": matrices.outer, "arcs": matrices.arcs})
        numbers = [self._shelf.put(tensor) for tensor in bundle.tensors]
        self._kept.append((bundle.text, numbers, self._shelf.put(others)))

    def _connect(self) -> None:
        """Find which rows of each part the others read: the routes between parts."""
        bounds = torch.tensor([*(first for first, _ in self.spans), self.spans[-1][1] if self.spans else 0])
        begins, counts, pieces = [0], list[Tensor](), list[list[int]]()
        for _, _, number in self._kept:
            others = self._shelf.get(number)
            cuts = torch.searchsorted(others, bounds)
            counts.append(cuts.diff())
            pieces.append(
                [self._shelf.put((others[low:high] - first).int()) for (low, high), (first, _) in
                 zip(pairwise(cuts.tolist()), self.spans, strict=True)]
            )  # fmt: skip
            begins.append(begins[-1] + len(others))
        self.halo_rows, self._begins = begins[-1], begins[:-1]
        self._counts = torch.stack(counts) if counts else torch.zeros(0, 0, dtype=torch.int64)  # [reader, owner]
        self._pieces = pieces  # [reader][owner]

    def __len__(self) -> int:
        return len(self.spans)

    def open(self, number: int, *, bare: bool) -> RowPart:
        """Read a part. bare: for a layer that reads only its own rows."""
        first, last = self.spans[number]
        text, numbers, others = self._kept[number]
        matrices = None
        if not bare:
            held = unpack(Bundle(text, [self._shelf.get(number) for number in numbers]))
            matrices = Matrices(held["inner"], held["outer"], held["arcs"])  # type: ignore[arg-type]
        sent = [self._shelf.get(pieces[number]).long() for pieces in self._pieces]
        route = HaloRoute(
            torch.cat(sent), tuple(map(len, sent)), tuple(self._counts[number].tolist()), last - first
        )  # fmt: skip
        before = self._counts[:, :number].sum(1)  # each reader's halo has the rows of earlier parts first
        places = tuple((torch.tensor(self._begins) + before).tolist())
        return RowPart(first, last, self._begins[number], self._shelf.get(others), route, places, matrices)


class PartedRows:
    """Rows of a value, or their gradients, by part: each part's own rows, and the rows that it reads of others."""

    def __init__(self, own: Rows, halo: Store | None, width: int, dtype: torch.dtype) -> None:
        self.own, self.halo, self.width, self.dtype = own, halo, width, dtype
        self._added: set[str] = set()

    def put(self, part: RowPart, rows_tD: Tensor) -> None:
        """Store a part's rows, and send them to the parts that read them."""
        self._own.write(part.first, rows_tD)
        self.send(part, rows_tD)

    def send(self, part: RowPart, rows_tD: Tensor) -> None:
        if self.halo is not None:
            for reader, rows in part.route.pack(rows_tD).items():
                self.halo.write(part.places[reader], rows)

    def take(self, part: RowPart) -> Tensor:
        """The rows that a layer reads for a part: its own, then those of others."""
        out_mD = torch.empty(part.num_reads, self.width, dtype=self.dtype)
        self.own.read(part.first, out_mD[: part.num_rows])
        if part.num_reads > part.num_rows:
            assert self.halo is not None
            self.halo.read(part.halo, out_mD[part.num_rows :])
        return out_mD

    def begin(self) -> None:
        """Forget all gradients."""
        self._added = set()

    def add(self, part: RowPart, grad_mD: Tensor) -> None:
        """Add the gradients of the rows that a layer read for a part; `added` tells when a layer is done."""
        self._add("own", self._own, part.first, grad_mD[: part.num_rows])
        if part.num_reads > part.num_rows:
            assert self.halo is not None
            self._add("halo", self.halo, part.halo, grad_mD[part.num_rows :])

    def added(self, *, bare: bool) -> None:
        """Note that every part's gradients are there: the next ones are added to them."""
        self._added |= {"own"} if bare else {"own", "halo"}

    def total(self, part: RowPart) -> Tensor | None:
        """The gradients of a part's rows: its own, then those from each reading part, in their order."""
        if "own" not in self._added:
            return None
        out_tD = torch.empty(part.num_rows, self.width, dtype=self.dtype)
        self.own.read(part.first, out_tD)
        if "halo" in self._added and self.halo is not None:
            come = {}
            for reader, count in enumerate(part.route.send_counts):
                if count:
                    come[reader] = torch.empty(count, self.width, dtype=self.dtype)
                    self.halo.read(part.places[reader], come[reader])
            part.route.T.unpack(come, out_tD)
        return out_tD

    @property
    def _own(self) -> Store:
        return self.own  # type: ignore[return-value]  # only rows of the graph's file cannot be written

    def _add(self, kind: str, store: Store, first: int, values: Tensor) -> None:
        if kind in self._added:
            before = torch.empty_like(values, memory_format=torch.contiguous_format)
            store.read(first, before)
            values = before.add_(values)
        store.write(first, values)


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
