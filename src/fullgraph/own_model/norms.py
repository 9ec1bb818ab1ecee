"""PyG's norms over all nodes of a graph, with sums over all ranks.

Legend: n owned rows, N nodes of the graph, D features.
"""

import math
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.own_model.forward import Forward, running
from fullgraph.own_model.rows.spaces import mark, rows_of

Norm = Callable[[Forward, Any, Tensor], Tensor]


def over_all_ranks(part: Any, label: str) -> None:
    """Let one of these norms run over the nodes of all ranks; all other parts stay unchanged."""
    kind = type(part)
    norm = NORMS.get(f"{kind.__module__}.{kind.__name__}")
    if norm is None or getattr(part, "mode", "graph") == "node":
        return

    def forward(self: Any, x: Tensor, batch: Any = None, batch_size: Any = None, **kwargs: Any) -> Any:
        now = running.get()
        if now is None:
            return kind.forward(self, x, batch, batch_size, **kwargs)
        rows = rows_of(x)
        view = now.view if rows is None else now.view.at(rows.space)
        if batch is not None or rows is None or rows.dim or not rows.space.is_like(view.nodes):
            raise InputError(f"the layer {label} is given other rows or a batch; give it the rows of all nodes, alone")
        with now.trust(), now.over(view):
            return mark(norm(now, self, x), rows)

    part.forward = MethodType(forward, part)


def _mean(forward: Forward, x_nD: Tensor) -> Tensor:
    """The mean row [D] over all N nodes."""
    return forward.reduce(x_nD.sum(0)) / forward.view.num_nodes


def _layer(forward: Forward, norm: Any, x_nD: Tensor) -> Tensor:
    """(x - mean) / (std + eps), over all numbers of all nodes."""
    centred = x_nD - _mean(forward, x_nD).mean()
    out: Tensor = centred / (_mean(forward, centred.square()).mean().sqrt() + norm.eps)
    return out if norm.weight is None or norm.bias is None else out * norm.weight + norm.bias


def _graph(forward: Forward, norm: Any, x_nD: Tensor) -> Tensor:
    """(x - a mean) / sqrt(var + eps), with a learned a per feature."""
    out = x_nD - _mean(forward, x_nD) * norm.mean_scale
    scaled: Tensor = norm.weight * out / (_mean(forward, out.square()) + norm.eps).sqrt() + norm.bias
    return scaled


def _pair(forward: Forward, norm: Any, x_nD: Tensor) -> Tensor:
    """s (x - mean) / sqrt(the mean square length of rows), or divided by each row's own length."""
    x_nD = x_nD - _mean(forward, x_nD)
    if norm.scale_individually:
        out: Tensor = norm.scale * x_nD / (norm.eps + x_nD.norm(2, -1, keepdim=True))
    else:
        out = norm.scale * x_nD / (norm.eps + _mean(forward, x_nD.square()).sum()).sqrt()
    return out


def _centre(forward: Forward, norm: Any, x_nD: Tensor) -> Tensor:
    return x_nD - _mean(forward, x_nD)


def _by_size(forward: Forward, norm: Any, x_nD: Tensor) -> Tensor:
    """x / sqrt(N)."""
    return x_nD / math.sqrt(forward.view.num_nodes)


NORMS: dict[str, Norm] = {
    "torch_geometric.nn.norm.layer_norm.LayerNorm": _layer,
    "torch_geometric.nn.norm.graph_norm.GraphNorm": _graph,
    "torch_geometric.nn.norm.pair_norm.PairNorm": _pair,
    "torch_geometric.nn.norm.mean_subtraction_norm.MeanSubtractionNorm": _centre,
    "torch_geometric.nn.norm.graph_size_norm.GraphSizeNorm": _by_size,
}
