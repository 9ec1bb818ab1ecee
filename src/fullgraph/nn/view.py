"""A model's view of a distributed graph, and the map of a row after the exchange.

Legend: n owned rows, h halo rows, D features.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, overload

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fullgraph.device import by_kind
from fullgraph.nn.layer_plan import LayerPlan, LayerShape
from fullgraph.ops import Adjacency, Groups, RelationArcs, act_dropout, dropout_arcs, host_rows

Features = Tensor | Adjacency  # dense rows, or sparse ones as a CSR matrix

# Limits by device, in bytes. KEPT: the map of smaller input rows is computed once and kept; a larger result costs more
# to write and read than to compute twice. BLOCK: part of larger rows mapped at a time: it fits the caches and is worth
# a launch.
KEPT_BYTES = {"cpu": 64 << 20, "gpu": 64 << 20, "meta": 1 << 30}
BLOCK_BYTES = {"cpu": 16 << 20, "gpu": 64 << 20, "meta": 1 << 60}


@dataclass(frozen=True, slots=True)
class RowMap:
    """An activation and dropout in one pass:  y = keep * act(x) / (1 - p).

    `keep` depends only on (key, global id, column), so an owner and every rank that holds the row as halo agree,
    and a run does not depend on the number of ranks.
    """

    relu: bool = False
    p: float = 0.0
    key: int = 0

    def __call__(self, x: Features, ids: Tensor) -> "Features | Mapped":
        """map(x); the rows of x are the first rows of `ids`."""
        if isinstance(x, Adjacency):
            return self._sparse(x, ids)
        large = x.nbytes >= by_kind(KEPT_BYTES, x.device)
        if host_rows.elsewhere(x, ids.device) or (self.p > 0 and large and not x.requires_grad):
            return Mapped(x, ids[: len(x)], self)
        return self.dense(x, ids)

    def dense(self, x: Tensor, ids: Tensor) -> Tensor:
        if not self.relu and self.p == 0.0:
            return x
        return act_dropout(x, ids[: len(x)], key=self.key, p=self.p, act="relu" if self.relu else "none")

    def after_activation(self) -> "RowMap":
        """The rest of the map, for rows that were activated before the exchange."""
        return RowMap(p=self.p, key=self.key)

    def _sparse(self, x: Adjacency, ids: Tensor) -> Adjacency:
        assert not self.relu, "sparse rows are input features"
        assert x.weight is not None
        if self.p == 0.0:
            return x
        return x.with_weight(dropout_arcs(x.structure, ids[: x.shape[0]], x.weight, key=self.key, p=self.p))


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """map(x) of input rows, which need no gradient: computed block by block at every use, never kept.

    x may be on the host; its blocks are then copied to the device of `ids`. nn.linear multiplies the blocks; any other
    torch function receives all rows at once.
    """

    x: Tensor
    ids: Tensor
    row_map: RowMap

    @property
    def shape(self) -> torch.Size:
        return self.x.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype

    def whole(self) -> Tensor:
        return self.row_map.dense(self.x.to(self.ids.device), self.ids)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield (slice, mapped rows) of the blocks in order."""
        device = self.ids.device
        size = max(1, by_kind(BLOCK_BYTES, device) // max(1, self.x.shape[1] * self.x.element_size()))
        for rows, x_bD in host_rows.blocks_on(self.x, device, size):
            yield rows, self.row_map.dense(x_bD, self.ids[rows])

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map(lambda a: a.whole() if isinstance(a, Mapped) else a, (args, kwargs or {}))
        return func(*args, **kwargs)


IDENTITY = RowMap()
Operand = Features | Mapped  # an operand of a dense map
R = TypeVar("R", bound=Operand, covariant=True)
Update = Callable[[Any, Any], Tensor]  # (result for the own rows, their aggregation) -> the layer's output


class Message(Protocol[R]):
    """Rows that are exchanged: they are posted when the message is made, so work on `own` overlaps the exchange."""

    @property
    def own(self) -> R:
        """The rows that the layer computes, after the map, [n, D]; sparse if x is, `Mapped` if x is the input."""
        ...

    def aggregate(self) -> R:
        """A @ map(x), [n, D]; sparse only if it is precomputed."""
        ...

    def through(self, update: Update, own: Callable[[Any], Any] | None = None) -> Tensor:
        """update(own(rows), A @ map(x)), where `rows` are this message's `own`.

        Both callbacks must work row by row: they may be called once per block. The work of `own` overlaps the exchange;
        without `own`, update receives None.
        """
        ...

    def mapped(self, dense: "Callable[[Any], Tensor]") -> "Message[Tensor]":
        """The same message with a dense map of every row after the exchange; not if the plan sends mapped rows."""
        ...

    def sources(self) -> Tensor:
        """Owned, then halo rows after the map, [n+h, D]."""
        ...

    def attend(self, target_nH: Tensor, weight_HO: Tensor) -> Tensor:
        """sum_j softmax_j(LeakyReLU(target_i + weight . x_j)) x_j  over j -> i and i itself, [n, H, O].

        x is map(x), in H heads of O columns.
        """
        ...


class AtOnce:
    """A message whose aggregation is not split into blocks. No plan calls a method that its message lacks."""

    def through(self: Message[Any], update: Update, own: Callable[[Any], Any] | None = None) -> Tensor:
        beside = None if own is None else own(self.own)
        return update(beside, self.aggregate())

    def mapped(self, dense: Callable[[Any], Tensor]) -> Message[Tensor]:
        raise AssertionError(f"{type(self).__name__}: its rows are mapped before they cross")

    def sources(self) -> Tensor:
        raise AssertionError(f"{type(self).__name__}: it brings no single rows")

    def attend(self, target_nH: Tensor, weight_HO: Tensor) -> Tensor:
        raise AssertionError(f"{type(self).__name__}: it brings no rows to attend to")


class GraphView(Protocol):
    """A graph spread over ranks, as one layer sees it."""

    @property
    def ids(self) -> Tensor:
        """Global ids of the owned rows."""
        ...

    @property
    def step(self) -> int: ...
    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        ...

    @property
    def again(self) -> bool:
        """Whether this is a second forward pass, for recomputation: nothing is sent, and no state changes."""
        ...

    def plan(self, x: Features, layer: int, shape: LayerShape) -> LayerPlan:
        """The plan of a layer of this shape for input x."""
        ...

    def targets(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """(the rows that a layer computes, which may be fewer; the rows that it reads)."""
        ...

    @overload
    def send(self, x: Tensor, layer: int, row_map: RowMap = IDENTITY) -> Message[Tensor]: ...
    @overload
    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> Message[Operand]: ...
    def aggregate(self, x: Tensor, layer: int) -> Tensor: ...
    def reduce(self, x: Tensor) -> Tensor:
        """The differentiable sum of x over ranks."""
        ...


class TypedView(GraphView, Protocol):
    """A typed graph spread over ranks: a message's aggregation has a row per target and relation."""

    def node_types(self, count: int) -> Groups:
        """The first `count` owned rows, grouped by node type."""
        ...

    def relations(self, layer: int) -> Groups:
        """The rows of a layer's aggregation, grouped by relation."""
        ...

    def relation_arcs(self, layer: int) -> RelationArcs:
        """The arcs of a layer that attends, from the rows of a message's sources()."""
        ...


class WholeView(GraphView, Protocol):
    """A view of all rows, for a whole model."""

    def enter(self, *, training: bool, rows: frozenset[int] = frozenset()) -> None:
        """Begin a forward pass of a model in that mode; refuse one that would be silently wrong.

        rows: the layers that read single rows, so that no sums of rows may cross for them.
        """
        ...

    def twice(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts for a first forward pass and for a second one, which receives the same rows without an exchange."""
        ...
