"""The one place that chooses how an operation is computed: numba loops, or plain torch."""

import os
from functools import cache
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from fullgraph.errors import InputError, one_line
from fullgraph.ops import reference
from fullgraph.ops.structure import Adjacency, Structure

# Shapes: R rows (targets), C columns (sources), E arcs, H heads, D features, n rows of a dense block,
# W bytes a row on the wire.


class Backend(Protocol):
    """What an implementation offers; nothing here knows of autograd."""

    def spmm(self, adj: Adjacency, x_CD: Tensor, out_RD: Tensor, add: bool) -> None: ...
    def spmm_heads(self, s: Structure, perm_E: Tensor | None, alpha_EH: Tensor, x_CHD: Tensor) -> Tensor: ...
    def arc_dot(self, s: Structure, left_RHD: Tensor, right_CHD: Tensor) -> Tensor: ...
    def arc_add(self, s: Structure, row_RH: Tensor, col_CH: Tensor) -> Tensor: ...
    def arc_sum(self, s: Structure, perm_E: Tensor | None, values_EH: Tensor) -> Tensor: ...
    def softmax(self, s: Structure, scores_EH: Tensor) -> Tensor: ...
    def softmax_grad(self, s: Structure, alpha_EH: Tensor, grad_EH: Tensor) -> Tensor: ...
    def dropout(self, x_nD: Tensor, ids_n: Tensor, key: int, p: float, relu: bool) -> Tensor: ...
    def relu_dropout_grad(self, grad_nD: Tensor, y_nD: Tensor, p: float) -> Tensor: ...
    def dropout_arcs(self, s: Structure, ids_R: Tensor, values_E: Tensor, key: int, p: float) -> Tensor: ...
    def add_rows(self, out_nD: Tensor, rows_k: Tensor, values_kD: Tensor) -> None: ...
    def lowbit_encode(self, x_nD: Tensor, key: int, bits: int, wire_nW: Tensor) -> None: ...
    def lowbit_decode(self, wire_nW: Tensor, bits: int, out_nD: Tensor) -> None: ...


@cache
def _compiled() -> Backend | None:
    """Loops that numba compiles; None where it is not installed, or told not to compile."""
    if find_spec("numba") is None:
        return None
    try:
        from numba import config

        from fullgraph.ops import kernels_cpu
    except Exception as error:  # numba reads settings of its own when it is imported
        raise InputError(f"numba does not start ({one_line(error, 100)}); set FULLGRAPH_KERNELS=torch") from error
    return None if config.DISABLE_JIT else kernels_cpu


def backend(x: Tensor) -> Backend:
    """The implementation for tensors like `x`; FULLGRAPH_KERNELS=torch in the environment asks for the reference."""
    choice = os.environ.get("FULLGRAPH_KERNELS") or "numba"
    if choice not in ("numba", "torch"):
        raise InputError(f"FULLGRAPH_KERNELS={one_line(choice, 40)} is unknown; set it to numba or torch")
    fits = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return (_compiled() if choice == "numba" and fits else None) or reference
