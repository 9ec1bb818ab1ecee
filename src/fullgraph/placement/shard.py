"""One rank's share of the work, which a placement gives to the trainer."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Protocol

import torch
from torch import Tensor, nn

from fullgraph.cached import cached_property
from fullgraph.exchange import Clock, Held, settled
from fullgraph.nn.layer_plan import LayerPlan
from fullgraph.partition import GraphFacts
from fullgraph.placement.by_type import ByType, by_type, union_x
from fullgraph.placement.rank_graph import RankGraph, Relation
from fullgraph.placement.view import RankView
from fullgraph.report.memory import MemoryPlan
from fullgraph.transport import Transport


class Loss(Protocol):
    """The contribution of these rows to the mean loss."""

    def __call__(self, logits: Tensor, target: Tensor, count: int) -> Tensor: ...


class Executor(Protocol):
    """Runs one step's forward and backward pass; returns this rank's part of the loss."""

    @property
    def one_pass(self) -> bool:
        """Whether one call does the whole backward pass, so that every gradient is complete when its hook runs."""
        ...

    def step(self, model: nn.Module, shard: "Shard", loss: Loss) -> Tensor: ...
    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        """The plans of the model's layers."""
        ...

    def held(self) -> Held: ...
    def load_state(self, state: dict[str, Tensor]) -> None: ...
    def choices(self) -> dict[str, object]:
        """Options of the strategy that were left open, and that measurements of this run decided."""
        ...


@dataclass(frozen=True, eq=False)
class Shard:
    """A rank's share: the rows it trains on, and the rows it is evaluated on (exactly, on the whole graph).

    x, y, edge_index and the others are the fields that a PyG script reads from `data`, for the training rows. Halo rows
    are numbered after the owned rows. Legend: n owned rows, e edges into them, D features, K features of an edge.
    """

    train: RankView
    full: RankView
    executor: Executor
    transport: Transport
    facts: GraphFacts
    memory: MemoryPlan | None = None  # where its rows live; None: in memory, without a plan

    @property
    def clock(self) -> Clock:
        """The clock of training."""
        return self.train.clock

    @property
    def eval_clock(self) -> Clock:
        return self.full.clock

    @property
    def num_classes(self) -> int:
        return self.facts.classes

    @property
    def in_width(self) -> int:
        return self.facts.features

    @property
    def real(self) -> bool:
        """Whether labels are real numbers."""
        return self.facts.real

    def held(self) -> Held:
        """The state between steps, by name: pending versions, averages, snapshots."""
        return self.executor.held()

    def state(self) -> dict[str, Tensor]:
        """The same state as tensors; waits for pending versions."""
        return settled(self.held())

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.executor.load_state(state)

    @cached_property
    def full_graph(self) -> RankGraph:
        """The graph of all owned rows, for a model written for PyG."""
        return self.full.graph.for_pyg(self._device, typed=bool(self.facts.types))

    @cached_property
    def train_graph(self) -> RankGraph:
        """The training graph, which is smaller if training is inductive."""
        same = self.train.graph.arcs is self.full.graph.arcs
        return self.full_graph if same else self.train.graph.for_pyg(self._device, typed=bool(self.facts.types))

    @property
    def _device(self) -> torch.device:
        return self.full.y.device

    @cached_property
    def x(self) -> Tensor:
        """Features [n, D]."""
        x, types = self.train_graph.rows.x, self.facts.types
        if types:
            return union_x(self.train_graph, types)
        assert isinstance(x, Tensor)
        return x

    @property
    def y(self) -> Tensor:
        return self.train_graph.rows.y

    @property
    def node_id(self) -> Tensor:
        """The global id [n] of each node."""
        return self.train_graph.rows.ids

    @property
    def edge_index(self) -> Tensor:
        """Edges [2, e] into owned rows; pass it unchanged to the distributed model."""
        return self.train_graph.edge_index

    @property
    def edge_weight(self) -> Tensor | None:
        return self.train_graph.arcs.weight

    @property
    def edge_attr(self) -> Tensor | None:
        """Features of edges [e, K]."""
        return self.train_graph.arcs.attr

    @property
    def train_mask(self) -> Tensor:
        return self.train_graph.rows.masks["train"]

    @property
    def val_mask(self) -> Tensor:
        return self.train_graph.rows.masks["val"]

    @property
    def test_mask(self) -> Tensor:
        return self.train_graph.rows.masks["test"]

    @cached_property
    def typed(self) -> ByType:
        """A typed graph's rows by type and edges by relation."""
        if not self.facts.types:
            raise AttributeError(f"{self.facts.name} has one node type and one relation: use x and edge_index")
        return by_type(self.train_graph, self.facts.types)

    @property
    def x_dict(self) -> dict[str, Tensor]:
        """Features by type, of the types that have any."""
        return self.typed.x

    @property
    def edge_index_dict(self) -> dict[Relation, Tensor]:
        """Edges by relation; pass them unchanged to the distributed model."""
        return self.typed.edge_index

    @property
    def edge_weight_dict(self) -> dict[Relation, Tensor]:
        """Weights of edges by relation, of the relations that have any."""
        return self.typed.edge_weight

    @property
    def edge_attr_dict(self) -> dict[Relation, Tensor]:
        """Features of edges by relation, of the relations that have any."""
        return self.typed.edge_attr

    def __getitem__(self, key: str | Relation) -> SimpleNamespace:
        """The values of one node type or relation, as in PyG's `HeteroData`."""
        return self.typed.store(key)

    def metadata(self) -> tuple[list[str], list[Relation]]:
        """Node types and relations, as in PyG's `HeteroData`."""
        return self.facts.types.metadata()

    @property
    def num_features(self) -> int:
        return int(self.x.shape[1])

    def __getattr__(self, name: str) -> Tensor:
        """A field of the graph: this rank's rows."""
        names = self.facts.field_names if "facts" in vars(self) else ()
        if name not in names:
            raise AttributeError(f"this shard has no {name}; the graph's fields are: {', '.join(names) or 'none'}")
        fields = self.train_graph.rows.fields
        return fields[name] if name in fields else self.train_graph.arcs.fields[name]


class WholeStep:
    """One forward and one backward pass over all owned rows."""

    one_pass = True

    def __init__(self, rows: RankView) -> None:
        self.rows = rows

    def step(self, model: nn.Module, shard: Shard, loss: Loss) -> Tensor:
        rows = self.rows
        picked = rows.splits["train"]
        logits = model(rows.x, rows)
        read = logits if len(logits) == len(picked) else logits[picked]  # picked rows ascend: equally many are all rows
        value = loss(read, rows.y[picked], rows.counts["train"])
        value.backward()
        return value.detach()

    def choices(self) -> dict[str, object]:
        return {}

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        return self.rows.plans(model)

    def held(self) -> Held:
        return self.rows.held()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.rows.load_state(state)
