"""Packing of rows: gather rows, add rows, and both with few bits per number on the wire."""

import torch
from torch import Tensor

from fullgraph.ops.kernels import backend, fused_backend
from fullgraph.ops.lowbit import row_bytes


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


def encode_rows(x_nD: Tensor, rows_k: Tensor, *, key: int, bits: int, relu: bool = False) -> Tensor:
    """The rows x[rows[k]], or their positive part, in the format of lowbit.py: uint8 [k, W]; no gradient flows."""
    wire_kW = x_nD.new_zeros(rows_k.numel(), row_bytes(x_nD.shape[1], bits), dtype=torch.uint8)
    if not rows_k.numel() or not x_nD.shape[1]:
        return wire_kW
    with torch.no_grad():
        kernels = fused_backend(x_nD)
        if kernels is not None:
            kernels.lowbit_encode_rows(x_nD.contiguous(), rows_k, key, bits, relu, wire_kW)
        else:
            chosen_kD = gather_rows(x_nD, rows_k).to(torch.float32)
            chosen_kD = chosen_kD.masked_fill_(chosen_kD <= 0, 0) if relu else chosen_kD
            backend(chosen_kD).lowbit_encode(chosen_kD, key, bits, wire_kW)
    return wire_kW


def decode_add_rows(out_nD: Tensor, rows_k: Tensor, wire_kW: Tensor, *, bits: int) -> None:
    """out[rows[k]] += the row that wire[k] holds, in place; the rows are distinct and no gradient flows."""
    if not rows_k.numel() or not out_nD.shape[1]:
        return
    with torch.no_grad():
        kernels = fused_backend(out_nD)
        if kernels is not None and out_nD.is_contiguous():
            kernels.lowbit_decode_add(wire_kW.contiguous(), rows_k, bits, out_nD)
        else:
            values_kD = torch.empty(rows_k.numel(), out_nD.shape[1], device=out_nD.device)
            backend(values_kD).lowbit_decode(wire_kW.contiguous(), bits, values_kD)
            add_rows(out_nD, rows_k, values_kD)
