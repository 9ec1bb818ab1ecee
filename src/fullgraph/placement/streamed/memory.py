"""The memory plan of a run: what its rows, edges and weights take, where each of them lives, and in how many parts a
layer is computed. It is made before anything is allocated.

Legend: n rows of the rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from torch import nn

from fullgraph.errors import InputError
from fullgraph.partition import Part
from fullgraph.placement.streamed.chain import Links, Slots
from fullgraph.placement.streamed.files import WINDOW
from fullgraph.placement.streamed.parts import ArcFile, Size, cuts_of, sizes_of
from fullgraph.placement.streamed.trial import Trial
from fullgraph.values import Range, Value
from fullgraph.words import size

BASE = 330 << 20  # resident memory of a rank without a graph: Python, torch and compiled loops
MOST_PARTS = 1 << 12
WEIGHT_COPIES = 6  # current and best weights, gradients, two of an optimizer, one in a checkpoint
OUTPUTS = 3  # the model's output, and what scores and predictions make of it
TIDY = 1.04  # the C library keeps some of the memory that was freed

Count = Annotated[int, Range(0, 2**63 - 1)]


@dataclass(frozen=True, kw_only=True)
class MemoryLine(Value):
    """One row of a memory plan."""

    what: str
    rows: Count = 0
    columns: Count = 0
    nbytes: Count
    lives: str  # memory, or disk


@dataclass(frozen=True, kw_only=True)
class MemoryPlan(Value):
    """Where a rank's rows live. parts: how many parts a layer is computed in; 0: it is computed at once, in memory.

    whole: the memory of the run if everything is in memory. peak: the most that it takes as planned. held: how many
    stores are in memory, counted from the first.
    """

    budget: Count
    whole: Count
    parts: Count = 0
    peak: Count
    disk: Count = 0
    held: Count = 0
    reads: float = 1.0  # rows that all parts read, as a multiple of the rows
    lines: tuple[MemoryLine, ...] = ()

    @property
    def streams(self) -> bool:
        return self.parts > 0

    def __str__(self) -> str:
        if not self.streams:
            return f"memory: {size(self.whole)} of {size(self.budget)}, all in memory"
        return (
            f"memory: in memory the run takes {size(self.whole)}, more than {size(self.budget)}; layers are computed in "
            f"{self.parts} parts, with {size(self.peak)} of memory and {size(self.disk)} of disk"
        )

    def table(self) -> Iterator[str]:
        """The plan as lines of text."""
        yield str(self)
        yield f"{'content':<38} {'rows':>14} {'columns':>8} {'bytes':>9}  lives in"
        for line in self.lines:
            shape = f"{line.rows or '':>14,} {line.columns or '':>8,}" if line.rows else " " * 23
            yield f"{line.what:<38} {shape} {size(line.nbytes):>9}  {line.lives}"


@dataclass(frozen=True, eq=False)
class Planner:
    """Finds the plan of one rank."""

    trial: Trial
    part: Part
    links: Links = field(init=False)
    arcs: ArcFile = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", self.trial.links())
        object.__setattr__(self, "arcs", ArcFile.of(self.part))

    def plan(self, budget: int, *, must: bool = True) -> MemoryPlan:
        """The plan within a budget; refuse a budget that is too small. must: False keeps what does not fit whole."""
        n, whole = self.arcs.num_rows, self._whole()
        if whole <= budget or (not must and n == 0):
            return MemoryPlan(budget=budget, whole=whole, peak=whole, lines=tuple(self._whole_lines()))
        slots = self._stores()
        room, least, best = budget - self._fixed(), 0, None
        for parts in _candidates(n):
            sizes = sizes_of(self.arcs, cuts_of(self.arcs.indptr, parts))
            need = self._part(sizes)
            if best is None or need < least:
                best, least, found = parts, need, sizes
            if need <= room / 2:
                break
            if need > 1.2 * least:  # more parts read more rows, and take no less
                break
        assert best is not None
        if least > room:
            enough = (least + self._fixed()) * 1.01
            raise InputError(
                f"this run needs at least {size(enough)} of memory, in {best} parts, and {size(budget)} are given; "
                f"give --host-memory {int(enough / 1e6) + 1}MB or more, or use less --hidden"
            )
        held, left = 0, room - least
        for nbytes in slots:
            if nbytes > left:
                break
            held, left = held + 1, left - nbytes
        peak = self._fixed() + least + sum(slots[:held])
        disk = sum(slots[held:]) + sum(self.trial.structure(one) for one in found)
        reads = sum(one.reads for one in found) / max(1, n)
        lines = tuple(self._lines(least, slots, held, found))
        return MemoryPlan(
            budget=budget, whole=whole, parts=best, peak=int(peak), disk=disk, held=held, reads=reads, lines=lines
        )

    @property
    def item(self) -> int:
        return self.trial.dtype.itemsize

    def _stores(self) -> list[int]:
        """The bytes of each store: the precomputed input, then those of rows and gradients."""
        ahead = [self.trial.in_width] if self.trial.known else []
        return [self.arcs.num_rows * width * self.item for width in (*ahead, *Slots.of(self.links).widths)]

    def _part(self, sizes: Sequence[Size]) -> int:
        """The memory of the largest part."""
        most = Size(*(max(column) for column in zip(*sizes, strict=True)))
        work = max(self.trial.part(self.links, most), self.trial.ahead(most)) + self.trial.structure(most)
        setup = self.trial.setup(most) + self.trial.structure(most) + 9 * self.arcs.num_rows
        return int(max(work, setup) * TIDY) + 2 * WINDOW

    def _weights(self) -> int:
        return sum(weight.nbytes for weight in _weights_of(self.trial.model))

    def _labels(self) -> int:
        """Ids, labels, masks and row pointers, and the rows of each split."""
        of_rows = (self.part.ids, self.part.y, self.part.train_mask, self.part.val_mask, self.part.test_mask)
        return sum(tensor.nbytes for tensor in of_rows) + self.part.indptr.nbytes + 8 * self.arcs.num_rows

    def _outputs(self) -> int:
        return OUTPUTS * self.arcs.num_rows * self.links.widths[-1] * self.item

    def _held_x(self) -> int:
        """Input rows that are in memory in any case."""
        assert not isinstance(self.part.x, tuple)
        return self.part.x.nbytes if self.part.folder is None else 0  # type: ignore[union-attr]

    def _fixed(self) -> int:
        fixed = BASE + self._labels() + self._outputs() + WEIGHT_COPIES * self._weights() + self._held_x()
        return fixed + (0 if self.part.folder is not None else self.part.indices.nbytes)

    def _whole(self) -> int:
        n, e = self.arcs.num_rows, int(self.arcs.indptr[-1])
        one = Size(n, n, e)
        structure = self.trial.structure(one) + 4 * e
        work = max(self.trial.whole(one), self.trial.setup(one), self.trial.ahead(one))
        known = n * self.trial.in_width * self.item * (2 if self.trial.known else 1)
        rest = BASE + self._labels() + self._outputs() + WEIGHT_COPIES * self._weights()
        return int(rest + known + (structure + work) * TIDY)

    def _whole_lines(self) -> Iterator[MemoryLine]:
        n, e, item = self.arcs.num_rows, int(self.arcs.indptr[-1]), self.item
        one = Size(n, n, e)
        width = self.trial.in_width
        yield MemoryLine(what="features", rows=n, columns=width, nbytes=n * width * item, lives="memory")
        if self.trial.known:
            yield MemoryLine(what="precomputed input", rows=n, columns=width, nbytes=n * width * item, lives="memory")
        yield MemoryLine(what="a training step: all layers' rows", rows=n, nbytes=self.trial.whole(one), lives="memory")
        yield MemoryLine(what="edges", rows=e, nbytes=self.trial.structure(one) + 4 * e, lives="memory")
        yield from self._rest()

    def _rest(self) -> Iterator[MemoryLine]:
        n = self.arcs.num_rows
        out = self.links.widths[-1]
        yield MemoryLine(what="output, scores, predictions", rows=n, columns=out, nbytes=self._outputs(), lives="memory")
        yield MemoryLine(what="ids, labels, masks", rows=n, nbytes=self._labels(), lives="memory")
        weights = WEIGHT_COPIES * self._weights()
        yield MemoryLine(what="weights, gradients, optimizer", nbytes=weights, lives="memory")
        yield MemoryLine(what="the program itself", nbytes=BASE, lives="memory")

    def _lines(self, least: int, stores: list[int], held: int, sizes: Sequence[Size]) -> Iterator[MemoryLine]:
        n, width = self.arcs.num_rows, self.trial.in_width
        assert not isinstance(self.part.x, tuple)
        x = self.part.x.nbytes  # type: ignore[union-attr]
        lives = "memory" if self.part.folder is None else "disk (shards)"
        yield MemoryLine(what="features", rows=n, columns=width, nbytes=x, lives=lives)
        lives_in = ["memory"] * held + ["disk"] * (len(stores) - held)
        if self.trial.known:
            yield MemoryLine(what="precomputed input", rows=n, columns=width, nbytes=stores[0], lives=lives_in[0])
        slots, first = Slots.of(self.links), int(self.trial.known)
        for store, columns in enumerate(slots.widths):
            what = " and ".join([*_named("rows", slots.rows, store), *_named("gradients", slots.grads, store)])
            place = first + store
            yield MemoryLine(
                what=f"store {store + 1}: {what}", rows=n, columns=columns, nbytes=stores[place], lives=lives_in[place]
            )
        edges = sum(self.trial.structure(one) for one in sizes)
        yield MemoryLine(what="edges of the parts", rows=int(self.arcs.indptr[-1]), nbytes=edges, lives="disk")
        most = max(one.reads for one in sizes)
        yield MemoryLine(what="one part at a time: rows, edges, work", rows=most, nbytes=least, lives="memory")
        yield from self._rest()


def _named(kind: str, slots: dict[int, int], store: int) -> list[str]:
    values = [str(value) for value, place in slots.items() if place == store]
    return [f"{kind} of {', '.join(values)}"] if values else []


def _weights_of(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())


def _candidates(rows: int) -> Iterator[int]:
    """Numbers of parts to try."""
    parts = 1
    while parts <= min(MOST_PARTS, max(1, rows)):
        yield parts
        parts = parts + 1 if parts < 4 else parts + parts // 3
