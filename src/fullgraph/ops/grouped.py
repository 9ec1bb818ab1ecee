"""Products of rows with one matrix per group: rows by relation, or by node type; and attention's arcs by relation.

Legend: m input rows, n output rows, s grouped rows, g of one group; G matrices, I in, O out features; e arcs, c pairs
of a source and a relation, p pairs of a target and a relation.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgraph.ops.rows import add_rows
from fullgraph.ops.structure import Adjacency, Structure


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of rows: group g is the rows bounds[g] .. bounds[g+1]-1, its matrix has the number kinds[g].

    Row s has the number rows[s] among other rows; the numbers in one group are distinct.
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
        """arcs: from source rows to target rows; the arcs of a target are sorted by kind_e."""
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

    def mapped(self, x_mI: Tensor, weight_GOI: Tensor, bias_GO: Tensor | None = None) -> Tensor:
        """W_r x_j + b_r of every column (j, r), [c, O]."""
        out_cO = x_mI.new_zeros(len(self.columns.rows), weight_GOI.shape[1])
        return add_grouped(out_cO, x_mI, weight_GOI, bias_GO, self.columns, gathers=True, scatters=False)


def add_grouped(
    base_nO: Tensor, x_mI: Tensor, weight_GOI: Tensor, bias_GO: Tensor | None, groups: Groups, *,
    gathers: bool, scatters: bool,
) -> Tensor:  # fmt: skip
    """base[i] += W_g x[j] + b_g  for every row s of every group g; `base` is updated in place and returned.

    i = rows[s] if the groups' rows scatter, else s;  j = rows[s] if they gather, else s.
    """
    y: Tensor = _AddGrouped.apply(base_nO, x_mI, weight_GOI, bias_GO, groups, gathers, scatters)  # type: ignore[no-untyped-call]
    return y


class _AddGrouped(torch.autograd.Function):
    """dx[j] += W_g^T dy[i],   dW_g = sum over s of dy[i] x[j]^T,   db_g = sum of dy[i],   dbase = dy.

    Numbers of a group are distinct, so that sums have the same order on every device.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, base_nO: Tensor, x_mI: Tensor, weight_GOI: Tensor, bias_GO: Tensor | None, groups: Groups,
        gathers: bool, scatters: bool,
    ) -> Tensor:  # fmt: skip
        ctx.how = groups, gathers, scatters  # type: ignore[attr-defined]
        ctx.save_for_backward(x_mI, weight_GOI)
        ctx.mark_dirty(base_nO)
        for kind, span in groups.spans():
            x_gI, weight_IO = _read(x_mI, groups, span, gathers), weight_GOI[kind].t()
            y_gO = x_gI @ weight_IO if bias_GO is None else torch.addmm(bias_GO[kind], x_gI, weight_IO)
            _add(base_nO, groups, span, scatters, y_gO)
        return base_nO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nO: Tensor) -> tuple[Tensor | None, ...]:
        (x_mI, weight_GOI), (groups, gathers, scatters) = ctx.saved_tensors, ctx.how
        _, of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        grad_mI = x_mI.new_zeros(x_mI.shape) if of_x else None
        grad_GOI = torch.zeros_like(weight_GOI) if of_weight else None
        grad_GO = weight_GOI.new_zeros(weight_GOI.shape[:2]) if of_bias else None
        for kind, span in groups.spans():
            grad_gO = _read(grad_nO, groups, span, scatters)
            if grad_mI is not None:
                _add(grad_mI, groups, span, gathers, grad_gO @ weight_GOI[kind])
            if grad_GOI is not None:
                torch.mm(grad_gO.t(), _read(x_mI, groups, span, gathers), out=grad_GOI[kind])
            if grad_GO is not None:
                grad_GO[kind] = grad_gO.sum(0)
        return grad_nO, grad_mI, grad_GOI, grad_GO, None, None, None


def _read(x_mD: Tensor, groups: Groups, span: slice, by_number: bool) -> Tensor:
    return x_mD.index_select(0, groups.rows[span]) if by_number else x_mD[span]


def _add(out_nD: Tensor, groups: Groups, span: slice, by_number: bool, rows_gD: Tensor) -> None:
    """Add the rows of one group to theirs among others."""
    if by_number:
        add_rows(out_nD, groups.rows[span], rows_gD)
    else:
        out_nD[span] += rows_gD
