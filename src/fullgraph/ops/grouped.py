"""Products of rows with one matrix per group: rows by relation, or by node type.

Legend: n output rows, s input rows, G matrices, I in, O out features.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of rows: group g is the rows bounds[g] .. bounds[g+1]-1, its matrix has the number kinds[g].

    Row s adds to output row rows[s]; the rows of one group add to distinct output rows.
    """

    kinds: tuple[int, ...]  # ascending
    bounds: tuple[int, ...]
    rows: Tensor  # int64 [s]

    @classmethod
    def of(cls, kinds_s: Tensor, rows_s: Tensor) -> "Groups":
        """The groups of rows that are sorted by kind."""
        kinds, counts = torch.unique_consecutive(kinds_s, return_counts=True)
        return cls(tuple(kinds.tolist()), (0, *counts.cumsum(0).tolist()), rows_s)

    def kept(self, mask_s: Tensor) -> "Groups":
        """Only the marked rows."""
        before = torch.nn.functional.pad(mask_s.cumsum(0), (1, 0))
        return Groups(self.kinds, tuple(before[list(self.bounds)].tolist()), self.rows[mask_s])

    def spans(self) -> list[tuple[int, slice]]:
        """(number of the matrix, rows) of each group that has rows."""
        spans = [slice(low, high) for low, high in zip(self.bounds, self.bounds[1:], strict=False)]
        return [(kind, span) for kind, span in zip(self.kinds, spans, strict=True) if span.stop > span.start]

    def to(self, device: torch.device) -> "Groups":
        return Groups(self.kinds, self.bounds, self.rows.to(device))


def add_grouped(base_nO: Tensor, x_sI: Tensor, weight_GOI: Tensor, bias_GO: Tensor | None, groups: Groups) -> Tensor:
    """base[rows[s]] += W_g x[s] + b_g  for every row s of every group g; `base` is updated in place and returned."""
    y: Tensor = _AddGrouped.apply(base_nO, x_sI, weight_GOI, bias_GO, groups)  # type: ignore[no-untyped-call]
    return y


class _AddGrouped(torch.autograd.Function):
    """dx[s] = W_g^T dy[rows[s]],   dW_g = sum over s of dy[rows[s]] x[s]^T,   db_g = sum of dy[rows[s]],   dbase = dy.

    Output rows of a group are distinct, so that sums have the same order on every device.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, base_nO: Tensor, x_sI: Tensor, weight_GOI: Tensor, bias_GO: Tensor | None, groups: Groups
    ) -> Tensor:
        ctx.groups = groups  # type: ignore[attr-defined]
        ctx.save_for_backward(x_sI, weight_GOI)
        ctx.mark_dirty(base_nO)
        for kind, span in groups.spans():
            y_gO = x_sI[span] @ weight_GOI[kind].t()
            base_nO.index_add_(0, groups.rows[span], y_gO if bias_GO is None else y_gO.add_(bias_GO[kind]))
        return base_nO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nO: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, None]:
        x_sI, weight_GOI = ctx.saved_tensors
        _, of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        grad_sI = torch.empty_like(x_sI) if of_x else None
        grad_GOI = torch.zeros_like(weight_GOI) if of_weight else None
        grad_GO = weight_GOI.new_zeros(weight_GOI.shape[:2]) if of_bias else None
        for kind, span in ctx.groups.spans():
            grad_gO = grad_nO[ctx.groups.rows[span]]
            if grad_sI is not None:
                torch.mm(grad_gO, weight_GOI[kind], out=grad_sI[span])
            if grad_GOI is not None:
                torch.mm(grad_gO.t(), x_sI[span], out=grad_GOI[kind])
            if grad_GO is not None:
                grad_GO[kind] = grad_gO.sum(0)
        return grad_nO, grad_sI, grad_GOI, grad_GO, None
