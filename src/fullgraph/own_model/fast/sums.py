"""Layers that sum or average their neighbours' rows, or take extremes."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.ops import spmm_heads
from fullgraph.own_model.fast.aggregations import SUMS, aggregated, can_aggregate
from fullgraph.own_model.fast.arcs import adds, is_of_arcs, mapped, own_ends, weighted
from fullgraph.own_model.forward import Forward


def _is_plain_gcn(conv: Any) -> bool:
    return bool(conv.normalize and conv.add_self_loops and not getattr(conv, "improved", False) and adds(conv))


def gcn(forward: Forward, conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> Tensor | None:
    own = weighted(forward, edge_weight)
    ends = own_ends(forward, x, edge_index)
    if own is None or ends is None or not ends.same or not _is_plain_gcn(conv):
        return None
    with forward.unseen():
        out = mapped(forward, x, conv.lin.weight, "gcn", own)
        return forward.as_nodes(out if conv.bias is None else out + conv.bias)


def gcn2(forward: Forward, conv: Any, x: Any, x_0: Tensor, edge_index: Any, edge_weight: Any = None) -> Tensor | None:
    own = weighted(forward, edge_weight)
    ends = own_ends(forward, x, edge_index)
    if own is None or ends is None or not ends.same or not _is_plain_gcn(conv) or conv.weight2 is not None:
        return None
    support = torch.lerp(forward.aggregate(x, "gcn", weighted=own), x_0, conv.alpha)
    return torch.addmm(support, support, conv.weight1, beta=1.0 - conv.beta, alpha=conv.beta)


def sage(forward: Forward, conv: Any, x: Any, edge_index: Any, size: Any = None) -> Tensor | None:
    ends = own_ends(forward, x, edge_index)
    if ends is None or size is not None or not can_aggregate(conv):
        return None
    with forward.unseen():
        source = conv.lin(ends.source).relu() if conv.project else ends.source
        if isinstance(conv.aggr, str) and conv.aggr in SUMS:
            out = mapped(forward, source, conv.lin_l.weight, SUMS[conv.aggr], False)
            out = out if conv.lin_l.bias is None else out + conv.lin_l.bias
        else:
            out = conv.lin_l(aggregated(forward, source, conv.aggr))
        out = out + conv.lin_r(ends.target) if conv.root_weight else out
        return forward.as_nodes(F.normalize(out, p=2.0, dim=-1) if conv.normalize else out)


def gin(forward: Forward, conv: Any, x: Any, edge_index: Any, size: Any = None) -> Tensor | None:
    ends = own_ends(forward, x, edge_index)
    if ends is None or not adds(conv) or size is not None:
        return None
    out: Tensor = conv.nn(forward.aggregate(ends.source, "sum") + (1 + conv.eps) * ends.target)
    return out


def graph(
    forward: Forward, conv: Any, x: Any, edge_index: Any, edge_weight: Any = None, size: Any = None
) -> Tensor | None:
    own, ends = weighted(forward, edge_weight), own_ends(forward, x, edge_index)
    if ends is None or size is not None or conv.aggr not in ("add", "sum", "mean"):
        return None
    source = ends.source
    if own is None:  # weights that the model computed
        if not is_of_arcs(forward, edge_weight, edge_index) or edge_weight.numel() != len(edge_weight):
            return None
        out = conv.lin_rel(_weighed(forward, source, edge_weight.reshape(-1, 1), conv.aggr))
    elif own and conv.aggr == "mean":  # PyG divides by the number of arcs, not by their weights
        out = conv.lin_rel(forward.as_nodes(_per_arc(forward, forward.aggregate(source, "sum", weighted=True))))
    else:
        out = mapped(forward, source, conv.lin_rel.weight, SUMS[conv.aggr], own)
        out = out if conv.lin_rel.bias is None else out + conv.lin_rel.bias
    y: Tensor = out + conv.lin_root(ends.target)
    return y


def _weighed(forward: Forward, x_nD: Tensor, weight_E1: Tensor, aggregation: str) -> Tensor:
    """sum_e weight[e] x[j_e], or this sum divided by the number of arcs."""
    with forward.unseen():
        out = spmm_heads(forward.view.pattern, weight_E1, forward.sources(x_nD)[:, None])[:, 0]
        return forward.as_nodes(_per_arc(forward, out) if aggregation == "mean" else out)


def _per_arc(forward: Forward, total_nD: Tensor) -> Tensor:
    with forward.trust():
        degree_n = forward.view.pattern.indptr.diff().clamp(min=1)
        return total_nD / degree_n[:, None].to(total_nD.dtype)
