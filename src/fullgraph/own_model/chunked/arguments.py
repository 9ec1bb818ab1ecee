"""Arguments of a layer's functions for one chunk: rows of sources and targets per edge, and slices of other tensors."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullgraph.own_model.chunked.arcs import ByTarget, Chunk
from fullgraph.own_model.forward import Forward, NotInChunks
from fullgraph.own_model.rows.count import Count
from fullgraph.own_model.rows.follow import flat
from fullgraph.own_model.rows.spaces import Ends, Even, Rows, current, mark, rows_of

WHOLE = {"adj_t", "size", "size_j"}  # arguments that a chunk cannot have
TARGETS, EDGES = {"index", "edge_index_i"}, {"edge_index"}
COUNTS = {"size_i", "dim_size"}


@dataclass(frozen=True)
class Slot:
    """An argument that is made of rows: its tensor, its kind of rows, and their dimension."""

    tensor: int
    role: str  # "source", "target" (both one row per edge), "edge", "node"
    dim: int
    at: int | None = None  # the marked dimension, if the argument has one row per edge or node

    def of(self, chunk: Chunk, x: Tensor, edge_index_2k: Tensor) -> Tensor:
        """The chunk's part of the tensor."""
        if self.role == "source":
            return x.index_select(self.dim, edge_index_2k[0])
        if self.role == "target":
            return chunk.of_rows(x, self.dim).index_select(self.dim, edge_index_2k[1])
        return chunk.of_edges(x, self.dim) if self.role == "edge" else chunk.of_rows(x, self.dim)

    def add(self, chunk: Chunk, total: Tensor, part: Tensor, edge_index: Tensor) -> None:
        """Add the chunk's part of a gradient; the first dimension of `total` and `part` is rows, [rows, D]."""
        if self.role == "source":
            chunk.add_by_source(total, part, edge_index)
        elif self.role == "target":
            chunk.add_by_target(total, part)
        elif self.role == "node":
            chunk.of_rows(total).add_(part)
        else:
            chunk.set_edges(total, chunk.of_edges(total) + part)

    def marked(self, chunk: Chunk, x: Tensor) -> Tensor:
        return mark(x, Rows(chunk.sets.nodes if self.role == "node" else chunk.sets.edges, self.dim))


@dataclass
class Arguments:
    """All arguments of a layer's functions, and the tensors that they are made of."""

    forward: Forward
    by_target: ByTarget
    edge_index: Tensor  # [2, e]
    tensors: list[Tensor] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    special: set[str] = field(default_factory=set)
    lifted: set[str] = field(default_factory=set)

    def collect(self, conv: Any, params: dict[str, Any], given: dict[str, Any]) -> None:
        """Sort out the arguments in `params`; rows of neighbours are exchanged here, in the order in which PyG reads
        them.
        """
        for name, param in params.items():
            if name in WHOLE:
                raise NotInChunks(f"its messages take {name}")
            if name in TARGETS | EDGES | COUNTS | {"edge_index_j", "ptr"}:
                self.special.add(name)
            elif name[-2:] in ("_i", "_j"):
                self.lifted.add(name)
                self._lifted(conv, name, given)
            elif name in given:
                self._other(name, given[name])
            elif isinstance(param.default, type):  # inspect's mark of an argument without a default
                raise NotInChunks(f"its messages take {name}, which it does not give")
            else:
                self.plain[name] = param.default

    def _lifted(self, conv: Any, name: str, given: dict[str, Any]) -> None:
        data = given.get(name[:-2])
        side = int(name.endswith("_i"))
        if isinstance(data, tuple | list):
            data = data[side]
        if not isinstance(data, Tensor):
            self.plain[name] = None if name[:-2] in given else data
            return
        dim, rows, forward = conv.node_dim % data.dim(), rows_of(data), self.forward
        nodes = self.by_target.nodes
        if rows is not None and (rows.points is not None or not rows.is_single or rows.dim != dim):
            raise NotInChunks(f"{name} is made of other rows than those of nodes")
        if side:
            if data.shape[dim] != nodes.size or (rows is not None and not rows.space.is_like(nodes)):
                raise NotInChunks(f"{name} is made of other rows than those of nodes")
            if rows is None and not isinstance(current(data), Even):
                raise NotInChunks(f"{name} is no tensor of rows")
        table = data if side else forward.sources(data, dim, forward.at(self.by_target.edges))
        self.slots[name] = Slot(self._number(table), "target" if side else "source", dim)

    def _other(self, name: str, value: Any) -> None:
        rows = rows_of(value)
        if rows is None:
            if any(rows_of(x) is not None for x in flat(value if isinstance(value, tuple | list) else ())):
                raise NotInChunks(f"{name} holds several tensors of rows")
            self.plain[name] = value
            return
        if rows.points is not None or not rows.is_single:
            raise NotInChunks(f"{name} holds positions or several entries a row")
        if rows.space.is_like(self.by_target.edges):
            role = "edge"
        elif rows.space.is_like(self.by_target.nodes):
            role = "node"
        else:
            raise NotInChunks(f"{name} is made of other rows than those of edges or nodes")
        self.slots[name] = Slot(self._number(value), role, rows.dim)

    def _number(self, x: Tensor) -> int:
        if x.requires_grad and x.is_complex():
            raise NotInChunks("it has complex rows")
        for number, known in enumerate(self.tensors):
            if known is x:
                return number
        self.tensors.append(x)
        return len(self.tensors) - 1

    def leaves(self, chunk: Chunk, tensors: Iterable[Tensor], with_grad: Iterable[bool]) -> dict[str, Tensor]:
        """The chunk's part of every tensor, detached from its history."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            ends, given, wanted = chunk.ends(self.edge_index), list(tensors), list(with_grad)
            found = {}
            for name, slot in self.slots.items():
                part = slot.of(chunk, given[slot.tensor], ends).detach().requires_grad_(wanted[slot.tensor])
                found[name] = slot.marked(chunk, part)
            return found

    def of(self, chunk: Chunk, leaves: dict[str, Tensor]) -> dict[str, Any]:
        """All arguments by name."""
        nodes, edges = chunk.sets.nodes, chunk.sets.edges
        with torch._C.DisableTorchFunction():
            ends = chunk.ends(self.edge_index) if self.special else None
        found: dict[str, Any] = {name: self._counted(value, chunk) for name, value in self.plain.items()} | leaves
        for name in self.special:
            if name in COUNTS:
                found[name] = self.forward.count(nodes)
            elif name == "ptr":
                found[name] = None
            elif name == "edge_index":
                found[name] = ends
            else:
                assert ends is not None
                target = name in TARGETS
                with torch._C.DisableTorchFunction():
                    index = ends[int(target)]
                found[name] = mark(index, Rows(edges, 0, points=nodes if target else Ends.SOURCES))
        return found

    def _counted(self, value: Any, chunk: Chunk) -> Any:
        """Replace a number of all nodes or edges, used as a tensor's size, by the chunk's number."""
        if type(value) is not Count:
            return value
        for space, own in ((self.by_target.nodes, chunk.sets.nodes), (self.by_target.edges, chunk.sets.edges)):
            if value.space is space:
                return Count.of(own, self.forward.total, partial(self.forward.gave, own), value.scale, value.shift)
        raise NotInChunks("its messages take a number of other rows")
