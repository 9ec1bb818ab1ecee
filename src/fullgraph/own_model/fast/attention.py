"""Layers that weight their neighbours' rows by a softmax over the arcs into a node."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.ops import Structure, attend, attend_pairs
from fullgraph.own_model.fast.arcs import (
    Ends,
    adds,
    columns,
    has_room,
    is_of_arcs,
    kept,
    looped,
    mapped_sources,
    own_ends,
)
from fullgraph.own_model.forward import Forward


def gat(
    forward: Forward, conv: Any, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None,
    return_attention_weights: Any = None,
) -> Tensor | None:  # fmt: skip
    ends = own_ends(forward, x, edge_index)
    plain = conv.negative_slope == 0.2 and adds(conv)
    asked = edge_attr is None and size is None and return_attention_weights is None
    dropped = conv.training and conv.dropout > 0
    residual = getattr(conv, "res", None) is not None
    if not (plain and asked) or dropped or residual or ends is None or (conv.add_self_loops and not ends.same):
        return None
    with forward.unseen():
        return forward.as_nodes(_gat_rows(forward, conv, ends))


def _gat_rows(forward: Forward, conv: Any, ends: Ends) -> Tensor:
    heads, source = (conv.heads, conv.out_channels), ends.source
    of_source, of_target = (conv.lin_src, conv.lin_dst) if conv.lin is None else (conv.lin, conv.lin)
    source_mHO = mapped_sources(forward, source, of_source, of_source.weight.shape[0]).unflatten(1, heads)
    shared = ends.same and of_source is of_target
    target_nHO = source_mHO[: len(source)] if shared else of_target(ends.target).unflatten(1, heads)
    arcs = looped(forward).pattern if conv.add_self_loops else forward.view.pattern
    target_nH, source_mH = (target_nHO * conv.att_dst).sum(-1), (source_mHO * conv.att_src).sum(-1)
    out_nHO = attend(arcs, target_nH, source_mH, source_mHO)
    out = out_nHO.flatten(1) if conv.concat else out_nHO.mean(1)
    return out if conv.bias is None else out + conv.bias


def gatv2(
    forward: Forward, conv: Any, x: Any, edge_index: Any, edge_attr: Any = None, return_attention_weights: Any = None
) -> Tensor | None:
    """alpha = softmax(<att, LeakyReLU(x_r[i] + x_l[j] + e)>),  y[i] = sum alpha x_l[j]"""
    ends = _ends_to_attend(forward, conv, x, edge_index, edge_attr)
    if return_attention_weights is not None or ends is None:
        return None
    heads = (conv.heads, conv.out_channels)
    with forward.unseen():
        source_mO = mapped_sources(forward, ends.source, conv.lin_l, conv.lin_l.weight.shape[0])
        shared = ends.same and conv.lin_r is conv.lin_l
        target_nO = source_mO[: len(ends.source)] if shared else conv.lin_r(ends.target)
        pattern, arcs = _given_of_arcs(forward, conv, edge_attr, source_mO)
        rows = (target_nO.unflatten(1, heads), source_mO.unflatten(1, heads))
        out_nHO = attend_pairs(pattern, *rows, att_HD=conv.att[0], slope=conv.negative_slope, **arcs)
        out = out_nHO.flatten(1) if conv.concat else out_nHO.mean(1)
        out = out if conv.res is None else out + conv.res(ends.target)
        return forward.as_nodes(out if conv.bias is None else out + conv.bias)


def transformer(
    forward: Forward, conv: Any, x: Any, edge_index: Any, edge_attr: Any = None, return_attention_weights: Any = None
) -> Tensor | None:
    """alpha = softmax(<q[i], k[j] + e> / sqrt(D)),  y[i] = sum alpha (v[j] + e)"""
    ends = _ends_to_attend(forward, conv, x, edge_index, edge_attr)
    if return_attention_weights is not None or ends is None:
        return None
    heads, width = (conv.heads, conv.out_channels), conv.lin_key.weight.shape[0]

    def keys_and_values(rows: Tensor) -> Tensor:
        return F.linear(rows, *_beside(conv.lin_key, conv.lin_value))

    with forward.unseen():
        source_m2O = mapped_sources(forward, ends.source, keys_and_values, 2 * width)
        key, value = (part.unflatten(1, heads) for part in source_m2O.split(width, 1))
        query_nHO = conv.lin_query(ends.target).unflatten(1, heads)
        pattern, arcs = _given_of_arcs(forward, conv, edge_attr, source_m2O)
        out_nHO = attend_pairs(pattern, query_nHO, key, value, scale=1 / math.sqrt(conv.out_channels), **arcs)
        out = out_nHO.flatten(1) if conv.concat else out_nHO.mean(1)
        if conv.root_weight:
            root = conv.lin_skip(ends.target)
            beta = None if conv.lin_beta is None else conv.lin_beta(torch.cat([out, root, out - root], -1)).sigmoid()
            out = out + root if beta is None else beta * root + (1 - beta) * out
        return forward.as_nodes(out)


def agnn(forward: Forward, conv: Any, x: Any, edge_index: Any) -> Tensor | None:
    """alpha = softmax(beta cos(x[i], x[j])),  y[i] = sum alpha x[j]"""
    ends = own_ends(forward, x, edge_index)
    if not adds(conv) or ends is None or not ends.same:
        return None
    with forward.unseen():
        source_mD = forward.sources(x)
        norm_mD = F.normalize(source_mD, p=2.0, dim=-1)
        pattern = looped(forward).pattern if conv.add_self_loops else forward.view.pattern
        rows = (conv.beta * norm_mD[: len(x)], norm_mD, source_mD)
        return forward.as_nodes(attend_pairs(pattern, *(t[:, None] for t in rows))[:, 0])


def _ends_to_attend(forward: Forward, conv: Any, x: Any, edge_index: Any, edge_attr: Any) -> Ends | None:
    """The rows that a layer is given, if our kernels support its options."""
    ends, loops = own_ends(forward, x, edge_index), getattr(conv, "add_self_loops", False)
    if ends is None or not adds(conv) or (loops and not ends.same):
        return None
    if conv.lin_edge is None or edge_attr is None:
        return ends if edge_attr is None and conv.lin_edge is None else None
    fits = (not loops or conv.fill_value == "mean") and is_of_arcs(forward, edge_attr, edge_index)
    return ends if fits and has_room(forward, conv.heads * conv.out_channels) else None


def _given_of_arcs(forward: Forward, conv: Any, edge_attr: Any, like: Tensor) -> tuple[Structure, dict[str, Any]]:
    """The pattern, with mapped arc features and dropout factors."""
    loops = looped(forward) if getattr(conv, "add_self_loops", False) else None
    pattern = forward.view.pattern if loops is None else loops.pattern
    given: dict[str, Any] = {}
    if edge_attr is not None:
        attr_EK = columns(edge_attr)
        attr_EK = attr_EK if loops is None else loops.features(attr_EK)
        given["edge_EHD"] = conv.lin_edge(attr_EK).unflatten(1, (conv.heads, conv.out_channels))
    if conv.training and conv.dropout > 0:
        space = forward.view.edges if loops is None else loops.space
        given["keep_EH"] = kept(forward, pattern, space, conv.heads, conv.dropout, like)
    return pattern, given


def _beside(first: Any, second: Any) -> tuple[Tensor, Tensor | None]:
    """The weight and bias of two linear maps, concatenated."""
    bias = None if first.bias is None else torch.cat([first.bias, second.bias])
    return torch.cat([first.weight, second.weight]), bias
