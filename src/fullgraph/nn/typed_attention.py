"""Attention by relation, for typed graphs.

Legend: t rows that a layer computes, m rows that it reads, c pairs of a source and a relation, p pairs of a target and
a relation, I in, O out features, T node types, R relations, H heads of D columns.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fullgraph.graph_types import GraphTypes
from fullgraph.nn.typed_conv import TypedConv, TypeLinear, matrices
from fullgraph.nn.view import IDENTITY, Features, GraphView, RowMap, TypedView
from fullgraph.ops import attend, attend_pairs, spmm


class RGATConv(TypedConv):
    """Z_i = W_t x_i + b_t + sum_r sum_j softmax_j(LeakyReLU(a_r . W_r x_i + a'_r . W_r x_j)) W_r x_j,  j -> i in r.

    The softmax is over the edges of one relation into a node (WIRGAT, arXiv:1904.05811), per head. Heads are
    concatenated, or averaged if `concat` is false. Edge weights are not used.
    """

    def __init__(self, in_width: int, out_width: int, types: GraphTypes, *, heads: int, concat: bool) -> None:
        super().__init__(in_width, out_width)
        relations, self.heads, self.concat = len(types.relations), heads, concat
        self.head_width = out_width // heads if concat else out_width
        self.weight = nn.Parameter(matrices(relations, in_width, heads * self.head_width))
        self.att_src = nn.Parameter(matrices(relations, self.head_width, heads))
        self.att_dst = nn.Parameter(matrices(relations, self.head_width, heads))
        self.lin = TypeLinear(in_width, out_width, types)

    def forward(self, x: Features, view: GraphView, layer: int, row_map: RowMap = IDENTITY) -> Tensor:
        typed, message = cast(TypedView, view), view.send(x, layer, row_map)
        own_tI = cast(Tensor, message.own)
        out_tO = self.lin(own_tI, typed)  # overlaps the exchange
        arcs, sources_mI = typed.relation_arcs(layer), message.sources()
        weight_RHDI = self.weight.unflatten(1, (self.heads, self.head_width))
        # a . (W x) = (a W) . x: a few more columns, instead of a product with every mapped row
        of_source_RHI, of_target_RHI = (
            (att_RHD[:, :, None] @ weight_RHDI).squeeze(2) for att_RHD in (self.att_src, self.att_dst)
        )
        both = arcs.mapped(sources_mI, torch.cat([self.weight, of_source_RHI], 1))
        rows_cHD = both[:, : -self.heads].unflatten(1, (self.heads, self.head_width))
        target_tR = (own_tI @ of_target_RHI.flatten(0, 1).t()).view(-1, self.heads)
        target_pH = target_tR.index_select(0, arcs.target_p * len(self.weight) + arcs.kind_p)
        y_pHD = attend(arcs.pairs, target_pH, both[:, -self.heads :].contiguous(), rows_cHD.contiguous())
        return spmm(arcs.sums, y_pHD.flatten(1) if self.concat else y_pHD.mean(1), out_tO)


class HGTConv(TypedConv):
    """Heterogeneous graph transformer (arXiv:2003.01332), for a node i of type t and its edges j -> i of relation r:

    alpha = softmax over all edges into i of  mu_r <Q_t x_i, W_r K_s x_j> / sqrt(D),   s the type of j, per head
    Z_i = g_t (A_t gelu(sum alpha W'_r V_s x_j)) + (1 - g_t) x_i,   g_t = sigmoid(learned number)

    Q, K, V and A have biases. Edge weights are not used.
    """

    def __init__(self, width: int, types: GraphTypes, *, heads: int) -> None:
        super().__init__(width, width)
        kinds, relations, self.heads, self.head_width = len(types.nodes), len(types.relations), heads, width // heads
        self.key, self.query, self.value, self.out = (TypeLinear(width, width, types) for _ in range(4))
        shape = (relations, heads, self.head_width, self.head_width)
        self.of_key, self.of_value = (
            nn.Parameter(matrices(relations * heads, self.head_width, self.head_width).view(shape)) for _ in range(2)
        )
        self.prior = nn.Parameter(torch.ones(relations, heads))
        self.gate = nn.Parameter(torch.ones(kinds))
        number = {kind.name: i for i, kind in enumerate(types.nodes)}
        self.source_R = [number[relation.source] for relation in types.relations]

    def forward(self, x: Features, view: GraphView, layer: int, row_map: RowMap = IDENTITY) -> Tensor:
        typed, message = cast(TypedView, view), view.send(x, layer, row_map)
        own_tI = cast(Tensor, message.own)
        heads = (self.heads, self.head_width)
        query_tHD = self.query(own_tI, typed).unflatten(1, heads)  # overlaps the exchange
        arcs, sources_mI = typed.relation_arcs(layer), message.sources()
        scale_RH = self.prior / math.sqrt(self.head_width)
        key, key_bias = self._of_relations(self.of_key * scale_RH[:, :, None, None], self.key)
        value, value_bias = self._of_relations(self.of_value, self.value)
        both = arcs.mapped(sources_mI, torch.cat([key, value], 1), torch.cat([key_bias, value_bias], 1))
        key_cHD, value_cHD = (rows.unflatten(1, heads).contiguous() for rows in both.chunk(2, 1))
        y_tHD = attend_pairs(arcs.arcs, query_tHD, key_cHD, value_cHD)
        out_tO = self.out(F.gelu(y_tHD.flatten(1)), typed)
        groups = typed.node_types(len(own_tI))
        is_type_tT = own_tI.new_zeros(len(own_tI), len(self.gate))
        for kind, span in groups.spans():
            is_type_tT[groups.rows[span], kind] = 1
        out: Tensor = torch.lerp(own_tI, out_tO, is_type_tT @ self.gate.sigmoid()[:, None])
        return out

    def _of_relations(self, of_RHDD: Tensor, lin: TypeLinear) -> tuple[Tensor, Tensor]:
        """W_r M_s and W_r b_s of every relation r, s its source type: one matrix [R, O, I] and bias [R, O]."""
        both = torch.cat([lin.weight, lin.bias[:, :, None]], 2)
        of_source = torch.stack([both[kind] for kind in self.source_R]) if self.source_R else both[:0]
        mapped = (of_RHDD @ of_source.unflatten(1, (self.heads, self.head_width))).flatten(1, 2)
        return mapped[:, :, :-1], mapped[:, :, -1]
