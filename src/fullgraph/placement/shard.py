"""What a placement hands to the trainer: one rank's share of the work."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from fullgraph.exchange import Clock, Held, settled
from fullgraph.nn.view import Features, WholeView
from fullgraph.placement.holding.local import LocalGraph
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.pyg_fields import PygFields
from fullgraph.transport import Transport


class ResumableView(WholeView, Protocol):
    """A view whose channels hold rows between steps."""

    @property
    def rules(self) -> Rules: ...
    def held(self) -> Held: ...
    def load_state(self, state: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Owned rows of one graph: how to see their neighbours, their features, labels and splits."""

    view: ResumableView
    x: Features
    y: Tensor
    splits: dict[str, Tensor]  # split name -> owned rows in it
    counts: dict[str, int]  # split name -> nodes in it over all ranks
    owners: Transport  # ranks that together hold every row once; sums over rows are taken over them
    live: dict[int, int] = field(default_factory=dict)  # layer -> owned rows that it computes, where not all

    @property
    def ids(self) -> Tensor:
        return self.view.ids


class Loss(Protocol):
    """The part of the mean loss that these rows add."""

    def __call__(self, logits: Tensor, target: Tensor, count: int) -> Tensor: ...


class Executor(Protocol):
    """Runs one step's forward and backward pass; returns this rank's part of the loss."""

    @property
    def one_pass(self) -> bool:
        """Whether one call does the whole backward pass, so that a gradient is complete when it comes."""
        ...

    def step(self, model: nn.Module, shard: "Shard", loss: Loss) -> Tensor: ...
    def held(self) -> Held: ...
    def load_state(self, state: dict[str, Tensor]) -> None: ...
    def choices(self) -> dict[str, object]:
        """Options of the strategy that were left open, and that measurements in this run have settled."""
        ...


@dataclass(frozen=True, eq=False)
class Shard(PygFields):
    """A rank's share: the rows it trains on, the rows it is evaluated on (exactly, on the whole graph)."""

    train: Rows
    full: Rows
    executor: Executor
    transport: Transport
    clock: Clock  # of training
    eval_clock: Clock
    num_classes: int
    in_width: int
    real: bool = False  # labels are real numbers
    train_graph: LocalGraph | None = None  # arcs and features of the training rows, for a user's own model
    full_graph: LocalGraph | None = None  # likewise, of all rows

    @property
    def _device(self) -> torch.device:
        return self.full.y.device

    def held(self) -> Held:
        """What is held between steps, under names: versions on their way, averages, snapshots."""
        return self.executor.held()

    def state(self) -> dict[str, Tensor]:
        """The same as tensors, waiting for what is on its way."""
        return settled(self.held())

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.executor.load_state(state)


class WholeStep:
    """One forward and one backward pass over all owned rows."""

    one_pass = True

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def step(self, model: nn.Module, shard: Shard, loss: Loss) -> Tensor:
        rows = self.rows
        picked = rows.splits["train"]
        logits = model(rows.x, rows.view)
        read = logits if len(logits) == len(picked) else logits[picked]  # picked rows ascend: as many are all, in order
        value = loss(read, rows.y[picked], rows.counts["train"])
        value.backward()
        return value.detach()

    def choices(self) -> dict[str, object]:
        return {}

    def held(self) -> Held:
        return self.rows.view.held()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.rows.view.load_state(state)
