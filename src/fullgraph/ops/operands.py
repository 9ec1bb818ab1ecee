"""Operands of the operations that compare rows over arcs, and their gradients."""

from typing import NamedTuple

from torch import Tensor

from fullgraph.errors import InputError


def check_operand(value: Tensor, shape: tuple[int, ...], name: str, like: Tensor | None = None) -> None:
    if value.shape != shape:
        raise InputError(f"{name} has shape {tuple(value.shape)}; give shape {shape}")
    if like is not None and value.dtype != like.dtype:
        raise InputError(f"{name} is {value.dtype} beside {like.dtype}; cast one of them")


class Pairs(NamedTuple):
    """Operands of attention that compares rows; `attend_pairs` has the equations."""

    row: Tensor  # [R, H, D]
    col: Tensor  # [C, H, D]
    value: Tensor | None  # [C, H, D]; None: col
    att: Tensor | None  # [H, D]; None: scores are dot products
    edge: Tensor | None  # [E, H, D]
    keep: Tensor | None  # [E, H]
    scale: float
    slope: float


class PairGrads(NamedTuple):
    """Gradients of the tensors of `Pairs`, None if the tensor is absent."""

    row: Tensor
    col: Tensor
    value: Tensor | None
    att: Tensor | None
    edge: Tensor | None


class Gates(NamedTuple):
    """Operands of a sum of gated rows; `gated_sum` has the equation."""

    col: Tensor  # [C, D]
    row: Tensor | None  # [R, D]
    value: Tensor | None  # [C, D]; None: ones
    edge: Tensor | None  # [E, K]
    gate: Tensor | None  # [K, D]; None: edge is [E, D] and added as it is
    extra: Tensor | None  # [K, D]
    sigmoid: bool  # else ReLU
    edge_grad: bool  # whether the gradient of edge is wanted


class GateGrads(NamedTuple):
    """Gradients of the tensors of `Gates`, None if the tensor is absent or its gradient is not wanted."""

    col: Tensor
    row: Tensor | None
    value: Tensor | None
    edge: Tensor | None
    gate: Tensor | None
    extra: Tensor | None
