"""The torch backend of sums of gated rows: the reference, in blocks of arcs."""

from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.ops.operands import GateGrads, Gates
from fullgraph.ops.reference_arcs import ArcBlock, arc_blocks
from fullgraph.ops.structure import Structure


class _Factors(NamedTuple):
    """Both factors of some arcs; None: 1."""

    gate: Tensor
    value: Tensor | None


def _factors(g: Gates, b: ArcBlock) -> _Factors:
    wide = torch.promote_types(g.col.dtype, torch.float32)
    z, edge = g.col[b.source].to(wide), None if g.edge is None else g.edge[b.arcs].to(wide)
    if g.row is not None:
        z = z + g.row[b.target]
    if edge is not None:
        z = z + (edge if g.gate is None else edge @ g.gate.to(wide))
    v = None if g.value is None else g.value[b.source].to(wide)
    if v is not None and edge is not None and g.extra is not None:
        v = v + edge @ g.extra.to(wide)
    return _Factors(z.sigmoid() if g.sigmoid else z.relu(), v)


def gated(s: Structure, g: Gates) -> Tensor:
    width = g.col.shape[1]
    y = torch.zeros(s.num_rows, width, dtype=torch.promote_types(g.col.dtype, torch.float32), device=g.col.device)
    for b in arc_blocks(s, width):
        f = _factors(g, b)
        y.index_add_(0, b.target, f.gate if f.value is None else f.gate * f.value)
    return y.to(g.col.dtype)


def gated_grad(s: Structure, g: Gates, grad_RD: Tensor) -> GateGrads:
    wide = torch.promote_types(g.col.dtype, torch.float32)
    found = [None if t is None else torch.zeros_like(t, dtype=wide) for t in g[:6]]
    col, row, value, edge, gate, extra = found
    assert col is not None
    for b in arc_blocks(s, g.col.shape[1]):
        f, dy = _factors(g, b), grad_RD[b.target].to(wide)
        dz = dy if f.value is None else dy * f.value
        dz = dz * f.gate * (1 - f.gate) if g.sigmoid else dz.masked_fill(f.gate <= 0, 0)
        dv = dy * f.gate
        col.index_add_(0, b.source, dz)
        if row is not None:
            row.index_add_(0, b.target, dz)
        if value is not None:
            value.index_add_(0, b.source, dv)
        if g.edge is None or edge is None:
            continue
        edge[b.arcs] = dz if g.gate is None else dz @ g.gate.to(wide).T
        if gate is not None:
            gate += g.edge[b.arcs].to(wide).T @ dz
        if extra is not None and g.extra is not None:
            extra += g.edge[b.arcs].to(wide).T @ dv
            edge[b.arcs] += dv @ g.extra.to(wide).T
    found[3] = edge if g.edge_grad else None
    return GateGrads(*(None if t is None else t.to(g.col.dtype) for t in found))  # type: ignore[arg-type]
