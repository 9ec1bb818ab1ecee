"""Packing of rows: gather rows of a block, and add rows into it."""

import torch
from torch import Tensor

from fullgraph.ops.kernels import backend


def gather_rows(x_nD: Tensor, rows_k: Tensor) -> Tensor:
    """y[k] = x[rows[k]]; no numba loop was faster than torch's selection."""
    return torch.index_select(x_nD, 0, rows_k)


def add_rows(out_nD: Tensor, rows_k: Tensor, values_kD: Tensor) -> None:
    """out[rows[k]] += values[k], in place; the rows are distinct and no gradient flows."""
    with torch.no_grad():
        if out_nD.is_contiguous() and values_kD.numel():
            backend(out_nD).add_rows(out_nD, rows_k, values_kD.to(out_nD.dtype).contiguous())
        else:
            out_nD.index_add_(0, rows_k, values_kD)
