"""Run PyG layers that we also have on our own kernels, with the user's weights.

Each function of this folder is a layer's forward pass if its arcs are the graph's own; else it returns None, and PyG's
layer runs unchanged. A layer with a narrower output maps its rows before they are sent, as our own layers do.

Legend: n owned rows, h halo rows, m = n + h, I in, O out features, H heads, E arcs.
"""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

from torch import Tensor, nn

from fullgraph.own_model.fast import attention, gated, pna, relations, sums
from fullgraph.own_model.forward import running
from fullgraph.own_model.live import on_live_rows

Fast = Callable[..., Tensor | None]
PYG_PARTS = ("torch_geometric.nn.dense.linear.Linear", "torch_geometric.nn.aggr.")
PYG_STEPS = ("propagate", "message", "aggregate", "update", "message_and_aggregate", "edge_update")
GIVEN = ("nn", "act", "pre_nns", "post_nns")  # parts of a layer that may be of any class
PYG_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def use_kernels(part: Any) -> None:
    """Let a PyG layer use our kernels where it can; a class derived from one is left unchanged, as it may mean
    otherwise.
    """
    kind = type(part)
    fast = FAST.get(f"{kind.__module__}.{kind.__name__}")
    if fast is None:
        return

    hooks = [name for name in vars(part) if name.endswith(PYG_HOOKS) and name[1:].startswith(PYG_STEPS)]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        pass_now = running.get()
        out = None
        if pass_now is not None and not _is_changed(self, hooks):
            out = on_live_rows(pass_now, partial(fast, pass_now, self), args, kwargs)
        return kind.forward(self, *args, **kwargs) if out is None else out

    part.forward = MethodType(forward, part)


def _is_changed(conv: Any, hooks: list[str]) -> bool:
    """Whether a part of a layer differs from PyG's: it has hooks, other functions or another class."""
    own = vars(conv)
    if any(own[name] for name in hooks):
        return True
    if any(step in own and not getattr(own[step], "ours", False) for step in PYG_STEPS):
        return True
    for name, part in conv.named_children():
        plain = name in GIVEN or f"{type(part).__module__}.{type(part).__name__}".startswith(PYG_PARTS)
        if not plain or (name != "nn" and any(map(_has_hooks, part.modules()))):
            return True
    return False


def _has_hooks(part: nn.Module) -> bool:
    hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    return bool(part._backward_hooks or part._backward_pre_hooks) or not all(
        getattr(hook, "looks_on", False) for hook in hooks
    )


CONVS = "torch_geometric.nn.conv."
FAST: dict[str, Fast] = {
    f"{CONVS}agnn_conv.AGNNConv": attention.agnn,
    f"{CONVS}gat_conv.GATConv": attention.gat,
    f"{CONVS}gatv2_conv.GATv2Conv": attention.gatv2,
    f"{CONVS}gcn2_conv.GCN2Conv": sums.gcn2,
    f"{CONVS}gcn_conv.GCNConv": sums.gcn,
    f"{CONVS}gin_conv.GINConv": sums.gin,
    f"{CONVS}gin_conv.GINEConv": gated.gine,
    f"{CONVS}graph_conv.GraphConv": sums.graph,
    f"{CONVS}pna_conv.PNAConv": pna.pna,
    f"{CONVS}res_gated_graph_conv.ResGatedGraphConv": gated.res_gated,
    f"{CONVS}rgcn_conv.FastRGCNConv": relations.rgcn,
    f"{CONVS}rgcn_conv.RGCNConv": relations.rgcn,
    f"{CONVS}sage_conv.SAGEConv": sums.sage,
    f"{CONVS}transformer_conv.TransformerConv": attention.transformer,
}
