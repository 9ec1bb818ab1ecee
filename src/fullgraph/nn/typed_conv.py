"""Convolutions with weights by relation, for typed graphs.

Legend: t rows that a layer computes, s rows of (target row, relation), I in, O out features, T node types, R relations,
B bases.
"""

from abc import abstractmethod
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from fullgraph.graph_types import GraphTypes
from fullgraph.nn.conv import Conv
from fullgraph.nn.linear import Linear
from fullgraph.nn.view import IDENTITY, Features, GraphView, RowMap, TypedView
from fullgraph.ops import add_grouped


class TypeLinear(nn.Module):
    """y_i = W_t x_i + b_t,  t the type of node i."""

    def __init__(self, in_width: int, out_width: int, types: GraphTypes) -> None:
        super().__init__()
        self.weight = nn.Parameter(matrices(len(types.nodes), in_width, out_width))
        self.bias = nn.Parameter(torch.zeros(len(types.nodes), out_width))

    def forward(self, x_tI: Tensor, view: TypedView) -> Tensor:
        groups = view.node_types(len(x_tI))
        nothing = x_tI.new_zeros(len(x_tI), self.weight.shape[1])
        return add_grouped(nothing, x_tI, self.weight, self.bias, groups, gathers=True, scatters=True)


class TypedConv(Conv):
    """A convolution with weights by relation. Rows cross before they are mapped, because relations map differently."""

    @property
    def mapped_width(self) -> int:
        return self.in_width


class MeanConv(TypedConv):
    """Z_i = own(x_i) + sum over relations r of W_r mean_{j -> i in r} x_j."""

    sums: ClassVar[bool] = True

    @abstractmethod
    def relation_weights(self) -> Tensor:
        """W_r of all relations [R, O, I]."""

    @abstractmethod
    def own(self, x_tI: Tensor, view: TypedView) -> Tensor:
        """The part of the row itself, [t, O], as a new tensor."""

    def forward(self, x: Features, view: GraphView, layer: int, row_map: RowMap = IDENTITY) -> Tensor:
        typed = cast(TypedView, view)
        message = view.send(x, layer, row_map)
        own = self.own(cast(Tensor, message.own), typed)  # overlaps the exchange
        mean_sI = cast(Tensor, message.aggregate())
        weights, groups = self.relation_weights(), typed.relations(layer)
        return add_grouped(own, mean_sI, weights, None, groups, gathers=False, scatters=True)


class RGCNConv(MeanConv):
    """Z_i = W_0 x_i + b + sum_r W_r mean_{j -> i in r} x_j,  W_r = sum_b a_rb V_b with B bases  (arXiv:1703.06103),

    or W_r = diag(V_r1, ..., V_rB) with B blocks.
    """

    def __init__(self, in_width: int, out_width: int, types: GraphTypes, *, bases: int = 0, blocks: int = 1) -> None:
        """bases: 0 gives every relation a matrix of its own. blocks: a divisor of both widths."""
        super().__init__(in_width, out_width)
        relations, self.blocks = len(types.relations), blocks
        self.lin = Linear(in_width, out_width)
        drawn = matrices((bases or relations) * blocks, in_width // blocks, out_width // blocks)
        self.weight = nn.Parameter(drawn if blocks == 1 else drawn.unflatten(0, (relations, blocks)))
        self.shares = nn.Parameter(torch.empty(relations, bases)) if bases else None
        if self.shares is not None and self.shares.numel():
            nn.init.xavier_uniform_(self.shares)

    def relation_weights(self) -> Tensor:
        if self.blocks > 1:
            diagonal = torch.eye(self.blocks, dtype=self.weight.dtype, device=self.weight.device)
            whole = self.weight[:, :, :, None] * diagonal[:, None, :, None]  # [R, B, O/B, B, I/B]
            return whole.flatten(3, 4).flatten(1, 2)
        return self.weight if self.shares is None else torch.tensordot(self.shares, self.weight, dims=1)

    def own(self, x_tI: Tensor, view: TypedView) -> Tensor:
        out: Tensor = self.lin(x_tI)
        return out


class HeteroSAGEConv(MeanConv):
    """Z_i = W_t x_i + b_t + sum_r W_r mean_{j -> i in r} x_j,  t the type of i: GraphSAGE for every relation."""

    def __init__(self, in_width: int, out_width: int, types: GraphTypes) -> None:
        super().__init__(in_width, out_width)
        self.weight = nn.Parameter(matrices(len(types.relations), in_width, out_width))
        self.lin = TypeLinear(in_width, out_width, types)

    def relation_weights(self) -> Tensor:
        return self.weight

    def own(self, x_tI: Tensor, view: TypedView) -> Tensor:
        out: Tensor = self.lin(x_tI, view)
        return out


def matrices(count: int, in_width: int, out_width: int) -> Tensor:
    """Random matrices [count, O, I], each drawn as the weight of a layer."""
    weight = torch.empty(count, out_width, in_width)
    for one in weight:
        nn.init.xavier_uniform_(one)
    return weight
