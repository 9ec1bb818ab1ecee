"""Find a rank's memory plan, before anything is allocated.

Legend: n rows of the rank.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.partition import Part
from fullgraph.placement.streamed.chain import Links, Slots
from fullgraph.placement.streamed.files import BLOCK
from fullgraph.placement.streamed.parts import ArcFile, Size, cuts_of, sizes_of
from fullgraph.placement.streamed.trial import Trial
from fullgraph.report.memory import MemoryLine, MemoryPlan
from fullgraph.words import size

BASE = 480 << 20  # resident memory of a rank without a graph: Python, torch, compiled loops and their compiler
MOST_PARTS = 256
WEIGHT_COPIES = 6  # current and best weights, gradients, two of an optimizer, one in a checkpoint
OUTPUTS = 3  # the model's output, and what predictions make of it once no part is in memory
TIDY = 1.04  # the C library keeps some of the memory that was freed
POOLED = 1.3  # in memory, a pool keeps blocks for the next step (ops/pool.py); measured on 500,000 nodes


@dataclass(frozen=True, eq=False)
class Planner:
    """Finds the plan of one rank."""

    trial: Trial
    part: Part
    on_disk: bool  # the part's features and edges are files when it trains

    @cached_property
    def links(self) -> Links:
        return self.trial.links()

    @cached_property
    def arcs(self) -> ArcFile:
        return ArcFile.of(self.part)

    def plan(self, budget: int) -> MemoryPlan:
        """The plan within a budget; refuse a budget that is too small."""
        n, whole = self.arcs.num_rows, self._whole()
        if whole <= budget or not n:
            return MemoryPlan(budget=budget, whole=whole, peak=whole, lines=tuple(self._whole_lines()))
        room, least, best = budget - self._fixed(), 0, 0
        for parts in self._candidates(room / 2):
            sizes = sizes_of(self.arcs, cuts_of(self.arcs.indptr, parts))
            need = self._part(sizes)
            if not best or need < least:
                best, least, found = parts, need, sizes
            if need <= room / 2 or need > 1.1 * least:  # more parts read more rows: at last they take no less
                break
        if least > room:
            enough, how = min(((least + self._fixed()) * 1.01, f"in {best} parts"), (whole * 1.01, "all in memory"))
            raise InputError(
                f"this run needs at least {size(enough)} of memory, {how}, and {size(budget)} are given; "
                f"give --host-memory {int(enough / 1e6) + 1}MB or more, or use less --hidden"
            )
        slots = self._stores(sum(one.reads - one.rows for one in found))
        held, left = 0, room - least
        for nbytes in slots:
            if nbytes > left:
                break
            held, left = held + 1, left - nbytes
        peak = self._fixed() + least + sum(slots[:held])
        reads = sum(one.reads for one in found) / n
        disk = sum(slots[held:]) + sum(self.trial.structure(one) for one in found) + int(12 * n * (reads - 1))
        if self.links.kind(0)[1] or self.trial.known:  # input rows that parts read of others
            disk += int(n * (reads - 1)) * self.trial.in_width * self.item
        lines = tuple(self._lines(least, slots, held, found))
        return MemoryPlan(
            budget=budget, whole=whole, parts=best, peak=int(peak), disk=disk, held=held, reads=reads, lines=lines
        )

    def _candidates(self, room: float) -> Iterator[int]:
        """Numbers of parts to try, from the fewest that could fit if no part read rows of others."""
        n, e = self.arcs.num_rows, int(self.arcs.indptr[-1])
        one, two = (self._part([Size(n // parts, n // parts, e // parts)]) for parts in (1, 2))
        slope = 2 * (one - two)
        rest = one - slope
        most = max(1, min(MOST_PARTS, n, math.ceil(8 * slope / rest)))  # more parts would not take much less
        parts = max(1, min(most, math.ceil(slope / (room - rest)) if room > rest else most))
        while parts < most:
            yield parts
            parts += max(1, parts // 4)
        yield most

    @property
    def item(self) -> int:
        return self.trial.dtype.itemsize

    def _stores(self, halo: int) -> list[int]:
        """The bytes of each store: the precomputed input, then those of rows and gradients. halo: rows of all parts."""
        kinds = stores_of(self.links, known=self.trial.known)
        return [(self.arcs.num_rows + halo * spreads) * width * self.item for width, spreads in kinds]

    def _part(self, sizes: Sequence[Size]) -> int:
        """The memory of the largest part."""
        most = Size(*(max(column) for column in zip(*sizes, strict=True)))
        training = max(self.trial.part(self.links, most), self.trial.ahead(most))
        evaluation = self.trial.part(self.links, most, training=False) + self._output()
        work = max(training, evaluation) + self.trial.structure(most)
        setup = self.trial.setup(most) + self.trial.structure(most) + 9 * self.arcs.num_rows
        return int(max(work, setup) * TIDY + max(0, OUTPUTS * self._output() - work)) + BLOCK

    def _weights(self) -> int:
        return sum(weight.nbytes for weight in _weights_of(self.trial.model))

    def _labels(self) -> int:
        """Ids, labels, masks and row pointers, and the rows of each split."""
        of_rows = (self.part.ids, self.part.y, self.part.train_mask, self.part.val_mask, self.part.test_mask)
        return sum(tensor.nbytes for tensor in of_rows) + self.part.indptr.nbytes + 8 * self.arcs.num_rows

    def _output(self) -> int:
        """The model's output for all rows."""
        return self.arcs.num_rows * self.links.widths[-1] * self.item

    def _held_x(self) -> int:
        """Input rows that are in memory in any case."""
        return 0 if self.on_disk else self._x().nbytes

    def _x(self) -> Tensor:
        assert isinstance(self.part.x, Tensor)
        return self.part.x

    def _fixed(self) -> int:
        fixed = BASE + self._labels() + WEIGHT_COPIES * self._weights() + self._held_x()
        return fixed + (0 if self.on_disk else self.part.indices.nbytes)

    def _whole(self) -> int:
        n, e = self.arcs.num_rows, int(self.arcs.indptr[-1])
        one = Size(n, n, e)
        structure = self.trial.structure(one) + 4 * e
        work = max(self.trial.whole(one), self.trial.setup(one), self.trial.ahead(one), OUTPUTS * self._output())
        known = n * self.trial.in_width * self.item * (2 if self.trial.known else 1)
        rest = BASE + self._labels() + WEIGHT_COPIES * self._weights()
        return int(rest + known + structure + work * POOLED)

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
        yield MemoryLine(what="ids, labels, masks", rows=n, nbytes=self._labels(), lives="memory")
        weights = WEIGHT_COPIES * self._weights()
        yield MemoryLine(what="weights, gradients, optimizer", nbytes=weights, lives="memory")
        yield MemoryLine(what="the program itself", nbytes=BASE, lives="memory")

    def _lines(self, least: int, stores: list[int], held: int, sizes: Sequence[Size]) -> Iterator[MemoryLine]:
        n, width = self.arcs.num_rows, self.trial.in_width
        lives = "disk (shards)" if self.on_disk else "memory"
        yield MemoryLine(what="features", rows=n, columns=width, nbytes=self._x().nbytes, lives=lives)
        lives_in = ["memory"] * held + ["disk"] * (len(stores) - held)
        if self.trial.known:
            yield MemoryLine(what="precomputed input", rows=n, columns=width, nbytes=stores[0], lives=lives_in[0])
        slots, first = Slots.of(self.links), int(self.trial.known)
        for store, (columns, _) in enumerate(slots.kinds):
            what = " and ".join([*_named("rows", slots.rows, store), *_named("gradients", slots.grads, store)])
            place = first + store
            yield MemoryLine(
                what=f"store {store + 1}: {what}", rows=n, columns=columns, nbytes=stores[place], lives=lives_in[place]
            )
        edges = sum(self.trial.structure(one) for one in sizes)
        yield MemoryLine(what="edges of the parts", rows=int(self.arcs.indptr[-1]), nbytes=edges, lives="disk")
        most = max(one.reads for one in sizes)
        yield MemoryLine(what="a part at a time; then the output", rows=most, nbytes=least, lives="memory")
        yield from self._rest()


def stores_of(links: Links, *, known: bool) -> list[tuple[int, bool]]:
    """Each store's width, and whether parts read rows of others from it: the precomputed input's comes first."""
    return [*([(links.widths[0], False)] if known else []), *Slots.of(links).kinds]


def _named(kind: str, slots: dict[int, int], store: int) -> list[str]:
    values = [str(value) for value, place in slots.items() if place == store]
    return [f"{kind} of {', '.join(values)}"] if values else []


def _weights_of(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())
