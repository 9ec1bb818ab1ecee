"""Graph convolutions over a view: they know no rank, no group, no buffer.

A convolution takes rows before their activation, and the row map (activation, dropout), which is applied after the
exchange. The layer's plan says whether its dense map comes before the sum over neighbours, and before the exchange.

Legend: n owned rows, h halo rows, I in, O out features, H heads.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fullgraph.nn.layer_plan import LayerPlan, LayerShape
from fullgraph.nn.linear import Linear, add_linear, linear
from fullgraph.nn.norm import LayerNorm
from fullgraph.nn.view import IDENTITY, Features, GraphView, Mapped, Message, Operand, RowMap
from fullgraph.ops import Adjacency


class Conv(nn.Module):
    """A layer `(x, view, layer, row_map) -> z`.

    sums: it uses a message only by `own`, `aggregate()`, `through(...)` or `own_and_neighbours`, so that sums of rows
    may cross in place of rows. A class with its own `forward` says so itself; else rows cross.
    """

    sums: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls) and "sums" not in vars(cls):
            cls.sums = False

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.in_width, self.out_width = in_width, out_width

    @property
    def mapped_width(self) -> int:
        """The number of columns after the dense map, which the plan may put first."""
        return self.out_width

    @property
    def shape(self) -> LayerShape:
        return LayerShape(self.in_width, self.mapped_width)

    def plan(self, x: Features, view: GraphView, layer: int) -> LayerPlan:
        return view.plan(x, layer, self.shape)

    def send_mapped(
        self, dense: Callable[[Any], Tensor], x: Features, view: GraphView, layer: int, row_map: RowMap
    ) -> Message[Tensor]:
        """A message of dense(map(x)), mapped by owners before the exchange, or by readers if the input crosses."""
        if self.plan(x, view, layer).sends == "mapped":
            return view.send(dense(row_map(x, view.ids)), layer)
        return view.send(x, layer, row_map).mapped(dense)

    def own_and_neighbours(
        self, own: Callable[[Any], Tensor], neighbours: Callable[[Any], Tensor],
        x: Features, view: GraphView, layer: int, row_map: RowMap,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """own(X) of the rows that the layer computes, and A neighbours(X) of the same rows; `neighbours` is linear."""
        plan = self.plan(x, view, layer)
        if plan.sends == "mapped":
            rows = row_map(x, view.ids)
            targets, rows = view.targets(rows, layer) if isinstance(rows, Tensor) else (rows, rows)
            message: Message[Any] = view.send(neighbours(rows), layer)
        else:
            message = view.send(x, layer, row_map)
            targets = message.own
            message = message.mapped(neighbours) if plan.maps_first else message
        out = own(targets)  # overlaps the exchange
        total = message.aggregate()
        total = total if plan.maps_first else neighbours(total)
        return out if len(out) == len(total) else out[: len(total)], total


class GCNConv(Conv):
    """Z = D^-1/2 (A + I) D^-1/2 X W + b  (Kipf and Welling, arXiv:1609.02907)."""

    sums: ClassVar[bool] = True

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__(in_width, out_width)
        self.lin = Linear(in_width, out_width, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_width))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Features, view: GraphView, layer: int, row_map: RowMap = IDENTITY) -> Tensor:
        if self.plan(x, view, layer).maps_first:
            return self.send_mapped(self.lin, x, view, layer, row_map).aggregate() + self.bias
        return view.send(x, layer, row_map).through(lambda _, total: linear(total, self.lin.weight, self.bias))


class GCN2Conv(Conv):
    """Z = S ((1 - beta) I + beta W),  S = (1 - alpha) D^-1/2 (A + I) D^-1/2 X + alpha X_0  (arXiv:2007.02133)."""

    sums: ClassVar[bool] = True

    def __init__(self, width: int, *, alpha: float, beta: float) -> None:
        super().__init__(width, width)
        self.alpha, self.beta = alpha, beta
        self.lin = Linear(width, width, bias=False)

    def forward(self, x: Tensor, first: Tensor, view: GraphView, layer: int, row_map: RowMap = IDENTITY) -> Tensor:
        total = view.send(x, layer, row_map).aggregate()
        support = torch.lerp(total, first[: len(total)], self.alpha)
        return torch.addmm(support, support, self.lin.weight.t(), beta=1 - self.beta, alpha=self.beta)


class SAGEConv(Conv):
    """Z = X W_self + b + mean_{j -> i} X_j W_neigh  (Hamilton et al., arXiv:1706.02216)."""

    sums: ClassVar[bool] = True

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__(in_width, out_width)
        self.lin_self = Linear(in_width, out_width)
        self.lin_neigh = Linear(in_width, out_width, bias=False)

    def forward(self, x: Features, view: GraphView, layer: int, row_map: RowMap = IDENTITY) -> Tensor:
        if self.plan(x, view, layer).maps_first:
            out, mean = self.own_and_neighbours(self.lin_self, self.lin_neigh, x, view, layer, row_map)
            return out.add_(mean) if not out._is_view() else out + mean
        return view.send(x, layer, row_map).through(
            lambda own, mean: add_linear(own, mean, self.lin_neigh.weight), self.lin_self
        )


class GINConv(Conv):
    """Z = MLP((1 + eps) X + sum_{j -> i} X_j), eps learned  (Xu et al., arXiv:1810.00826).

    The MLP has `inner` columns, and a layer norm between its two maps: sums over many neighbours are large, and without
    the norm a layer may die at the first step. The sum commutes with the first linear map, which may come first.
    """

    sums: ClassVar[bool] = True

    def __init__(self, in_width: int, out_width: int, *, inner: int) -> None:
        super().__init__(in_width, out_width)
        self.lin1 = Linear(in_width, inner)
        self.norm = LayerNorm(inner)
        self.lin2 = Linear(inner, out_width)
        self.eps = nn.Parameter(torch.zeros(()))

    @property
    def mapped_width(self) -> int:
        return self.lin1.out_features

    def forward(self, x: Features, view: GraphView, layer: int, row_map: RowMap = IDENTITY) -> Tensor:
        if self.plan(x, view, layer).maps_first:
            mapped = self.send_mapped(self.lin1.product, x, view, layer, row_map)
            return mapped.through(lambda own, total: self._rest(own + total + self.lin1.bias), self._weighted)
        return view.send(x, layer, row_map).through(self._mlp, lambda own: own)

    def _weighted(self, own: Tensor) -> Tensor:
        return (1 + self.eps) * own

    def _mlp(self, own: Operand, total: Operand) -> Tensor:
        if isinstance(own, Adjacency | Mapped) or isinstance(total, Adjacency | Mapped):
            return self._rest((1 + self.eps) * self.lin1.product(own) + self.lin1(total))
        return self._rest(self.lin1(self._weighted(own) + total))

    def _rest(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.lin2(F.relu(self.norm(hidden)))
        return out


class GATConv(Conv):
    """Z_i = sum_j softmax_j(LeakyReLU(a_dst . W x_i + a_src . W x_j)) W x_j + b, per head  (arXiv:1710.10903).

    Heads are concatenated, or averaged if `concat` is false. Edge weights are not used.
    """

    def __init__(self, in_width: int, out_width: int, *, heads: int = 4, concat: bool = True) -> None:
        super().__init__(in_width, out_width)
        self.heads, self.concat = heads, concat
        self.head_width = out_width // heads if concat else out_width
        self.lin = Linear(in_width, heads * self.head_width, bias=False)
        self.att_src = nn.Parameter(torch.empty(heads, self.head_width))
        self.att_dst = nn.Parameter(torch.empty(heads, self.head_width))
        self.bias = nn.Parameter(torch.zeros(out_width))
        for weight in (self.lin.weight, self.att_src, self.att_dst):
            nn.init.xavier_uniform_(weight)

    @property
    def shape(self) -> LayerShape:
        return LayerShape(self.in_width, self.lin.out_features, attends=True)

    def forward(self, x: Features, view: GraphView, layer: int, row_map: RowMap = IDENTITY) -> Tensor:
        message = self.send_mapped(self.lin, x, view, layer, row_map)
        own_nHO = message.own.unflatten(1, (self.heads, self.head_width))
        target_nH = (own_nHO * self.att_dst).sum(-1)
        out_nHO = message.attend(target_nH, self.att_src)
        return (out_nHO.flatten(1) if self.concat else out_nHO.mean(1)) + self.bias
