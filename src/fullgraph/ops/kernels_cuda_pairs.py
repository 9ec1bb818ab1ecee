"""The Triton backend of attention that compares rows, and of maxima: sizes, results and launches."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgraph.ops import triton_extremes, triton_pairs, triton_product
from fullgraph.ops.operands import PairGrads, Pairs
from fullgraph.ops.structure import Structure
from fullgraph.ops.triton_base import launch, sum_dtype, triton_type
from fullgraph.ops.triton_plan import Plan, ceil_div, plan_arcs, plan_product

PIECES = 8  # pieces of a long row that are added at the same time


class Walk(NamedTuple):
    """How the programs of a kernel divide the arcs of a structure."""

    programs: int
    args: tuple[Any, ...]  # the arguments of every such kernel
    num_pieces: int
    first: Tensor
    long_rows: Tensor


def walk(s: Structure, plan: Plan) -> Walk:
    long = s.long_rows(plan.chunk)
    args = (long.rows, long.places, long.num_pieces, plan.chunk, plan.rows, s.num_rows)
    return Walk(long.num_pieces + ceil_div(s.num_rows, plan.rows), args, long.num_pieces, long.first, long.distinct)


def add_pieces(w: Walk, partial: Tensor, out: Tensor) -> None:
    """Write the sums of the long rows' pieces into their rows of `out`."""
    width = out[0].numel() if len(out) else 0
    columns = min(512, plan_arcs(1, 1, 1, width).columns)
    launch(
        triton_product.add_pieces, (w.long_rows.numel(), ceil_div(width, columns)), out,
        partial, w.first, w.long_rows, out, WIDTH=width, ADD=False, PIECES=PIECES, COLUMNS=columns,
        SUM=triton_type(out.dtype), num_warps=1,
    )  # fmt: skip


def pairs(s: Structure, p: Pairs) -> tuple[Tensor, Tensor]:
    heads, width = p.col.shape[1:]
    plan, kind = plan_arcs(*s.shape, s.num_arcs, width), sum_dtype(p.col.dtype)
    w, sizes = walk(s, plan), {"HEADS": heads, "WIDTH": width, "COLUMNS": plan.columns, "SUM": triton_type(kind)}
    y, lse = torch.empty_like(p.row), p.row.new_empty(s.num_rows, heads, dtype=kind)
    pieces = [lse.new_empty(w.num_pieces, heads, n) for n in (width, 2)]
    launch(
        triton_pairs.pairs, (w.programs, heads), y, s.indptr, s.indices, *p[:6], y, lse, *pieces, *w.args,
        SCALE=p.scale, SLOPE=p.slope, ARCS=plan.arcs, num_warps=plan.warps, **sizes,
    )  # fmt: skip
    launch(
        triton_pairs.merge_pairs, (w.long_rows.numel(), heads), y, *pieces, w.first, w.long_rows, y, lse,
        num_warps=1, **sizes,
    )  # fmt: skip
    return y, lse


def pairs_grad(s: Structure, p: Pairs, y_RHD: Tensor, state: Tensor, grad_RHD: Tensor) -> PairGrads:
    heads, width = p.col.shape[1:]
    plan, kind = plan_arcs(*s.shape, s.num_arcs, width), sum_dtype(p.col.dtype)
    sizes: dict[str, Any] = {"HEADS": heads, "WIDTH": width, "COLUMNS": plan.columns, "SUM": triton_type(kind)}
    sizes |= {"SCALE": p.scale, "SLOPE": p.slope, "ARCS": plan.arcs, "num_warps": plan.warps}
    facts = torch.stack([state, torch.linalg.vecdot(grad_RHD.to(kind), y_RHD.to(kind))], -1)
    w = walk(s, plan)
    row, edge = torch.empty_like(p.row), None if p.edge is None else torch.empty_like(p.edge)
    att = None if p.att is None else facts.new_empty(w.programs, heads, width)
    partial = facts.new_empty(w.num_pieces, heads, width)
    launch(
        triton_pairs.pairs_grad_rows, (w.programs, heads), row, s.indptr, s.indices, *p[:6], grad_RHD, facts,
        row, att, edge, partial, *w.args, **sizes,
    )  # fmt: skip
    add_pieces(w, partial, row)
    w = walk(s.T, plan)
    col, value = torch.empty_like(p.col), None if p.value is None else torch.empty_like(p.value)
    partial, value_partial = (facts.new_empty(w.num_pieces, heads, width) for _ in range(2))
    perm = None if p.edge is None and p.keep is None else s.perm
    launch(
        triton_pairs.pairs_grad_cols, (w.programs, heads), row, s.T.indptr, s.T.indices, perm, *p[:6],
        grad_RHD, facts, col, value, partial, value_partial, *w.args, **sizes,
    )  # fmt: skip
    add_pieces(w, partial, col)
    if value is not None:
        add_pieces(w, value_partial, value)
    return PairGrads(row, col, value, None if att is None else att.sum(0).to(p.col.dtype), edge)


def arc_max(s: Structure, x_CD: Tensor) -> tuple[Tensor, Tensor]:
    width = x_CD.shape[1]
    plan, kind = plan_product(*s.shape, s.num_arcs, width, x_CD.element_size()), sum_dtype(x_CD.dtype)
    w, sizes = walk(s, plan), {"WIDTH": width, "COLUMNS": plan.columns, "SUM": triton_type(kind)}
    out, count = x_CD.new_empty(s.num_rows, width), x_CD.new_empty(s.num_rows, width, dtype=kind)
    pieces = [count.new_empty(w.num_pieces, width) for _ in range(2)]
    slices = ceil_div(width, plan.columns)
    launch(
        triton_extremes.arc_max, (w.programs, slices), out, s.indptr, s.indices, x_CD, out, count, *pieces, *w.args,
        ARCS=plan.arcs, num_warps=plan.warps, **sizes,
    )  # fmt: skip
    launch(
        triton_extremes.merge_max, (w.long_rows.numel(), slices), out, *pieces, w.first, w.long_rows, out, count,
        num_warps=1, **sizes,
    )  # fmt: skip
    return out, count


def arc_max_grad(s: Structure, x_CD: Tensor, y_RD: Tensor, share_RD: Tensor) -> Tensor:
    width, out = x_CD.shape[1], torch.empty_like(x_CD)
    plan = plan_product(*s.T.shape, s.num_arcs, width, x_CD.element_size())
    w = walk(s.T, plan)
    partial = out.new_empty(w.num_pieces, width, dtype=sum_dtype(out.dtype))
    launch(
        triton_extremes.arc_max_grad, (w.programs, ceil_div(width, plan.columns)), out, s.T.indptr, s.T.indices,
        x_CD, y_RD, share_RD, out, partial, *w.args, WIDTH=width, ARCS=plan.arcs, COLUMNS=plan.columns,
        SUM=triton_type(out.dtype), num_warps=plan.warps,
    )  # fmt: skip
    add_pieces(w, partial, out)
    return out
