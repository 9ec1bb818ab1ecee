"""The Triton backend of sums of gated rows: sizes, results and launches."""

from typing import Any

import torch
from torch import Tensor

from fullgraph.ops import triton_gates
from fullgraph.ops.kernels_cuda_pairs import add_pieces, walk
from fullgraph.ops.operands import GateGrads, Gates
from fullgraph.ops.structure import Structure
from fullgraph.ops.triton_base import launch, sum_dtype, triton_type
from fullgraph.ops.triton_plan import Plan, plan_arcs, power_of_two

TILE = 2048  # numbers of arcs x features x columns that a program holds at once


def _sizes(s: Structure, g: Gates) -> tuple[Plan, dict[str, Any]]:
    width, features = g.col.shape[1], 1 if g.gate is None else len(g.gate)
    plan, block = plan_arcs(*s.shape, s.num_arcs, width), power_of_two(features)
    arcs = max(1, min(plan.arcs, TILE // (block * plan.columns)))
    kind = triton_type(sum_dtype(g.col.dtype))
    return plan, {
        "SIGMOID": g.sigmoid, "FEATURES": features, "BLOCK": block, "WIDTH": width, "ARCS": arcs,
        "COLUMNS": plan.columns, "SUM": kind, "num_warps": plan.warps,
    }  # fmt: skip


def gated(s: Structure, g: Gates) -> Tensor:
    plan, sizes = _sizes(s, g)
    w, out = walk(s, plan), g.col.new_empty(s.num_rows, g.col.shape[1])
    partial = out.new_empty(w.num_pieces, *out.shape[1:], dtype=sum_dtype(out.dtype))
    operands = (g.row, g.col, *g[2:6])
    launch(triton_gates.gated, (w.programs,), out, s.indptr, s.indices, *operands, out, partial, *w.args, **sizes)
    add_pieces(w, partial, out)
    return out


def gated_grad(s: Structure, g: Gates, grad_RD: Tensor) -> GateGrads:
    plan, sizes = _sizes(s, g)
    operands, kind, width = (g.row, g.col, *g[2:6]), sum_dtype(g.col.dtype), g.col.shape[1]
    w = walk(s, plan)
    row = None if g.row is None else torch.empty_like(g.row)
    edge = torch.empty_like(g.edge) if g.edge is not None and g.edge_grad else None
    shares = [None if t is None else t.new_empty(w.programs, *t.shape, dtype=kind) for t in g[4:6]]
    if row is not None or edge is not None or g.gate is not None:
        partial = grad_RD.new_empty(w.num_pieces, width, dtype=kind)
        launch(
            triton_gates.gated_grad_rows, (w.programs,), grad_RD, s.indptr, s.indices, *operands, grad_RD, row, edge,
            *shares, partial, *w.args, **sizes,
        )  # fmt: skip
        if row is not None:
            add_pieces(w, partial, row)
    w = walk(s.T, plan)
    col, value = torch.empty_like(g.col), None if g.value is None else torch.empty_like(g.value)
    partial, value_partial = (grad_RD.new_empty(w.num_pieces, width, dtype=kind) for _ in range(2))
    launch(
        triton_gates.gated_grad_cols, (w.programs,), col, s.T.indptr, s.T.indices, None if g.edge is None else s.perm,
        *operands, grad_RD, col, value, partial, value_partial, *w.args, **sizes,
    )  # fmt: skip
    add_pieces(w, partial, col)
    if value is not None:
        add_pieces(w, value_partial, value)
    gate, extra = (None if t is None else t.sum(0).to(g.col.dtype) for t in shares)
    return GateGrads(col, row, value, edge, gate, extra)
