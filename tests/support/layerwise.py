"""GNNPipe's mixed pass layer by layer, all chunks together: the result of any number of stages, at the speed of one
device.

A chunk's rows wait for earlier chunks only in time, not in value: the order of the step determines which rows a node
reads fresh. So one product with the fresh arcs and one with the others give the layer. It serves studies of accuracy; a
pipeline computes it in pieces on many ranks, and the tests check that both are equal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fullgraph.exchange import Clock, Held, Wires
from fullgraph.nn.layer_plan import LayerPlan, LayerShape
from fullgraph.nn.view import IDENTITY, AtOnce, Features, Message, RowMap
from fullgraph.ops import Adjacency, Structure, spmm
from fullgraph.partition import Part
from fullgraph.placement import History, Loss, Shard
from fullgraph.placement.partitioned import Partitioned
from fullgraph.placement.pipeline.placement import ExactEnd, first_exact
from fullgraph.placement.pipeline.step import shuffled
from fullgraph.placement.view import RankView
from fullgraph.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Layerwise(Partitioned):
    """One rank that trains like a pipeline with these chunks."""

    chunk_of: Callable[[Tensor], Tensor]  # ids -> chunks
    shuffle: bool = True
    history: History = History()
    exact_from: float = 1.0

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        assert transport.size == 1, "one rank does the work of all"
        assert aggregation != "attention", "attention is no product with a matrix"
        shard = Partitioned.place(self, part, transport, wire, aggregation)
        rows = shard.train
        view = MixedView(
            ids=rows.ids,
            chunk_N=self.chunk_of(rows.ids.cpu()).to(rows.ids.device),
            matrix=rows.view.whole.matrices.inner,  # type: ignore[attr-defined]
            clock=shard.clock,
            placement=self,
        )
        first, mixed = first_exact(self.exact_from, self.epochs), LayerwiseStep(rows, view)
        end = mixed if first is None else ExactEnd(early=mixed, exact=shard.executor, first=first)
        return replace(shard, executor=end)


@dataclass(eq=False, kw_only=True)
class MixedView:
    """All nodes; `send` mixes current rows with those of the last snapshot."""

    ids: Tensor
    chunk_N: Tensor
    matrix: Adjacency
    clock: Clock
    placement: Layerwise
    history: dict[int, Tensor] = field(default_factory=dict)  # by layer: the snapshot, and
    last: dict[int, Tensor] = field(default_factory=dict)  # the gradients of the last step's product

    def __post_init__(self) -> None:
        s = self.matrix.structure
        self.weight = self.matrix.weight if self.matrix.weight is not None else 1.0
        self.source, self.target = self.chunk_N[s.indices.long()], self.chunk_N[s.rows]
        self.perm = s.perm.long()

    @property
    def step(self) -> int:
        return self.clock.step

    @property
    def num_nodes(self) -> int:
        return len(self.ids)

    @property
    def arcs(self) -> Structure:
        raise AssertionError("no attention here")

    def open(self, like: torch.dtype) -> None:
        """Determine the fresh arcs of this step, and the factors of gradients through them."""
        chunks = int(self.chunk_N.max()) + 1
        order = torch.arange(chunks)
        if self.placement.shuffle:
            order = torch.tensor(shuffled(chunks, self.placement.seed, self.step))
        slot = torch.empty_like(order).scatter_(0, order, torch.arange(chunks)).to(self.ids.device)
        source, target = slot[self.source], slot[self.target]
        fresh = source <= target
        back = fresh.to(like) + (source < target).to(like) * (self.placement.history.weight - 1.0)
        self.fresh = self.matrix.with_weight(self.weight * fresh.to(like))
        self.stale = self.matrix.with_weight(self.weight * (~fresh).to(like))
        self.back = self.matrix.T.with_weight((self.weight * back)[self.perm])
        self.back_late = self.matrix.T.with_weight((self.weight * (~fresh).to(like))[self.perm])

    @property
    def again(self) -> bool:
        return False

    def twice(self) -> Any:
        raise AssertionError("nothing is computed again here")

    def enter(self, *, training: bool, rows: frozenset[int] = frozenset()) -> None:
        pass

    def plan(self, x: Features, layer: int, shape: LayerShape) -> LayerPlan:
        return LayerPlan(layer=layer, sends="mapped" if isinstance(x, Adjacency) else "input", width=shape.in_width)

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> "Message[Any]":
        assert isinstance(x, Tensor)
        return _Mixed(self, x, layer, row_map)

    def aggregate(self, x: Tensor, layer: int) -> Tensor:
        return _Mixed(self, x, layer, IDENTITY).aggregate()

    def reduce(self, x: Tensor) -> Tensor:
        raise AssertionError("a chunk's sum is not the graph's")


class _Mixed(AtOnce):
    def __init__(self, view: MixedView, x: Tensor, layer: int, row_map: RowMap) -> None:
        self.view, self.layer = view, layer
        self.own, self.old = row_map.dense(x, view.ids), torch.zeros_like(x)
        history = view.placement.history
        with torch.no_grad():
            if layer in view.history:
                today = IDENTITY if history.dropped else row_map.after_activation()
                self.old = today.dense(view.history[layer], view.ids)
            if history.snaps(view.step):
                bare = x.relu() if row_map.relu else x
                view.history[layer] = (self.own if history.dropped else bare).detach().clone()

    def aggregate(self) -> Tensor:
        z: Tensor = _Mix.apply(self.own, self.old.detach(), self.view, self.layer)  # type: ignore[no-untyped-call]
        return z


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own: Tensor, old: Tensor, view: MixedView, layer: int):  # type: ignore[no-untyped-def]
        ctx.view, ctx.layer = view, layer
        return spmm(view.stale, old, spmm(view.fresh, own))

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        view, layer = ctx.view, ctx.layer
        out = spmm(view.back, grad)
        if view.placement.history.gradients == "last":
            if layer in view.last:
                out = spmm(view.back_late, view.last[layer], out)
            view.last[layer] = grad.clone()
        return out, None, None, None


class LayerwiseStep:
    """One forward and one backward pass over all rows."""

    one_pass = True

    def __init__(self, rows: RankView, view: MixedView) -> None:
        self.rows, self.view = rows, view

    def step(self, model: nn.Module, shard: Shard, loss: Loss) -> Tensor:
        rows, picked = self.rows, self.rows.splits["train"]
        self.view.open(next(model.parameters()).dtype)
        value = loss(model(rows.x, self.view)[picked], rows.y[picked], rows.counts["train"])
        value.backward()
        return value.detach()

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        return ()

    def choices(self) -> dict[str, object]:
        return {}

    def held(self) -> Held:
        kept: Held = {f"history.{layer}": rows for layer, rows in self.view.history.items()}
        return kept | {f"last.{layer}": rows for layer, rows in self.view.last.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        kinds = {"history": self.view.history, "last": self.view.last}
        for name, rows in state.items():
            kind, layer = name.split(".")
            kinds[kind][int(layer)] = rows
