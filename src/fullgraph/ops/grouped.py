"""Products of rows with one matrix per group: rows by relation, or by node type; and attention's arcs by relation.

Legend: n output rows, s input rows, G matrices, I in, O out features; e arcs, c pairs of a source and a relation, p
pairs of a target and a relation.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgraph.ops.structure import Adjacency, Structure


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


@dataclass(frozen=True, eq=False)
class RelationArcs:
    """Arcs whose columns are pairs of a source and a relation, so that a source has other rows in each relation.

    Arcs of a target are sorted by relation. So they also have a row for each pair of a target and a relation.
    """

    columns: Groups  # by relation: column c is source row rows[c]
    arcs: Structure  # rows: targets
    pairs: Structure  # rows: pairs of a target and a relation, sorted by target
    target_p: Tensor  # [p]
    kind_p: Tensor  # [p], numbers of relations
    sums: Adjacency  # adds the rows of all pairs of a target

    @classmethod
    def of(cls, arcs: Structure, kind_e: Tensor) -> "RelationArcs":
        """arcs: from source rows to target rows, those of each target sorted by kind_e."""
        kind_e, sources = kind_e.long(), max(1, arcs.num_cols)
        both_c, column_e = torch.unique(kind_e * sources + arcs.indices, return_inverse=True)
        columns = Groups.of(both_c // sources, both_c % sources)
        kinds = int(kind_e.max()) + 1 if len(kind_e) else 1
        both_p, count_p = torch.unique_consecutive(arcs.rows * kinds + kind_e, return_counts=True)
        target_p, first_p = both_p // kinds, torch.nn.functional.pad(count_p.cumsum(0), (1, 0))
        start_n = torch.searchsorted(target_p, torch.arange(arcs.num_rows + 1, device=target_p.device))
        return cls(
            columns,
            Structure(arcs.indptr, column_e.int(), len(both_c)),
            Structure(first_p, column_e.int(), len(both_c)),
            target_p,
            both_p % kinds,
            Adjacency(Structure(start_n, torch.arange(len(both_p), device=target_p.device).int(), len(both_p))),
        )

    def mapped(self, x_sI: Tensor, weight_GOI: Tensor, bias_GO: Tensor | None = None) -> Tensor:
        """W_r x_j + b_r of every column (j, r), [c, O]."""
        places = torch.arange(len(self.columns.rows), device=x_sI.device)
        out_cO = x_sI.new_zeros(len(places), weight_GOI.shape[1])
        groups = Groups(self.columns.kinds, self.columns.bounds, places)
        return add_grouped(out_cO, x_sI.index_select(0, self.columns.rows), weight_GOI, bias_GO, groups)


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
