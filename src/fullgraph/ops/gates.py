"""Sums of gated rows over a row's arcs, without an array of size arcs x columns."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullgraph.errors import InputError
from fullgraph.ops.kernels import backend
from fullgraph.ops.operands import Gates, check_operand
from fullgraph.ops.structure import Structure

ACTS = ("relu", "sigmoid")
MOST_FEATURES = 16  # features of an arc that a kernel maps; it holds the map in registers


def gated_sum(
    structure: Structure, col_CD: Tensor, *, act: str, row_RD: Tensor | None = None, value_CD: Tensor | None = None,
    edge_EK: Tensor | None = None, gate_KD: Tensor | None = None, extra_KD: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """y[i] = sum_e act(row[i] + col[j] + edge[e] gate) (value[j] + edge[e] extra)  over the arcs e into i, j = j_e

    Without value the second factor is 1. Without gate, edge [E, D] is added unmapped. GINE is ReLU of col and edge;
    a residual gated layer (arXiv:1711.07553) a sigmoid with row and value.
    """
    width, arcs = col_CD.shape[1], structure.num_arcs
    features = width if gate_KD is None or edge_EK is None else edge_EK.shape[-1]
    given: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("col", col_CD, (structure.num_cols, width)),
        ("row", row_RD, (structure.num_rows, width)),
        ("value", value_CD, (structure.num_cols, width)),
        ("edge", edge_EK, (arcs, features)),
        ("gate", gate_KD, (features, width)),
        ("extra", extra_KD, (features, width)),
    ]
    for name, value, shape in given:
        if value is not None:
            check_operand(value, shape, name, col_CD)
    if act not in ACTS:
        raise InputError(f"act is {act!r}; give one of {', '.join(ACTS)}")
    if gate_KD is not None and features > MOST_FEATURES:
        raise InputError(f"edge has {features} columns; map more than {MOST_FEATURES} before, and leave gate out")
    if (gate_KD is not None and edge_EK is None) or (extra_KD is not None and (value_CD is None or gate_KD is None)):
        raise InputError("gate needs edge; extra needs gate and value")
    y: Tensor = _GatedSum.apply(structure, act == "sigmoid", *(t for _, t, _ in given))  # type: ignore[no-untyped-call]
    return y


class _GatedSum(torch.autograd.Function):
    """With z and v the factors' arguments:  dz = dy[i] v act'(z),  dv = dy[i] act(z),  both recomputed."""

    @staticmethod
    def forward(ctx: Any, s: Structure, sigmoid: bool, col: Tensor, *tensors: Tensor | None) -> Tensor:
        row, value, edge, gate, extra = (None if t is None else t.contiguous() for t in tensors)
        g = Gates(col.contiguous(), row, value, edge, gate, extra, sigmoid, ctx.needs_input_grad[5])
        ctx.given = s, sigmoid
        ctx.save_for_backward(*g[:6])
        return backend(g.col).gated(s, g)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor | None, ...]:
        s, sigmoid = ctx.given
        col, row, value, edge, gate, extra = ctx.saved_tensors
        g = Gates(col, row, value, edge, gate, extra, sigmoid, ctx.needs_input_grad[5])
        return None, None, *backend(g.col).gated_grad(s, g, grad_RD.contiguous())
