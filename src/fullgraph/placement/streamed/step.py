"""A training step and an evaluation with rows in stores: layers in order, and the parts of each layer in turn.

The backward pass walks layers and parts in reverse order of layers, computes each part again with its rows from a
store, and adds the gradients of the rows that it read to another store. Parts come in one order, so sums do too.

Legend: n rows, t of a part, m that it reads.
"""

from collections.abc import Callable
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
from fullgraph.placement.streamed.files import FiledRows, HeldRows, Rows, Shelf, Store
from fullgraph.placement.streamed.memory import MemoryPlan, Planner
from fullgraph.placement.streamed.parts import ArcFile, Parts, RowPart, cuts_of
from fullgraph.placement.streamed.view import PartView, part_rows
from fullgraph.placement.view import RankView
from fullgraph.resources import require_disk


@dataclass(frozen=True, eq=False, kw_only=True)
class Streamed:
    """A rank's rows in stores and its edges in parts."""

    ids: Tensor
    nodes: int
    x: Rows
    ahead: Store | None  # the precomputed input
    parts: Parts
    links: Links
    slots: Slots
    stores: list[Store]
    plan: MemoryPlan
    dtype: torch.dtype

    @classmethod
    def of(cls, part: Part, planner: Planner, plan: MemoryPlan, folder: Path) -> "Streamed":
        """Take the room that the plan names, make the parts, and precompute the input."""
        require_disk(folder, plan.disk, "a run whose rows are on disk")
        trial, links = planner.trial, planner.links
        n, held, slots = len(part.ids), plan.held, Slots.of(links)
        widths = [*([trial.in_width] if trial.known else []), *slots.widths]
        stores: list[Store] = [
            HeldRows.empty(n, width, trial.dtype)
            if place < held
            else FiledRows.scratch(folder, n, width, trial.dtype)
            for place, width in enumerate(widths)
        ]  # fmt: skip
        arcs = ArcFile.of(part)
        cuts = cuts_of(arcs.indptr, plan.parts)
        parts = Parts(arcs, cuts, trial.aggregation, trial.dtype, Shelf(folder))
        assert isinstance(part.x, Tensor)
        x: Rows = HeldRows(part.x) if part.folder is None else FiledRows.of_npy(part.folder / "x.npy")
        ahead = stores.pop(0) if trial.known else None
        made = cls(
            ids=part.ids, nodes=part.manifest.graph.nodes, x=x, ahead=ahead, parts=parts, links=links, slots=slots,
            stores=stores, plan=plan, dtype=trial.dtype,
        )  # fmt: skip
        made._aggregate()
        return made

    @torch.no_grad()
    def _aggregate(self) -> None:
        """Precompute the aggregation of the input, part by part."""

        def one(part: RowPart) -> None:
            view = self._view(part, Clock(), Rules())
            rows = part.gather(self.x, self.links.widths[0], self.dtype)
            self.ahead.write(part.first, view.aggregate(rows, 0))  # type: ignore[union-attr]

        if self.ahead is not None:
            self._in_turn(one, bare=False)

    def each(self, place: int, work: Callable[[RowPart], None]) -> None:
        """Do the work of a block for one part after the other; nothing of a part stays in memory."""
        self._in_turn(work, bare=not self.links.links[place].spreads)

    def _in_turn(self, work: Callable[[RowPart], None], *, bare: bool) -> None:
        for number in range(len(self.parts)):
            work(self.parts.open(number, bare=bare))
            POOL.clear()

    def called(self, block: Block, place: int, part: RowPart, clock: Clock, rules: Rules) -> tuple[list[Tensor], State]:
        """(the rows that a block reads for a part, its output)."""
        link, view = self.links.links[place], self._view(part, clock, rules)
        grad = torch.is_grad_enabled()
        state: list[Tensor] = []
        for value in link.reads:
            rows = part.gather(self.rows_of(value), self.links.widths[value], self.dtype)
            state.append(rows.requires_grad_(grad and value > 0))
        if place == 0 and self.ahead is not None:
            view.known = Known(state[0], part.gather(self.ahead, self.links.widths[0], self.dtype))
        return state, block(tuple(state), view)

    def rows_of(self, value: int) -> Rows:
        return self.stores[self.slots.rows[value]] if value else self.x

    def grads_of(self, value: int) -> Store:
        return self.stores[self.slots.grads[value]]

    @torch.no_grad()
    def forward(self, model: Chain, clock: Clock, rules: Rules) -> None:
        """Compute and store the rows of all blocks but the last."""
        for place, link in enumerate(self.links.links[:-1]):

            def one(part: RowPart, place: int = place, link: Link = link) -> None:
                _, out = self.called(model.blocks[place], place, part, clock, rules)
                for slot, value in link.new:
                    self.stores[self.slots.rows[value]].write(part.first, _dense(out[slot]))

            self.each(place, one)

    def _view(self, part: RowPart, clock: Clock, rules: Rules) -> PartView:
        ids = torch.cat([self.ids[part.first : part.last], self.ids[part.others]])
        matrices: Matrices = part.matrices  # type: ignore[assignment]  # a block that reads no neighbours asks for none
        rows = part_rows(part.num_rows, ids, matrices)
        return PartView(read_ids=ids, rows=rows, clock=clock, num_nodes=self.nodes, rules=rules)


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
        out_nC = torch.empty(len(self.ids), streamed.links.widths[-1], dtype=streamed.dtype)

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
        links, cleared, losses = streamed.links.links, set[int](), list[Tensor]()
        for place in reversed(range(len(links))):
            link = links[place]
            for value in {*link.reads} - cleared - {0}:
                streamed.grads_of(value).clear()
                cleared.add(value)

            def one(part: RowPart, place: int = place, link: Link = link) -> None:
                state, out = streamed.called(model.blocks[place], place, part, clock, rules)
                if place == len(links) - 1:
                    losses.append(self._loss(part, _dense(out[0]), loss))
                else:
                    self._backward(link, part, out)
                self._add(link, part, state)

            streamed.each(place, one)
        return sum(losses[1:], losses[0])

    def _loss(self, part: RowPart, logits: Tensor, loss: Loss) -> Tensor:
        low, high = torch.searchsorted(self._picked, torch.tensor([part.first, part.last])).tolist()
        picked = self._picked[low:high]
        read = logits if len(logits) == len(picked) else logits[picked - part.first]
        value = loss(read, self.rows.y[picked], self.rows.counts["train"])
        value.backward()
        return value.detach()

    def _backward(self, link: Link, part: RowPart, out: State) -> None:
        outs, grads = [], []
        for slot, value in link.new:
            if value in self.streamed.slots.grads:
                rows = _dense(out[slot])
                grad_tD = torch.empty_like(rows, memory_format=torch.contiguous_format)
                self.streamed.grads_of(value).read(part.first, grad_tD)
                outs.append(rows)
                grads.append(grad_tD)
        torch.autograd.backward(outs, grads)

    def _add(self, link: Link, part: RowPart, state: list[Tensor]) -> None:
        for value, rows in zip(link.reads, state, strict=True):
            grad_mD = rows.grad
            if value and grad_mD is not None:
                store = self.streamed.grads_of(value)
                store.add(part.first, grad_mD[: part.num_rows])
                store.add_at(part.others, grad_mD[part.num_rows :])

    def choices(self) -> dict[str, object]:
        return {}

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        return self.rows.plans(model)

    def held(self) -> Held:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        assert not state, "layers in parts keep nothing between steps"

