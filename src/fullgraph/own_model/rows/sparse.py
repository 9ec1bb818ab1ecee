"""A sparse matrix of edges, `torch.sparse_coo_tensor(edge_index, values, (n, n))`, and its products with rows."""

from typing import Any

import torch
from torch import Tensor

from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.shapes import PAIRS
from fullgraph.own_model.rows.spaces import rows_of

MATRIX = (
    "{} makes a matrix of the graph in a form that is not understood; use torch.sparse_coo_tensor(edge_index, values, "
    "(n, n)) with n = x.size(0), or message passing, such as GCNConv, with edge_index and edge_weight"
)


class EdgeMatrix:
    """A[i, j] = sum of the values of edges (i, j); spread over the ranks like the edges."""

    is_sparse, is_sparse_csr, is_cuda, ndim = True, False, False, 2

    def __init__(self, ends: Tensor, values: Tensor, layout: torch.layout = torch.sparse_coo) -> None:
        """ends: an edge_index [2, e]. values: one number per edge. layout: that it has in one process."""
        self.ends, self.edge_values, self.layout = ends, values, layout
        self.dtype, self.device, self.requires_grad = values.dtype, values.device, values.requires_grad

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """isinstance(A, Tensor) holds, as PyG's spmm expects."""
        return Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in PRODUCTS and len(args) == 2 and isinstance(args[0], cls) and not kwargs:
            return args[0] @ args[1]
        refuse(f"{getattr(func, '__name__', func)} is given a sparse matrix of the graph; use its products with rows")

    def __matmul__(self, x: Any) -> Tensor:
        """y_i = sum over j of A[i, j] x_j"""
        if type(x) is EdgeMatrix:
            refuse("two sparse matrices of the graph are multiplied; multiply rows twice, A @ (A @ x)")
        rows = rows_of(x)
        if rows is None or rows.dim or rows.points is not None:
            refuse("a sparse matrix of the graph is multiplied with a tensor without a row per node; make it from x")
        row, col = self.ends[0], self.ends[1]
        messages = x.index_select(0, col) * self.edge_values.view(-1, *[1] * (x.dim() - 1))
        return torch.zeros_like(x).index_add(0, row, messages)

    matmul = mm = spmm = mv = __matmul__

    def __mul__(self, factor: Any) -> "EdgeMatrix":
        if isinstance(factor, Tensor) and factor.dim():
            refuse("a sparse matrix of the graph is multiplied by a tensor; multiply its values before")
        return EdgeMatrix(self.ends, self.edge_values * factor)

    __rmul__ = __mul__

    def t(self) -> "EdgeMatrix":
        return EdgeMatrix(self.ends.flip(0), self.edge_values)

    def transpose(self, first: int, second: int) -> "EdgeMatrix":
        return self.t() if first % 2 != second % 2 else self

    def coalesce(self) -> "EdgeMatrix":
        """Return the matrix unchanged: every product adds equal edges."""
        return self

    to_sparse = to_sparse_coo = coalesce

    def to_sparse_csr(self) -> "EdgeMatrix":
        return EdgeMatrix(self.ends, self.edge_values, torch.sparse_csr)

    def to_sparse_csc(self) -> "EdgeMatrix":
        return EdgeMatrix(self.ends, self.edge_values, torch.sparse_csc)

    def detach(self) -> "EdgeMatrix":
        return EdgeMatrix(self.ends, self.edge_values.detach())

    def to(self, *args: Any, **kwargs: Any) -> "EdgeMatrix":
        return EdgeMatrix(self.ends, self.edge_values.to(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_fullgraph"):  # it has no mark
            raise AttributeError(name)
        refuse(
            f"`.{name}` of a sparse matrix of the graph is not known over ranks; use its products with rows (A @ x), "
            "and give edge_index to layers"
        )


PRODUCTS = ("mm", "matmul", "__matmul__", "spmm", "_sparse_mm", "mv", "smm")


def made(indices: Any, values: Any, size: Any = None, **kwargs: Any) -> Any:
    """torch.sparse_coo_tensor for edges: return an EdgeMatrix; NotImplemented if no argument holds rows."""
    ends, rows = rows_of(indices), rows_of(values)
    if ends is None and rows is None:
        return NotImplemented
    if ends is None or ends.points not in PAIRS or ends.dim != 1 or rows is None or not rows.fits(ends.values):
        refuse(MATRIX.format("sparse_coo_tensor"))
    if values.dim() != 1:
        refuse(MATRIX.format("sparse_coo_tensor with several numbers per edge"))
    return EdgeMatrix(indices, values)
