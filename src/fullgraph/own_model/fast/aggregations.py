"""PyG's aggregations of a row's neighbours: one, or several side by side.

Legend as in __init__.py.
"""

from typing import Any

import torch
from torch import Tensor

from fullgraph.ops import Adjacency, Structure, arc_max, arc_min, spmm
from fullgraph.own_model.forward import Forward

SUMS = {"sum": "sum", "add": "sum", "mean": "mean"}  # PyG's names -> ours
EXTREMES = {"max": arc_max, "min": arc_min}
SPREADS = ("var", "std")


def can_aggregate(conv: Any) -> bool:
    """Whether our kernels support a layer's aggregations; they need PyG's default options."""
    if isinstance(conv.aggr, str):
        return conv.aggr in (*SUMS, *EXTREMES)
    return can_be_side_by_side(conv.aggr, conv.aggr_module)


def can_be_side_by_side(names: Any, module: Any) -> bool:
    """Whether our kernels support several aggregations; `module` is PyG's module for them."""
    parts = getattr(module, "aggrs", ())
    plain = getattr(module, "mode", None) == "cat" and not any(
        getattr(getattr(part, "var_aggr", part), "semi_grad", False) for part in parts
    )
    return bool(names) and plain and all(name in (*SUMS, *EXTREMES, *SPREADS) for name in names)


def aggregated(forward: Forward, x_nD: Tensor, names: str | list[str]) -> Tensor:
    """One aggregation, or several side by side; aggregations of the graph's features are computed once."""
    view = forward.view
    if x_nD is not view.features:
        return _side_by_side(view.pattern, forward.sources(x_nD), names)
    with torch.no_grad():
        return view.once(f"inputs {names}", lambda: _side_by_side(view.pattern, forward.sources(x_nD), names))


def _side_by_side(pattern: Structure, source_mD: Tensor, names: str | list[str]) -> Tensor:
    if isinstance(names, str):
        return EXTREMES[names](pattern, source_mD)
    return torch.cat(each_aggregation(pattern, source_mD, names), -1)


def each_aggregation(pattern: Structure, source_mD: Tensor, names: list[str], *, zeros: bool = True) -> list[Tensor]:
    """mean_e x,  var = mean_e x^2 - (mean_e x)^2  and  std = sqrt(var), which is 0 where var is at most 1e-5.

    zeros: as in arc_max.
    """
    found = {name: EXTREMES[name](pattern, source_mD, zeros=zeros) for name in set(names) & EXTREMES.keys()}
    if {"sum", "add"} & set(names):
        found["sum"] = found["add"] = spmm(Adjacency(pattern), source_mD)
    if {"mean", *SPREADS} & set(names):
        mean = Adjacency(pattern, row_scale=1 / pattern.indptr.diff().clamp(min=1).to(source_mD.dtype))
        found["mean"] = spmm(mean, source_mD)
    if set(SPREADS) & set(names):
        found["var"] = spmm(mean, source_mD.square()) - found["mean"].square()
        std = found["var"].clamp(min=1e-5).sqrt()
        found["std"] = std.masked_fill(std <= 1e-5**0.5, 0.0)
    return [found[name] for name in names]
