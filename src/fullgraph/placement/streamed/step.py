"""A training step and an evaluation with rows in stores: layers in order, and the parts of each layer in turn.

Between parts, rows cross by the routes of a partition, through stores instead of a transport: a part that is computed
sends its rows to the parts that read them. The backward pass walks the layers in reverse, computes each part again with
its rows from a store, and returns the gradients of the rows that it read by the transposed routes. Every sum over parts
is in their order.

Legend: n rows, t of a part, m that it reads.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fullgraph.cached import cached_property
from fullgraph.exchange import Clock, Held
from fullgraph.nn import Chain
from fullgraph.nn.layer_plan import LayerPlan
from fullgraph.nn.model import Block, State
from fullgraph.ops.pool import POOL
from fullgraph.partition import Part
from fullgraph.placement.holding.adjacency import Matrices
from fullgraph.placement.known import Known
from fullgraph.placement.layer_plans import Rules, plan_layers
from fullgraph.placement.shard import Loss, Shard
from fullgraph.placement.streamed.chain import Link, Links, Slots
from fullgraph.placement.streamed.files import FiledRows, HeldRows, Rows, Shelf, Store, store
from fullgraph.placement.streamed.memory import Planner, stores_of
from fullgraph.placement.streamed.parts import ArcFile, PartedRows, Parts, RowPart, cuts_of
from fullgraph.placement.streamed.view import PartView, part_rows
from fullgraph.placement.view import RankView
from fullgraph.report.memory import MemoryPlan
from fullgraph.resources import require_disk

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


@dataclass(frozen=True, eq=False, kw_only=True)
class Streamed:
    """A rank's rows in stores and its edges in parts."""

    ids: Tensor
    nodes: int
    x: PartedRows
    ahead: PartedRows | None  # the precomputed input
    parts: Parts
    links: Links
    slots: Slots
    stores: list[PartedRows]
    plan: MemoryPlan

    @classmethod
    def of(cls, part: Part, planner: Planner, plan: MemoryPlan, folder: Path) -> "Streamed":
        """Take the room that the plan names, make the parts, and precompute the input."""
        require_disk(folder, plan.disk, "a run whose rows are on disk")
        return_large_blocks()
        trial, links, arcs = planner.trial, planner.links, ArcFile.of(part)
        n, dtype = arcs.num_rows, trial.dtype
        parts = Parts(arcs, cuts_of(arcs.indptr, plan.parts), trial.aggregation, dtype, Shelf(folder))

        def halo(width: int, place: Path | None) -> Store:
            return store(place, parts.halo_rows, width, dtype)

        stores = []
        for number, (width, spreads) in enumerate(stores_of(links, known=trial.known)):
            place = None if number < plan.held else folder
            own = store(place, n, width, dtype)
            stores.append(PartedRows(own, halo(width, place) if spreads else None, width, dtype))
        assert isinstance(part.x, Tensor)
        x: Rows = HeldRows(part.x) if part.folder is None else FiledRows.of_npy(part.folder / "x.npy")
        reads_x = trial.known or links.kind(0)[1]
        of_others = halo(trial.in_width, folder) if reads_x else None
        ahead = stores.pop(0) if trial.known else None
        made = cls(
            ids=part.ids, nodes=part.manifest.graph.nodes, x=PartedRows(x, of_others, trial.in_width, dtype),
            ahead=ahead, parts=parts, links=links, slots=Slots.of(links), stores=stores, plan=plan,
        )  # fmt: skip
        made._prepare()
        return made

    @torch.no_grad()
    def _prepare(self) -> None:
        """Send input rows to the parts that read them, and precompute their aggregation; both once."""
        if self.x.halo is not None:
            self._in_turn(lambda part: self.x.send(part, self.x.take(part)), bare=True)

        def one(part: RowPart) -> None:
            rows = self._view(part, Clock(), Rules()).aggregate(self.x.take(part), 0)
            self.ahead.put(part, rows)  # type: ignore[union-attr]

        if self.ahead is not None:
            self._in_turn(one, bare=False)
            self.x.halo = None  # the file is freed

    def each(self, place: int, work: Callable[[RowPart], None]) -> None:
        """Do the work of a block for one part after the other; nothing of a part stays in memory."""
        self._in_turn(work, bare=not self.links.links[place].spreads)

    def _in_turn(self, work: Callable[[RowPart], None], *, bare: bool) -> None:
        for number in range(len(self.parts)):
            work(self.parts.open(number, bare=bare))
            POOL.clear()

    def called(self, block: Block, place: int, part: RowPart, clock: Clock, rules: Rules) -> tuple[list[Tensor], State]:
        """(the rows that a block reads for a part, its output)."""
        view, grad = self._view(part, clock, rules), torch.is_grad_enabled()
        state = [
            self.rows_of(value).take(part).requires_grad_(grad and value > 0)
            for value in self.links.links[place].reads
        ]  # fmt: skip
        if place == 0 and self.ahead is not None:
            view.known = Known(state[0], self.ahead.take(part))
        return state, block(tuple(state), view)

    def rows_of(self, value: int) -> PartedRows:
        return self.stores[self.slots.rows[value]] if value else self.x

    def grads_of(self, value: int) -> PartedRows:
        return self.stores[self.slots.grads[value]]

    @torch.no_grad()
    def forward(self, model: Chain, clock: Clock, rules: Rules) -> None:
        """Compute and store the rows of all blocks but the last."""
        for place, link in enumerate(self.links.links[:-1]):

            def one(part: RowPart, place: int = place, link: Link = link) -> None:
                _, out = self.called(model.blocks[place], place, part, clock, rules)
                for slot, value in link.new:
                    self.rows_of(value).put(part, _dense(out[slot]))

            self.each(place, one)

    def _view(self, part: RowPart, clock: Clock, rules: Rules) -> PartView:
        ids = self.ids[part.first : part.last]
        if part.num_reads > part.num_rows:
            ids = torch.cat([ids, self.ids[part.others]])
        matrices: Matrices = part.matrices  # type: ignore[assignment]  # a block that reads no neighbours asks for none
        rows = part_rows(part.num_rows, ids, matrices)
        return PartView(read_ids=ids, rows=rows, clock=clock, num_nodes=self.nodes, rules=rules)


def return_large_blocks() -> None:
    """Let the C library return every block of 1 MiB or more to the system when it is freed.

    By default it soon keeps those below 32 MiB, in pieces that do not fit the next part's tensors.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)


def _dense(rows: object) -> Tensor:
    assert isinstance(rows, Tensor)
    return rows


@dataclass(eq=False, kw_only=True)
class StreamedView(RankView):
    """A rank's rows for evaluation; a model runs over them part by part."""

    streamed: Streamed

    def run(self, model: nn.Module) -> Tensor:
        assert isinstance(model, Chain)
        streamed, last = self.streamed, len(model.blocks) - 1
        streamed.forward(model, self.clock, self.rules)
        out_nC = torch.empty(len(self.ids), streamed.links.widths[-1], dtype=streamed.x.dtype)

        def one(part: RowPart) -> None:
            _, out = streamed.called(model.blocks[last], last, part, self.clock, self.rules)
            out_nC[part.first : part.last] = _dense(out[0])

        streamed.each(last, one)
        return out_nC

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        known = "" if self.streamed.ahead is None else "aggregate"
        plans = plan_layers(self.rules, model, known=known, x=self.x, nodes=self.num_nodes, computed={})  # type: ignore[arg-type]
        return tuple(replace(plan, parts=self.streamed.plan.parts, lives="stores") for plan in plans)


class StreamedStep:
    """One training step over parts."""

    one_pass = False

    def __init__(self, rows: StreamedView) -> None:
        self.rows, self.streamed = rows, rows.streamed

    @cached_property
    def _picked(self) -> Tensor:
        return self.rows.splits["train"]

    def step(self, model: nn.Module, shard: Shard, loss: Loss) -> Tensor:
        assert isinstance(model, Chain)
        streamed, clock, rules = self.streamed, self.rows.clock, self.rows.rules
        streamed.forward(model, clock, rules)
        links, begun, losses = streamed.links.links, set[int](), list[Tensor]()
        for place in reversed(range(len(links))):
            link = links[place]
            for value in {*link.reads} - begun - {0}:
                streamed.grads_of(value).begin()
                begun.add(value)
            used: set[int] = set()

            def one(part: RowPart, place: int = place, link: Link = link, used: set[int] = used) -> None:
                last = place == len(links) - 1
                grads = {} if last else self._grads(link, part)
                state, out = streamed.called(model.blocks[place], place, part, clock, rules)
                if last:
                    losses.append(self._loss(part, _dense(out[0]), loss))
                else:
                    outs = [_dense(out[slot]) for slot in grads]
                    torch.autograd.backward(outs, list(grads.values()))
                del out, grads
                for value, rows in zip(link.reads, state, strict=True):
                    if value and rows.grad is not None:
                        streamed.grads_of(value).add(part, rows.grad)
                        used.add(value)

            streamed.each(place, one)
            for value in used:
                streamed.grads_of(value).added(bare=not link.spreads)
        return sum(losses[1:], losses[0])

    def _grads(self, link: Link, part: RowPart) -> dict[int, Tensor]:
        """The gradients of a block's output for a part, by place in the output."""
        slots = self.streamed.slots.grads
        found = {slot: self.streamed.grads_of(value).total(part) for slot, value in link.new if value in slots}
        return {slot: grad for slot, grad in found.items() if grad is not None}

    def _loss(self, part: RowPart, logits: Tensor, loss: Loss) -> Tensor:
        low, high = torch.searchsorted(self._picked, torch.tensor([part.first, part.last])).tolist()
        picked = self._picked[low:high]
        read = logits if len(logits) == len(picked) else logits[picked - part.first]
        value = loss(read, self.rows.y[picked], self.rows.counts["train"])
        value.backward()
        return value.detach()

    def choices(self) -> dict[str, object]:
        return {}

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        return self.rows.plans(model)

    def held(self) -> Held:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        assert not state, "layers in parts keep nothing between steps"
