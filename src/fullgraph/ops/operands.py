"""Operands of attention that compares rows, and their gradients."""

from typing import NamedTuple

from torch import Tensor


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
    """Gradients of the tensors of `Pairs`, None where there is no such tensor."""

    row: Tensor
    col: Tensor
    value: Tensor | None
    att: Tensor | None
    edge: Tensor | None
