"""PyG's layers that we have ourselves, on our own kernels with the user's weights.

Each function is the layer's forward pass where its arcs are the graph's own, else None: the layer then runs as PyG
wrote it. A layer whose output is narrower maps its rows before they are sent, as our own do.

Legend: n owned rows, h halo rows, I in, O out features, H heads.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fullgraph.nn.layer_plan import LayerShape
from fullgraph.ops import attend
from fullgraph.own_model.forward import Forward, running
from fullgraph.own_model.rows.spaces import Ends, rows_of

Fast = Callable[..., Tensor | None]
PYG_PARTS = ("torch_geometric.nn.dense.linear.Linear", "torch_geometric.nn.aggr.")
PYG_STEPS = ("propagate", "message", "aggregate", "update", "message_and_aggregate", "edge_update")
PYG_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def use_kernels(part: Any) -> None:
    """Let a layer of PyG's own run on our kernels where it can; a class derived from one may mean something else."""
    kind = type(part)
    fast = FAST.get(f"{kind.__module__}.{kind.__name__}")
    if fast is None:
        return

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        pass_now = running.get()
        out = None if pass_now is None or _is_changed(self) else fast(pass_now, self, *args, **kwargs)
        return kind.forward(self, *args, **kwargs) if out is None else out

    part.forward = MethodType(forward, part)


def _is_changed(conv: Any) -> bool:
    """Whether a part of a layer does more than PyG wrote: it has hooks, other functions or another class."""
    if any(hooks for name, hooks in vars(conv).items() if name.endswith(PYG_HOOKS) and name[1:].startswith(PYG_STEPS)):
        return True
    if any(not getattr(vars(conv)[step], "ours", False) for step in PYG_STEPS if step in vars(conv)):
        return True
    for name, part in conv.named_children():
        plain = name == "nn" or f"{type(part).__module__}.{type(part).__name__}".startswith(PYG_PARTS)
        if not plain or (name != "nn" and _has_hooks(part)):
            return True
    return False


def _has_hooks(part: nn.Module) -> bool:
    hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    return bool(part._backward_hooks or part._backward_pre_hooks) or not all(
        getattr(hook, "looks_on", False) for hook in hooks
    )


def _weighted(forward: Forward, x: Any, edge_index: Any, edge_weight: Any) -> bool | None:
    """Whether the graph's own weights are meant; None where the call is not over the graph's own arcs."""
    arcs = rows_of(edge_index)
    whole = arcs is not None and arcs.space.whole and arcs.points is Ends.BOTH
    if not whole or not isinstance(x, Tensor) or x.dim() != 2 or x.dtype != forward.view.features.dtype:
        return None
    if edge_weight is None:
        return False
    return True if edge_weight is forward.view.graph.arcs.weight else None


def _mapped(forward: Forward, x_nI: Tensor, weight_OI: Tensor, aggregation: str, weighted: bool) -> Tensor:
    """A X W^T, the dense map first where that sends less."""
    out_width, in_width = weight_OI.shape
    if forward.plan(x_nI, LayerShape(in_width, out_width)).maps_first:
        return forward.aggregate(F.linear(x_nI, weight_OI), aggregation, weighted=weighted)
    return F.linear(forward.aggregate(x_nI, aggregation, weighted=weighted), weight_OI)


def _is_plain_gcn(conv: Any) -> bool:
    return bool(conv.normalize and conv.add_self_loops and not getattr(conv, "improved", False) and conv.aggr == "add")


def _gcn(forward: Forward, conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> Tensor | None:
    weighted = _weighted(forward, x, edge_index, edge_weight)
    if weighted is None or not _is_plain_gcn(conv):
        return None
    out = _mapped(forward, x, conv.lin.weight, "gcn", weighted)
    return out if conv.bias is None else out + conv.bias


def _gcn2(forward: Forward, conv: Any, x: Any, x_0: Tensor, edge_index: Any, edge_weight: Any = None) -> Tensor | None:
    weighted = _weighted(forward, x, edge_index, edge_weight)
    if weighted is None or not _is_plain_gcn(conv) or conv.weight2 is not None:
        return None
    support = torch.lerp(forward.aggregate(x, "gcn", weighted=weighted), x_0, conv.alpha)
    return torch.addmm(support, support, conv.weight1, beta=1.0 - conv.beta, alpha=conv.beta)


def _sage(forward: Forward, conv: Any, x: Any, edge_index: Any, size: Any = None) -> Tensor | None:
    if _weighted(forward, x, edge_index, None) is None or conv.project or conv.aggr != "mean" or size is not None:
        return None
    out = _mapped(forward, x, conv.lin_l.weight, "mean", weighted=False)
    if conv.lin_l.bias is not None:
        out = out + conv.lin_l.bias
    if conv.root_weight:
        out = out + conv.lin_r(x)
    return F.normalize(out, p=2.0, dim=-1) if conv.normalize else out


def _gin(forward: Forward, conv: Any, x: Any, edge_index: Any, size: Any = None) -> Tensor | None:
    if _weighted(forward, x, edge_index, None) is None or conv.aggr != "add" or size is not None:
        return None
    out: Tensor = conv.nn(forward.aggregate(x, "sum") + (1 + conv.eps) * x)
    return out


def _gat(
    forward: Forward, conv: Any, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None,
    return_attention_weights: Any = None,
) -> Tensor | None:  # fmt: skip
    plain = conv.add_self_loops and conv.negative_slope == 0.2 and conv.lin is not None and conv.aggr == "add"
    asked = edge_attr is None and size is None and return_attention_weights is None
    dropped = conv.training and conv.dropout > 0
    residual = getattr(conv, "res", None) is not None
    if not (plain and asked) or dropped or residual or _weighted(forward, x, edge_index, None) is None:
        return None
    with forward.trust():
        return forward.as_nodes(_attended(forward, conv, x))


def _attended(forward: Forward, conv: Any, x: Tensor) -> Tensor:
    heads = (conv.heads, conv.out_channels)
    if forward.plan(x, LayerShape(x.shape[1], conv.lin.weight.shape[0], attends=True)).sends == "mapped":
        y_nHO = conv.lin(x).unflatten(1, heads)
        source_mHO = forward.sources(y_nHO)
    else:  # the layer's input crosses, once if it is the graph's
        source_mHO = conv.lin(forward.sources(x)).unflatten(1, heads)
        y_nHO = source_mHO[: len(x)]
    arcs = forward.view.matrices("attention", weighted=False).arcs
    target_nH, source_mH = (y_nHO * conv.att_dst).sum(-1), (source_mHO * conv.att_src).sum(-1)
    out_nHO = attend(arcs, target_nH, source_mH, source_mHO)
    out = out_nHO.flatten(1) if conv.concat else out_nHO.mean(1)
    return out if conv.bias is None else out + conv.bias


FAST: dict[str, Fast] = {
    "torch_geometric.nn.conv.gcn_conv.GCNConv": _gcn,
    "torch_geometric.nn.conv.gcn2_conv.GCN2Conv": _gcn2,
    "torch_geometric.nn.conv.sage_conv.SAGEConv": _sage,
    "torch_geometric.nn.conv.gin_conv.GINConv": _gin,
    "torch_geometric.nn.conv.gat_conv.GATConv": _gat,
}
