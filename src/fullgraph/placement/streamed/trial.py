"""Trials on few rows: what a block's forward and backward pass take in memory, per row of a part.

Memory is linear in a part's size as long as its rows, sources and edges keep their ratios; two trials give the line.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fullgraph.exchange import Clock
from fullgraph.nn import Chain
from fullgraph.placement.holding.adjacency import Matrices, build
from fullgraph.placement.known import Known
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.streamed.chain import Links
from fullgraph.placement.streamed.parts import Size, even_arcs
from fullgraph.placement.streamed.view import PartView, part_rows

ROWS = 512  # of the smaller trial
TRANSPOSED = 10  # bytes per edge that a counting sort takes beside torch's memory


class _Peak(TorchDispatchMode):
    """The most bytes of tensors that were made and alive at the same time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak: int = 0
        self._alive: dict[Any, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                self._alive.setdefault(StorageWeakRef(storage), storage.nbytes())
        self._alive = {held: size for held, size in self._alive.items() if not held.expired()}
        self.peak = max(self.peak, sum(self._alive.values()))
        return out


def peak_of(work: Callable[[], object]) -> int:
    mode = _Peak()
    with mode:
        work()
    return mode.peak


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """What the parts of a run take, in bytes."""

    model: Chain
    in_width: int
    aggregation: str
    rules: Rules
    known: bool
    weighted: bool
    dtype: torch.dtype

    def links(self) -> Links:
        view = self._view(self._matrices(Size(2, 2, 2)), 2)
        view.known = self._known(2)
        x = view.known.x if view.known is not None else torch.zeros(2, self.in_width, dtype=self.dtype)
        training = self.model.training
        self.model.eval()
        try:
            return Links.of(self.model, x, view, known=self.known)
        finally:
            self.model.train(training)

    def part(self, links: Links, size: Size, *, training: bool = True) -> int:
        """The most that one part of this size takes, in any block of a training step, or of an evaluation."""
        return max(
            _line(lambda small, place=place: self._block(links, place, small, training), size)  # type: ignore[misc]
            for place in range(len(links.links))
        )

    def ahead(self, size: Size) -> int:
        """The memory of precomputing a part of the input."""

        def once(small: Size) -> int:
            matrices = self._matrices(small)
            return peak_of(lambda: self._view(matrices, small.reads).aggregate(self._rows(small.reads), 0))

        return _line(once, size) if self.known else 0

    def whole(self, size: Size) -> int:
        """The memory of a whole training step on all rows at once."""

        def once(small: Size) -> int:
            view, known = self._view(self._matrices(small), small.reads), self._known(small.rows)
            view.known = known
            x = self._rows(small.reads) if known is None else known.x
            return peak_of(lambda: _step(self.model.blocks, (x,), view))

        return _line(once, size)

    def setup(self, size: Size) -> int:
        """The memory of making a part's matrices."""

        def once(small: Size) -> int:
            return peak_of(lambda: self._built(small))

        return _line(once, size) + (TRANSPOSED + 8) * size.arcs

    def structure(self, size: Size) -> int:
        """The matrices of a part and their transposes."""
        looped = size.rows if self.aggregation in ("gcn", "attention") else 0
        factors = (2 * self.dtype.itemsize if self.weighted else 0) + (4 if self.aggregation == "attention" else 0)
        return (size.arcs + looped) * (8 + factors) + 24 * (size.rows + size.reads)

    def _block(self, links: Links, place: int, small: Size, training: bool) -> int:
        link = links.links[place]
        reads = small.reads if link.spreads else small.rows
        view = self._view(self._matrices(small), reads)

        def once() -> None:
            known = None if place else self._known(small.rows)
            view.known = known
            state = tuple(
                self._rows(reads, links.widths[value]).requires_grad_(training and value > 0)
                if known is None
                else known.x
                for value in link.reads
            )
            last = place == len(links.links) - 1
            if training:
                _step((link.block,), state, view, [slot for slot, _ in link.new] if not last else None)
            else:
                link.block(state, view)

        with torch.set_grad_enabled(training):
            return peak_of(once)

    def _view(self, matrices: Matrices, reads: int) -> PartView:
        ids = torch.arange(reads)
        rows = part_rows(matrices.inner.shape[0], ids, matrices)
        return PartView(read_ids=ids, rows=rows, clock=Clock(step=0), num_nodes=reads, rules=self.rules)

    def _matrices(self, size: Size) -> Matrices:
        made = self._built(size)
        for pattern in (made.inner, made.arcs):
            _ = pattern.T
        if made.arcs.num_arcs:
            _ = made.arcs.perm
        return made

    def _built(self, size: Size) -> Matrices:
        arcs, others = even_arcs(size, self.weighted, self.dtype), size.reads - size.rows
        return build(arcs, self.aggregation, lambda values: values.new_ones(others, 1), self.dtype, joined=True)

    def _known(self, rows: int) -> Known | None:
        return Known(self._rows(rows), self._rows(rows)) if self.known else None

    def _rows(self, rows: int, width: int | None = None) -> Tensor:
        return torch.ones(rows, self.in_width if width is None else width, dtype=self.dtype)


def _step(blocks: Any, state: Any, view: PartView, new: list[int] | None = None) -> None:
    """A forward and a backward pass. new: the places of the output whose gradients come from a store."""
    for block in blocks:
        state = block(state, view)
    if new is None:
        state[0].log_softmax(1)[:, 0].sum().backward()
    else:
        outs = [state[place] for place in new]
        torch.autograd.backward(outs, [torch.zeros_like(out) for out in outs])


def _line(measure: Callable[[Size], int], size: Size) -> int:
    """Bytes at this size, from two trials of the same shape."""
    if size.rows <= 2 * ROWS:
        return measure(size)
    measure(_scaled(size, ROWS))  # gradients of weights appear in the first one
    one, two = (measure(_scaled(size, rows)) for rows in (ROWS, 2 * ROWS))
    slope = (two - one) / ROWS
    return int(one + slope * (size.rows - ROWS))


def _scaled(size: Size, rows: int) -> Size:
    share = rows / size.rows
    return Size(rows, max(rows, round(size.reads * share)), round(size.arcs * share))
