"""What a PyG script reads of its `data`, on a shard: the training rows, their arcs, labels and masks.

Legend: n owned rows, h halo rows, e arcs into owned rows, D features, K features of an arc.
"""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.placement.holding.adjacency import fine
from fullgraph.placement.holding.local import LocalGraph, moved


class PygFields:
    """x, y, edge_index and the rest, for the rows of one rank; halo rows are numbered behind the owned ones."""

    train_graph: LocalGraph | None
    full_graph: LocalGraph | None

    @cached_property
    def full_rows(self) -> LocalGraph:
        """All owned rows on their device, features dense."""
        return _ready(self.full_graph, self._device)

    @cached_property
    def train_rows(self) -> LocalGraph:
        """The rows that training sees; fewer where it is inductive."""
        return self.full_rows if self.train_graph is self.full_graph else _ready(self.train_graph, self._device)

    @property
    def _device(self) -> torch.device:
        raise NotImplementedError

    @property
    def x(self) -> Tensor:
        """Features [n, D]."""
        assert isinstance(self.train_rows.x, Tensor)
        return self.train_rows.x

    @property
    def y(self) -> Tensor:
        return self.train_rows.y

    @property
    def node_id(self) -> Tensor:
        """The number [n] of each node in the whole graph."""
        return self.train_rows.ids

    @cached_property
    def edge_index(self) -> Tensor:
        """Arcs [2, e] into owned rows; pass it to the distributed model as it is."""
        arcs = self.train_rows.arcs
        return torch.stack([arcs.indices.long(), arcs.targets()])

    @property
    def edge_weight(self) -> Tensor | None:
        return self.train_rows.arcs.weight

    @property
    def edge_attr(self) -> Tensor | None:
        """Features of arcs [e, K]."""
        return self.train_rows.arcs.attr

    @property
    def train_mask(self) -> Tensor:
        return self.train_rows.masks["train"]

    @property
    def val_mask(self) -> Tensor:
        return self.train_rows.masks["val"]

    @property
    def test_mask(self) -> Tensor:
        return self.train_rows.masks["test"]

    @property
    def num_features(self) -> int:
        return int(self.x.shape[1])


def _ready(local: LocalGraph | None, device: torch.device) -> LocalGraph:
    if local is None:
        raise InputError("this placement has no arcs of its own rows; open the shard with the partitioned placement")
    local = moved(local.with_dense_rows(), device, arcs=True)
    assert isinstance(local.x, Tensor)
    arcs, kind = local.arcs, fine(local.x.dtype)
    weight = None if arcs.weight is None else arcs.weight.to(kind)
    return replace(local, arcs=replace(arcs, weight=weight, attr=None if arcs.attr is None else arcs.attr.to(kind)))
