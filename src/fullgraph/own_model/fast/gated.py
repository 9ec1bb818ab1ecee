"""Layers that sum rows with a gate per edge: GINE and ResGatedGraph."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fullgraph.ops import gated_sum
from fullgraph.ops.gates import MOST_FEATURES
from fullgraph.own_model.fast.arcs import adds, columns, is_of_arcs, mapped_sources, own_ends
from fullgraph.own_model.forward import Forward

ACTS = {nn.Sigmoid: "sigmoid", nn.ReLU: "relu"}


def gine(
    forward: Forward, conv: Any, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None
) -> Tensor | None:
    """y[i] = nn((1 + eps) x[i] + sum ReLU(x[j] + W e))"""
    ends = own_ends(forward, x, edge_index)
    if ends is None or not adds(conv) or size is not None:
        return None
    if not is_of_arcs(forward, edge_attr, edge_index):
        return None
    attr_EK = columns(edge_attr)
    if attr_EK.shape[1] > MOST_FEATURES if conv.lin is not None else attr_EK.shape[1] != ends.source.shape[1]:
        return None
    with forward.unseen():
        source_mD, gate_KD = forward.sources(ends.source), None
        if conv.lin is not None:
            source_mD, gate_KD = source_mD + conv.lin.bias, conv.lin.weight.T
        out = gated_sum(forward.view.pattern, source_mD, act="relu", edge_EK=attr_EK, gate_KD=gate_KD)
        out = forward.as_nodes(out)
    y: Tensor = conv.nn(out + (1 + conv.eps) * ends.target)
    return y


def res_gated(forward: Forward, conv: Any, x: Any, edge_index: Any, edge_attr: Any = None) -> Tensor | None:
    """y[i] = W_s x[i] + sum act(W_k [x[i], e] + W_q [x[j], e]) W_v [x[j], e]"""
    act = ACTS.get(type(conv.act))
    ends = own_ends(forward, x, edge_index)
    if act is None or not adds(conv) or ends is None:
        return None
    if (edge_attr is None) != (conv.edge_dim is None) or (conv.edge_dim or 0) > MOST_FEATURES:
        return None
    if edge_attr is not None and not is_of_arcs(forward, edge_attr, edge_index):
        return None
    width, of_source, of_target = conv.out_channels, ends.source.shape[1], ends.target.shape[1]
    key, *pair = (conv.lin_key, conv.lin_query, conv.lin_value)
    weight, bias = (torch.cat([getattr(lin, name) for lin in pair]) for name in ("weight", "bias"))

    def queries_and_values(rows: Tensor) -> Tensor:
        return F.linear(rows, weight[:, :of_source], bias)

    with forward.unseen():
        query, value = mapped_sources(forward, ends.source, queries_and_values, 2 * width).split(width, 1)
        given: dict[str, Tensor] = {}
        if edge_attr is not None:
            gate_OK, extra_OK = weight[:, of_source:].split(width)
            gate_KO = (gate_OK + key.weight[:, of_target:]).T
            given = {"edge_EK": columns(edge_attr), "gate_KD": gate_KO, "extra_KD": extra_OK.T}
        row = F.linear(ends.target, key.weight[:, :of_target], key.bias)
        out = gated_sum(forward.view.pattern, query, act=act, row_RD=row, value_CD=value, **given)
        out = out + conv.lin_skip(ends.target) if conv.root_weight else out
        return forward.as_nodes(out if conv.bias is None else out + conv.bias)
