"""Choose the implementation of operations: Triton kernels, numba loops, plain torch, or shapes only."""

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from fullgraph.errors import InputError, one_line
from fullgraph.ops import kernels_meta, reference
from fullgraph.ops.operands import GateGrads, Gates, PairGrads, Pairs
from fullgraph.ops.structure import Adjacency, Structure

if TYPE_CHECKING:
    from fullgraph.ops.dense import Drop

# Shapes: R rows (targets), C columns (sources), E arcs, H heads, D features, n rows of a dense block, k chosen rows,
# W bytes per row on the wire.


class Backend(Protocol):
    """The operations of an implementation, without autograd."""

    def spmm(self, adj: Adjacency, x_CD: Tensor, out_RD: Tensor, add: bool) -> None: ...
    def spmm_heads(self, s: Structure, perm_E: Tensor | None, alpha_EH: Tensor, x_CHD: Tensor) -> Tensor: ...
    def arc_dot(self, s: Structure, left_RHD: Tensor, right_CHD: Tensor) -> Tensor: ...
    def arc_add(self, s: Structure, row_RH: Tensor, col_CH: Tensor) -> Tensor: ...
    def arc_sum(self, s: Structure, perm_E: Tensor | None, values_EH: Tensor) -> Tensor: ...
    def softmax(self, s: Structure, scores_EH: Tensor) -> Tensor: ...
    def softmax_grad(self, s: Structure, alpha_EH: Tensor, grad_EH: Tensor) -> Tensor: ...
    def pairs(self, s: Structure, p: Pairs) -> tuple[Tensor, Tensor]: ...  # y, and what the gradient needs
    def pairs_grad(self, s: Structure, p: Pairs, y_RHD: Tensor, state: Tensor, grad_RHD: Tensor) -> PairGrads: ...
    def gated(self, s: Structure, g: Gates) -> Tensor: ...
    def gated_grad(self, s: Structure, g: Gates, grad_RD: Tensor) -> GateGrads: ...
    def arc_max(self, s: Structure, x_CD: Tensor) -> tuple[Tensor, Tensor]: ...  # y, and how many arcs reach it
    def arc_max_grad(self, s: Structure, x_CD: Tensor, y_RD: Tensor, share_RD: Tensor) -> Tensor: ...
    def dropout(self, x_nD: Tensor, ids_n: Tensor, key: int, p: float, relu: bool) -> Tensor: ...
    def relu_dropout_grad(self, grad_nD: Tensor, y_nD: Tensor, p: float) -> Tensor: ...
    def dropout_arcs(self, s: Structure, ids_R: Tensor, values_E: Tensor, key: int, p: float) -> Tensor: ...
    def add_rows(self, out_nD: Tensor, rows_k: Tensor, values_kD: Tensor) -> None: ...
    def lowbit_encode(self, x_nD: Tensor, key: int, bits: int, wire_nW: Tensor) -> None: ...
    def lowbit_decode(self, wire_nW: Tensor, bits: int, out_nD: Tensor) -> None: ...


class Attended(NamedTuple):
    """The result y of fused attention, and the tensors for its gradient; `lean` only on request."""

    y_RHD: Tensor
    lean_RHD: Tensor | None
    top_RH: Tensor
    total_RH: Tensor


class Fused(Backend, Protocol):
    """Fused operations, which only the Triton kernels offer; other implementations combine several of the above."""

    def attend(
        self, s: Structure, row_RH: Tensor, col_CH: Tensor, x_CHD: Tensor, slope: float, with_grad: bool
    ) -> Attended: ...
    def attend_grad(
        self, s: Structure, row_RH: Tensor, col_CH: Tensor, x_CHD: Tensor, slope: float, forward: Attended,
        grad_RHD: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
    def layer_norm(self, x_nD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor: ...
    def layer_norm_grad(
        self, grad_nD: Tensor, x_nD: Tensor, weight_D: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def rows_times(
        self, x_nI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out_nO: Tensor, add: bool, drop: "Drop | None"
    ) -> None: ...
    def rows_against_rows(self, grad_nO: Tensor, x_nI: Tensor, drop: "Drop | None") -> Tensor: ...


def backend(x: Tensor) -> Backend:
    """Return the implementation for tensors like `x`: Triton on a GPU, numba on a CPU, torch without either.

    The environment variable FULLGRAPH_KERNELS=torch, numba or triton allows only that one, with torch as its fallback.
    """
    if x.is_meta:
        return kernels_meta
    kernels = fused_backend(x)
    if kernels is not None:
        return kernels
    fits = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return (_compiled() if fits and _choice() != "torch" else None) or reference


def fused_backend(x: Tensor) -> Fused | None:
    """Return the Triton kernels if they are the implementation for tensors like `x`, else None."""
    choice = _choice()
    if choice in ("numba", "torch") or not x.is_floating_point() or not (x.is_cuda or choice == "triton") or x.is_meta:
        return None
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise InputError("FULLGRAPH_KERNELS=triton on a CPU needs Triton's interpreter; set TRITON_INTERPRET=1 as well")
    return _triton_kernels()


def _choice() -> str | None:
    choice = os.environ.get("FULLGRAPH_KERNELS") or None
    if choice not in (None, "numba", "torch", "triton"):
        raise InputError(f"FULLGRAPH_KERNELS={one_line(choice, 40)} is unknown; set it to numba, torch or triton")
    return choice


def warm_up(device: str) -> None:
    """Load the kernels for a device type without using a device or starting a thread, because a fork may follow."""
    if device.partition(":")[0] == "cuda":
        if _choice() in (None, "triton"):
            _triton_kernels()
    elif backend(torch.empty(0)) is not reference:
        from fullgraph.ops import kernels_cpu

        kernels_cpu.warm_up()


@cache
def _compiled() -> Backend | None:
    """Return the loops compiled by numba; None if it is not installed, or its compiler is switched off."""
    if find_spec("numba") is None:
        return None
    try:
        from numba import config

        from fullgraph.ops import kernels_cpu
    except Exception as error:  # numba reads its own settings during import
        raise InputError(f"numba does not start ({one_line(error, 100)}); set FULLGRAPH_KERNELS=torch") from error
    return None if config.DISABLE_JIT else kernels_cpu


@cache
def _triton_kernels() -> Fused | None:
    try:
        from fullgraph.ops import kernels_cuda
    except ImportError:
        return None
    return kernels_cuda
