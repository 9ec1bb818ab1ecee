"""PNA without features of edges: its first map is linear, so the target's part is added after the aggregations.

    m_e = U x[i] + V x[j] + b:  mean m = U x[i] + mean (V x[j] + b), so max, min;  var m = var V x[j]

Legend as in __init__.py; T towers, F columns of each.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.own_model.fast.aggregations import SPREADS, SUMS, can_be_side_by_side, each_aggregation
from fullgraph.own_model.fast.arcs import mapped_sources, own_ends
from fullgraph.own_model.forward import Forward

LINEAR = "torch_geometric.nn.dense.linear"


def pna(forward: Forward, conv: Any, x: Any, edge_index: Any, edge_attr: Any = None) -> Tensor | None:
    scaled = conv.aggr_module
    names = _names(scaled.aggr)
    ends = own_ends(forward, x, edge_index)
    if edge_attr is not None or conv.edge_dim is not None or ends is None or not ends.same:
        return None
    if any(len(one) > 1 or type(one[0]).__module__ != LINEAR for one in conv.pre_nns) or not can_be_side_by_side(
        names, scaled.aggr
    ):
        return None
    towers, width = conv.towers, conv.F_in
    weights = [one[0].weight.split(width, 1) for one in conv.pre_nns]  # of the target, of the source
    bias = torch.cat([one[0].bias for one in conv.pre_nns])

    def maps(which: int) -> Tensor:
        parts = [pair[which] for pair in weights]
        return torch.block_diag(*parts) if conv.divide_input else torch.cat(parts)

    with forward.unseen():
        pattern = forward.view.pattern
        source_mTF = mapped_sources(forward, x, lambda rows: F.linear(rows, maps(1), bias), towers * width)
        degree_n1 = pattern.indptr.diff()[:, None].to(x.dtype)
        target_nTF = F.linear(x, maps(0)) * (degree_n1 > 0)
        found = []
        for name, one in zip(names, each_aggregation(pattern, source_mTF, names, zeros=False), strict=True):
            times = 0 if name in SPREADS else degree_n1 if SUMS.get(name) == "sum" else 1
            found.append((one + times * target_nTF).unflatten(1, (towers, width)))
        out = _scaled(scaled, torch.cat(found, -1), degree_n1[:, None])
        rows = x.unflatten(1, (towers, width)) if conv.divide_input else x[:, None].expand(-1, towers, -1)
        out = torch.cat([rows, out], -1)
        out = torch.cat([one(out[:, tower]) for tower, one in enumerate(conv.post_nns)], 1)
        return forward.as_nodes(conv.lin(out))


def _names(aggregations: Any) -> list[str]:
    """PyG's names of the parts of a MultiAggregation."""
    kinds = (type(one).__name__.removesuffix("Aggregation").lower() for one in getattr(aggregations, "aggrs", ()))
    return list(kinds)


def _scaled(scaled: Any, out_nTA: Tensor, degree_n11: Tensor) -> Tensor:
    """The aggregations times each scaler, as PyG's DegreeScalerAggregation computes them."""
    log, least = torch.log(degree_n11 + 1), degree_n11.clamp(min=1)
    scalers: dict[str, Callable[[], Tensor | float]] = {
        "identity": lambda: 1.0,
        "amplification": lambda: log / scaled.avg_deg_log,
        "attenuation": lambda: scaled.avg_deg_log / torch.log(least + 1),
        "linear": lambda: degree_n11 / scaled.avg_deg_lin,
        "inverse_linear": lambda: scaled.avg_deg_lin / least,
    }
    return torch.cat([out_nTA * scalers[name]() for name in scaled.scaler], -1)
