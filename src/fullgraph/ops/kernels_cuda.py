"""The Triton backend: chooses sizes, allocates results and starts the kernels."""

from typing import Any

import torch
from torch import Tensor

from fullgraph.ops import triton_arcs, triton_attention, triton_lowbit, triton_product, triton_rows
from fullgraph.ops.hashing import mixed_key, scale_bits, signed, threshold
from fullgraph.ops.kernels import Attended
from fullgraph.ops.kernels_cuda_dense import rows_against_rows as rows_against_rows
from fullgraph.ops.kernels_cuda_dense import rows_times as rows_times
from fullgraph.ops.kernels_cuda_gates import gated as gated
from fullgraph.ops.kernels_cuda_gates import gated_grad as gated_grad
from fullgraph.ops.kernels_cuda_pairs import PIECES, Walk, walk
from fullgraph.ops.kernels_cuda_pairs import arc_max as arc_max
from fullgraph.ops.kernels_cuda_pairs import arc_max_grad as arc_max_grad
from fullgraph.ops.kernels_cuda_pairs import pairs as pairs
from fullgraph.ops.kernels_cuda_pairs import pairs_grad as pairs_grad
from fullgraph.ops.structure import Adjacency, Structure
from fullgraph.ops.triton_base import launch, sum_dtype, triton_type
from fullgraph.ops.triton_plan import Plan, ceil_div, padded_width, plan_arcs, plan_product, power_of_two, tuned

NORM_NUMBERS = 512  # numbers of whole rows that a warp normalises at the same time: 16 per thread
NORM_PROGRAMS = 2048  # programs of a norm's backward pass: a constant, so that the order of sums is fixed


def spmm(adj: Adjacency, x_CD: Tensor, out_RD: Tensor, add: bool) -> None:
    s = adj.structure
    default = plan_product(*s.shape, s.num_arcs, x_CD.shape[1], x_CD.element_size())
    plan = tuned(default, s, x_CD, lambda plan: spmm_as(plan, adj, x_CD, torch.empty_like(out_RD), False))
    spmm_as(plan, adj, x_CD, out_RD, add)


def spmm_as(plan: Plan, adj: Adjacency, x_CD: Tensor, out_RD: Tensor, add: bool) -> None:
    """Compute the product with a given plan."""
    s, width = adj.structure, x_CD.shape[1]
    read = padded_width(width, x_CD.element_size(), s.num_arcs // max(1, s.num_rows)) if plan.pad else width
    if read != width:
        x_CD = torch.nn.functional.pad(x_CD, (0, read - width))
    parts = (adj.weight, adj.row_scale, adj.col_scale)
    _product(plan, s, s.indices, None, *parts, x_CD, out_RD, heads=1, width=width, read=read, add=add)


def spmm_heads(s: Structure, perm_E: Tensor | None, alpha_EH: Tensor, x_CHD: Tensor) -> Tensor:
    heads, width = x_CHD.shape[1:]
    out = x_CHD.new_empty(s.num_rows, heads, width)
    plan = plan_product(*s.shape, s.num_arcs, width, x_CHD.element_size())
    _product(plan, s, s.indices, perm_E, alpha_EH, None, None, x_CHD, out, heads=heads, width=width, read=width)
    return out


def arc_sum(s: Structure, perm_E: Tensor | None, values_EH: Tensor) -> Tensor:
    heads = values_EH.shape[1]
    out = values_EH.new_empty(s.num_rows, heads)
    plan = plan_product(*s.shape, s.num_arcs, heads, values_EH.element_size())
    _product(plan, s, perm_E, None, None, None, None, values_EH, out, heads=1, width=heads, read=heads)
    return out


def _product(
    plan: Plan, s: Structure, indices: Tensor | None, perm: Tensor | None, weight: Tensor | None,
    row_scale: Tensor | None, col_scale: Tensor | None, x: Tensor, out: Tensor,
    *, heads: int, width: int, read: int, add: bool = False,
) -> None:  # fmt: skip
    w, sums = walk(s, plan), {"ADD": add, "COLUMNS": plan.columns, "SUM": triton_type(x.dtype)}
    partial = x.new_empty(w.num_pieces, heads * width, dtype=sum_dtype(x.dtype))
    launch(
        triton_product.product, (w.programs, ceil_div(width, plan.columns), heads), x,
        s.indptr, indices, perm, weight, row_scale, col_scale, x, out, partial, *w.args,
        HEADS=heads, WIDTH=width, READ=read, ARCS=plan.arcs, num_warps=plan.warps, **sums,
    )  # fmt: skip
    launch(
        triton_product.add_pieces, (w.long_rows.numel(), ceil_div(heads * width, plan.columns)), x,
        partial, w.first, w.long_rows, out, WIDTH=heads * width, PIECES=PIECES, num_warps=1, **sums,
    )  # fmt: skip


def arc_dot(s: Structure, left_RHD: Tensor, right_CHD: Tensor) -> Tensor:
    heads, width = right_CHD.shape[1:]
    out = right_CHD.new_empty(s.num_arcs, heads)
    plan = plan_arcs(*s.shape, s.num_arcs, width)
    w = walk(s, plan)
    launch(
        triton_arcs.arc_dot, (w.programs, heads), out, s.indptr, s.indices, left_RHD, right_CHD, out, *w.args,
        HEADS=heads, WIDTH=width, ARCS=plan.arcs, COLUMNS=plan.columns, SUM=triton_type(out.dtype),
        num_warps=plan.warps,
    )  # fmt: skip
    return out


def arc_add(s: Structure, row_RH: Tensor, col_CH: Tensor) -> Tensor:
    return _arc_map("add", s, col_CH, None, row_RH, None, row_RH.dtype)


def softmax(s: Structure, scores_EH: Tensor) -> Tensor:
    top, total = _softmax_sums(s, None, None, scores_EH, scores_EH, 0.0)
    return _arc_map("softmax", s, scores_EH, None, top, total, scores_EH.dtype)


def softmax_grad(s: Structure, alpha_EH: Tensor, grad_EH: Tensor) -> Tensor:
    heads = alpha_EH.shape[1]
    mean_RH = alpha_EH.new_empty(s.num_rows, heads, dtype=sum_dtype(alpha_EH.dtype))
    plan = plan_product(*s.shape, s.num_arcs, 1, alpha_EH.element_size())
    _product(plan, s, None, None, alpha_EH, None, None, grad_EH, mean_RH, heads=heads, width=1, read=1)
    return _arc_map("softmax_grad", s, alpha_EH, grad_EH, mean_RH, None, grad_EH.dtype)


def _arc_map(
    kind: str, s: Structure, first: Tensor, second: Tensor | None, row_first: Tensor, row_second: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    heads = first.shape[1]
    out = first.new_empty(s.num_arcs, heads, dtype=dtype)
    plan = plan_arcs(*s.shape, s.num_arcs, heads)
    w = walk(s, plan)
    launch(
        triton_arcs.arc_map, (w.programs if heads else 0,), out,
        s.indptr, s.indices, first, second, row_first, row_second, out, *w.args,
        KIND=kind, HEADS=heads, BLOCK=plan.columns, ARCS=plan.arcs, SUM=triton_type(dtype), num_warps=plan.warps,
    )  # fmt: skip
    return out


def _softmax_sums(
    s: Structure, row_RH: Tensor | None, col_CH: Tensor | None, scores_EH: Tensor | None, like: Tensor, slope: float
) -> tuple[Tensor, Tensor]:
    heads, dtype = like.shape[1], sum_dtype(like.dtype)
    plan = plan_arcs(*s.shape, s.num_arcs, heads)
    w, sizes = walk(s, plan), {"HEADS": heads, "BLOCK": plan.columns, "SUM": triton_type(dtype)}
    top, total = (like.new_empty(s.num_rows, heads, dtype=dtype) for _ in range(2))
    pieces = [like.new_empty(w.num_pieces, heads, dtype=dtype) for _ in range(2)]
    launch(
        triton_arcs.softmax_sums, (w.programs if heads else 0,), like,
        s.indptr, s.indices, row_RH, col_CH, scores_EH, top, total, *pieces, *w.args,
        SLOPE=slope, ARCS=plan.arcs, num_warps=plan.warps, **sizes,
    )  # fmt: skip
    launch(
        triton_arcs.merge_sums, (w.long_rows.numel() if heads else 0,), like,
        *pieces, w.first, w.long_rows, top, total, PIECES=PIECES, num_warps=1, **sizes,
    )  # fmt: skip
    return top, total


def attend(s: Structure, row_RH: Tensor, col_CH: Tensor, x_CHD: Tensor, slope: float, with_grad: bool) -> Attended:
    heads, width = x_CHD.shape[1:]
    wide = torch.promote_types(row_RH.dtype, x_CHD.dtype)
    top, total = _softmax_sums(s, row_RH, col_CH, None, row_RH.new_empty(0, heads, dtype=wide), slope)
    plan = plan_arcs(*s.shape, s.num_arcs, width)
    w, sizes = walk(s, plan), _attention_sizes(plan, heads, width, slope, top)
    y = x_CHD.new_empty(s.num_rows, heads, width)
    lean = torch.empty_like(y) if with_grad else None
    pieces = _attention_pieces(w, heads, width, top)
    launch(
        triton_attention.attend, (w.programs, heads), y, s.indptr, s.indices, row_RH, col_CH, top, total, x_CHD, y,
        lean, *pieces, *w.args, ARCS=plan.arcs, num_warps=plan.warps, **sizes,
    )  # fmt: skip
    launch(
        triton_attention.merge_attended, (w.long_rows.numel(), heads), y, *pieces, w.first, w.long_rows, y, lean,
        None, None, num_warps=plan.warps, **sizes,
    )  # fmt: skip
    return Attended(y, lean, top, total)


def attend_grad(
    s: Structure, row_RH: Tensor, col_CH: Tensor, x_CHD: Tensor, slope: float, forward: Attended, grad_RHD: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    heads, width = x_CHD.shape[1:]
    y, lean, top, total = forward
    assert lean is not None, "call attend(..., with_grad=True) first"
    plan = plan_arcs(*s.shape, s.num_arcs, width)
    sizes = _attention_sizes(plan, heads, width, slope, top)
    facts = top.new_empty(s.num_rows, heads, 4)
    row_grad, col_grad, x_grad = (torch.empty_like(t) for t in (row_RH, col_CH, x_CHD))
    rows = max(1, 1024 // plan.columns)
    launch(
        triton_attention.prepare_grad, (ceil_div(s.num_rows, rows), heads), y, grad_RHD, y, lean, row_RH, top, total,
        facts, row_grad, s.num_rows, ROWS=rows, num_warps=2, **sizes,
    )  # fmt: skip
    w = walk(s.T, plan)
    pieces = _attention_pieces(w, heads, width, top)
    launch(
        triton_attention.attend_grad, (w.programs, heads), y, s.T.indptr, s.T.indices, facts, col_CH, x_CHD, grad_RHD,
        x_grad, col_grad, *pieces, *w.args, ARCS=plan.arcs, num_warps=plan.warps, **sizes,
    )  # fmt: skip
    launch(
        triton_attention.merge_attended, (w.long_rows.numel(), heads), y, *pieces, w.first, w.long_rows, x_grad, None,
        x_CHD, col_grad, num_warps=plan.warps, **sizes,
    )  # fmt: skip
    return row_grad, col_grad, x_grad


def _attention_sizes(plan: Plan, heads: int, width: int, slope: float, like: Tensor) -> dict[str, Any]:
    kind = triton_type(like.dtype)
    return {"SLOPE": slope, "HEADS": heads, "WIDTH": width, "COLUMNS": plan.columns, "SUM": kind}


def _attention_pieces(w: Walk, heads: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    return like.new_empty(w.num_pieces, heads, 2, width), like.new_empty(w.num_pieces, heads)


def dropout(x_nD: Tensor, ids_n: Tensor, key: int, p: float, relu: bool) -> Tensor:
    x_nD, width = x_nD if x_nD.stride(1) == 1 else x_nD.contiguous(), x_nD.shape[1]
    out, (columns, rows) = x_nD.new_empty(x_nD.shape), _tile(width)
    launch(
        triton_rows.dropout, (ceil_div(len(out), rows), ceil_div(width, columns)), out, x_nD, ids_n, out,
        signed(mixed_key(key)), threshold(p), scale_bits(p), len(out),
        STRIDE=x_nD.stride(0), WIDTH=width, RELU=relu, ROWS=rows, COLUMNS=columns, SUM=triton_type(out.dtype),
    )  # fmt: skip
    return out


def relu_dropout_grad(grad_nD: Tensor, y_nD: Tensor, p: float) -> Tensor:
    out, block = torch.empty_like(grad_nD), 2048
    launch(
        triton_rows.relu_dropout_grad, (ceil_div(out.numel(), block),), out,
        grad_nD, y_nD, out, scale_bits(p), out.numel(), BLOCK=block, SUM=triton_type(out.dtype),
    )  # fmt: skip
    return out


def layer_norm(x_nD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    out, sizes = torch.empty_like(x_nD), _norm_sizes(x_nD, eps)
    launch(
        triton_rows.layer_norm, (ceil_div(len(out), sizes["ROWS"]),), out,
        x_nD, weight_D, bias_D, out, len(out), **sizes,
    )  # fmt: skip
    return out


def layer_norm_grad(grad_nD: Tensor, x_nD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    out, sizes = torch.empty_like(x_nD), _norm_sizes(x_nD, eps)
    programs = min(NORM_PROGRAMS, ceil_div(len(out), sizes["ROWS"]))
    partial = x_nD.new_empty(programs, 2, x_nD.shape[1], dtype=sum_dtype(x_nD.dtype))
    launch(triton_rows.layer_norm_grad, (programs,), out, grad_nD, x_nD, weight_D, out, partial, len(out), **sizes)
    weight, bias = partial.sum(0)
    return out, weight, bias


def _norm_sizes(x_nD: Tensor, eps: float) -> dict[str, Any]:
    width, columns = x_nD.shape[1], power_of_two(x_nD.shape[1])
    sizes = {"ROWS": max(1, NORM_NUMBERS // columns), "COLUMNS": columns, "SUM": triton_type(x_nD.dtype)}
    # A warp has whole rows of up to 1,024 columns, so that no sum crosses warps.
    return {"EPS": eps, "WIDTH": width, "num_warps": ceil_div(columns, 1024), **sizes}


def dropout_arcs(s: Structure, ids_R: Tensor, values_E: Tensor, key: int, p: float) -> Tensor:
    out, plan = torch.empty_like(values_E), plan_arcs(*s.shape, s.num_arcs, 1)
    w, law = walk(s, plan), (signed(mixed_key(key)), threshold(p), scale_bits(p))
    launch(
        triton_arcs.dropout_arcs, (w.programs,), out, s.indptr, s.indices, ids_R, values_E, out, *law, *w.args,
        ARCS=plan.arcs, SUM=triton_type(out.dtype), num_warps=plan.warps,
    )  # fmt: skip
    return out


def add_rows(out_nD: Tensor, rows_k: Tensor, values_kD: Tensor) -> None:
    count, width = values_kD.shape
    columns, rows = _tile(width)
    launch(
        triton_rows.add_rows, (ceil_div(count, rows), ceil_div(width, columns)), out_nD, out_nD, rows_k, values_kD,
        count, WIDTH=width, ROWS=rows, COLUMNS=columns, SUM=triton_type(out_nD.dtype),
    )  # fmt: skip


def lowbit_encode(x_nD: Tensor, key: int, bits: int, wire_nW: Tensor) -> None:
    count, width = x_nD.shape
    columns = max(8 // bits, power_of_two(width))
    rows = max(1, 2048 // columns)  # 64 numbers per thread of one warp, so that no minimum crosses warps
    at_once = min(16 // x_nD.element_size(), width & -width)  # numbers that a thread may load at once
    part = min(columns, max(8 // bits, 4 * at_once, columns // 16))  # 4 threads share a row, in up to 16 slices
    launch(
        triton_lowbit.encode, (ceil_div(count, rows),), wire_nW, x_nD, wire_nW, signed(mixed_key(key)), count,
        WIDTH=width, BITS=bits, ROWS=rows, SLICE=part,
        num_warps=min(8, ceil_div(columns, 2048)), enable_fp_fusion=False,
    )  # fmt: skip


def lowbit_decode(wire_nW: Tensor, bits: int, out_nD: Tensor) -> None:
    count, width = out_nD.shape
    columns, rows = _tile(width)
    launch(
        triton_lowbit.decode, (ceil_div(count, rows), ceil_div(width, columns)), out_nD, wire_nW, out_nD, count,
        WIDTH=width, BITS=bits, ROWS=rows, COLUMNS=columns, enable_fp_fusion=False,
    )  # fmt: skip


def _tile(width: int) -> tuple[int, int]:
    """Return the columns and rows of a block of 2,048 numbers, 16 per thread."""
    columns = min(512, power_of_two(width))
    return columns, 2048 // columns
