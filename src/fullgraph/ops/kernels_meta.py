"""Operations on torch's `meta` device, where tensors have shapes but no numbers.

Nothing is computed. A listener can count the work: each operation reports its kind and its sizes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from fullgraph.ops.operands import GateGrads, Gates, PairGrads, Pairs
from fullgraph.ops.structure import Adjacency, Structure

# Shapes as in kernels.py.

Tell = Callable[[str, tuple[int, ...]], None]
_listener: ContextVar[Tell | None] = ContextVar("listener", default=None)


@contextmanager
def listening(tell: Tell) -> Iterator[None]:
    """While the block runs, `tell` receives every operation: `product` (rows, arcs, columns), and the others below."""
    token = _listener.set(tell)
    try:
        yield
    finally:
        _listener.reset(token)


def _tell(kind: str, *sizes: int) -> None:
    tell = _listener.get()
    if tell is not None:
        tell(kind, sizes)


def spmm(adj: Adjacency, x_CD: Tensor, out_RD: Tensor, add: bool) -> None:
    _tell("product", adj.shape[0], adj.structure.num_arcs, x_CD.shape[1])


def spmm_heads(s: Structure, perm_E: Tensor | None, alpha_EH: Tensor, x_CHD: Tensor) -> Tensor:
    _tell("product", s.num_rows, s.num_arcs, x_CHD.shape[1] * x_CHD.shape[2])
    return x_CHD.new_empty(s.num_rows, *x_CHD.shape[1:])


def arc_dot(s: Structure, left_RHD: Tensor, right_CHD: Tensor) -> Tensor:
    _tell("product", s.num_rows, s.num_arcs, left_RHD.shape[1] * left_RHD.shape[2])
    return left_RHD.new_empty(s.num_arcs, left_RHD.shape[1])


def arc_add(s: Structure, row_RH: Tensor, col_CH: Tensor) -> Tensor:
    return _of_arcs(s, row_RH)


def arc_sum(s: Structure, perm_E: Tensor | None, values_EH: Tensor) -> Tensor:
    _tell("arcs", s.num_arcs, values_EH.shape[1])
    return values_EH.new_empty(s.num_rows, values_EH.shape[1])


def softmax(s: Structure, scores_EH: Tensor) -> Tensor:
    return _of_arcs(s, scores_EH)


def softmax_grad(s: Structure, alpha_EH: Tensor, grad_EH: Tensor) -> Tensor:
    return _of_arcs(s, grad_EH)


def _of_arcs(s: Structure, like: Tensor) -> Tensor:
    _tell("arcs", s.num_arcs, like.shape[1])
    return like.new_empty(s.num_arcs, like.shape[1])


def pairs(s: Structure, p: Pairs) -> tuple[Tensor, Tensor]:
    for _ in range(2):
        _tell("product", s.num_rows, s.num_arcs, p.col.shape[1] * p.col.shape[2])
    return torch.empty_like(p.row), p.col.new_empty(s.num_arcs, p.col.shape[1])


def pairs_grad(s: Structure, p: Pairs, y_RHD: Tensor, state: Tensor, grad_RHD: Tensor) -> PairGrads:
    for _ in range(4):
        _tell("product", s.num_rows, s.num_arcs, p.col.shape[1] * p.col.shape[2])
    return PairGrads(*(None if t is None else torch.empty_like(t) for t in p[:5]))  # type: ignore[arg-type]


def gated(s: Structure, g: Gates) -> Tensor:
    _tell("product", s.num_rows, s.num_arcs, g.col.shape[1])
    return g.col.new_empty(s.num_rows, g.col.shape[1])


def gated_grad(s: Structure, g: Gates, grad_RD: Tensor) -> GateGrads:
    for _ in range(2):
        _tell("product", s.num_rows, s.num_arcs, g.col.shape[1])
    edge = torch.empty_like(g.edge) if g.edge is not None and g.edge_grad else None
    col, row, value, gate, extra = (None if t is None else torch.empty_like(t) for t in (*g[:3], *g[4:6]))
    assert col is not None
    return GateGrads(col, row, value, edge, gate, extra)


def arc_max(s: Structure, x_CD: Tensor) -> tuple[Tensor, Tensor]:
    _tell("product", s.num_rows, s.num_arcs, x_CD.shape[1])
    out = x_CD.new_empty(s.num_rows, x_CD.shape[1])
    return out, torch.empty_like(out)


def arc_max_grad(s: Structure, x_CD: Tensor, y_RD: Tensor, share_RD: Tensor) -> Tensor:
    for _ in range(2):
        _tell("product", s.num_rows, s.num_arcs, x_CD.shape[1])
    return torch.empty_like(x_CD)


def dropout(x_nD: Tensor, ids_n: Tensor, key: int, p: float, relu: bool) -> Tensor:
    _tell("dropout", x_nD.numel())
    return torch.empty_like(x_nD)


def relu_dropout_grad(grad_nD: Tensor, y_nD: Tensor, p: float) -> Tensor:
    _tell("pass", 3 * grad_nD.nbytes)
    return torch.empty_like(grad_nD)


def dropout_arcs(s: Structure, ids_R: Tensor, values_E: Tensor, key: int, p: float) -> Tensor:
    _tell("dropout", values_E.numel())
    return torch.empty_like(values_E)


def add_rows(out_nD: Tensor, rows_k: Tensor, values_kD: Tensor) -> None:
    _tell("rows", values_kD.shape[0], values_kD.shape[1])


def lowbit_encode(x_nD: Tensor, key: int, bits: int, wire_nW: Tensor) -> None:
    _tell("encode", x_nD.numel(), bits)


def lowbit_decode(wire_nW: Tensor, bits: int, out_nD: Tensor) -> None:
    _tell("decode", out_nD.numel(), bits)
