"""Rules for operations that read or write by an index: x[mask], x[index], gather, scatter, index_add."""

from typing import Any

import torch
from torch import Tensor

from fullgraph.own_model.rows.follow import Op, Rule
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.shapes import CUT
from fullgraph.own_model.rows.spaces import PARTIAL, Ends, Even, Mark, Rows, Space, mark_of, rows_of
from fullgraph.own_model.rows.values import POSITION, REVERSED, TURNS, is_even, unknown

BY_FREQUENCY = (
    "{} divides gradients by how often a row of the table is read, which one rank cannot count; leave out "
    "scale_grad_by_freq=True"
)
TABLE = "rows of a table are read by positions of nodes"
BY_SOURCE = "the model writes rows by the sources of edges; use index_add, scatter_add or scatter_reduce"
ADDS = ("scatter_add", "index_add")


def index(op: Op) -> Mark | None:
    """x[indices]; some indices may be None."""
    x, indices = op.args[0], op.args[1]
    used = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if any(i.dtype == torch.bool and i.dim() > 1 for _, i in used):
        refuse(f"single numbers are chosen from {op.what()} by a mask; multiply with the mask, or use torch.where")
    if len(used) > 1:
        return _several(op, x, used)
    dim, chosen = used[0]
    return read(op, x, dim, chosen)


def read(op: Op, x: Tensor, dim: int, chosen: Tensor) -> Mark | None:
    """Entries of x along one dimension, chosen by a mask or an index."""
    rows, by = rows_of(x), rows_of(chosen)
    if rows is not None and rows.dim != dim:
        if by is not None or chosen.dim() > 1:
            unknown(op)
        if rows.points in TURNS:
            refuse(f"ends of edges are chosen by an index; {REVERSED}")
        return rows
    if by is None:
        return refuse(CUT) if rows is not None else None
    if chosen.dtype == torch.bool:
        if rows is None or not rows.is_single or by.dim or not by.space.is_like(rows.space):
            refuse(CUT)
        return Rows(op.follow.picked(rows.space, chosen, op.out.shape[dim]), dim, 1, rows.points)
    if not by.is_single:
        unknown(op)
    if isinstance(by.points, Ends):
        refuse(f"rows are read by the sources of edges in {op.name}; use x[source]")
    if by.points is not None:
        _check_table(op, x, dim, rows, by.points)
        return Rows(by.space, dim + by.dim, by.each, rows.points if rows is not None else None)
    if rows is not None:
        refuse(CUT)
    return Rows(by.space, dim + by.dim, by.each)


def _check_table(op: Op, x: Tensor, dim: int, rows: Rows | None, points: Space) -> None:
    """Allow positions to index only rows of the set that they point into."""
    if rows is None and not (is_even(x, dim) and x.shape[dim] == points.size):
        refuse(f"{TABLE}; {POSITION}")
    if rows is not None and (not rows.is_single or not rows.space.is_like(points)):
        refuse(f"positions among {points.kind} are looked up in other rows ({op.name})")


def _several(op: Op, x: Tensor, used: list[tuple[int, Tensor]]) -> Mark | None:
    """x[i, j]: every index has one entry for each row of the same set, as in x[torch.arange(n), y]."""
    rows, marks = rows_of(x), [rows_of(i) for _, i in used]
    if rows is None and not any(marks):
        return None
    if not all(mark is not None and not mark.dim and i.dim() == 1 for mark, (_, i) in zip(marks, used, strict=True)):
        unknown(op)
    found = [mark for mark in marks if mark is not None]
    if any(not mark.space.is_like(found[0].space) for mark in found) or any(i.dtype == torch.bool for _, i in used):
        unknown(op)
    for (dim, _), mark in zip(used, found, strict=True):
        own = rows is not None and rows.dim == dim
        if own and (not isinstance(mark.points, Space) or not mark.points.is_like(rows.space)):  # type: ignore[union-attr]
            refuse(CUT)
        if not own and mark.points is not None:
            refuse(f"{TABLE}; {POSITION}")
    if rows is not None and rows.dim not in dict(used):
        unknown(op)
    return Rows(found[0].space, used[0][0])


def index_select(op: Op) -> Mark | None:
    return read(op, op.x, op.dim("dim", op.x), op.given["index"])


def embedding(op: Op) -> Mark | None:
    if rows_of(op.given["weight"]) is not None:
        unknown(op)
    if op.given.get("scale_grad_by_freq"):
        refuse(BY_FREQUENCY.format(op.name))
    if op.given.get("sparse"):
        refuse(f"{op.name} gives sparse gradients, which are not summed over ranks; leave out sparse=True")
    return read(op, op.given["weight"], 0, op.given["indices"])


def gather(op: Op) -> Mark | None:
    x, dim, chosen = op.x, op.dim("dim", op.x), op.given["index"]
    rows, by = rows_of(x), rows_of(chosen)
    if by is not None and by.dim == dim:
        if isinstance(by.points, Ends):
            refuse(f"rows are read by the sources of edges in {op.name}; use x[source]")
        if by.points is None:
            return refuse(CUT) if rows is not None else by
        _check_table(op, x, dim, rows if rows is None or rows.dim == dim else None, by.points)
        return Rows(by.space, dim)
    at = by if by is not None else rows
    if at is None or at.dim == dim:
        return refuse(CUT) if at is not None else None
    for tensor, mark in ((x, rows), (chosen, by)):
        fits = is_even(tensor, at.dim) if mark is None else mark.dim == at.dim and mark.fits(at)
        if not fits or (mark is not None and mark.points is not None):
            refuse(f"gather combines {op.what()} with a tensor that has a row per position; {POSITION}")
    return at


def nonzero(op: Op) -> Mark | None:
    rows = rows_of(op.x)
    if rows is None:
        return None
    if op.x.dim() != 1 or not rows.is_single:
        refuse(f"positions of single numbers among {op.what()} are asked for; use a mask of one number per row")
    return Rows(op.follow.picked(rows.space, op.out[:, 0], len(op.out)), 0, 1, rows.space)


def masked_select(op: Op) -> Mark | None:
    if op.x.dim() != 1:
        refuse(f"single numbers are chosen from {op.what()} by a mask; multiply with the mask, or use torch.where")
    return read(op, op.x, 0, op.given["mask"])


def scatter(op: Op) -> Mark | None:
    """Write, add or reduce rows into other rows, by an index along one dimension."""
    x, dim, chosen = op.x, op.dim("dim", op.x), op.given["index"]
    source = next((op.given[name] for name in ("src", "source", "value") if op.given.get(name) is not None), None)
    by = rows_of(chosen)
    by_row = op.name.startswith("index")  # the index has one dimension, `dim` of the other tensors
    if by is None:
        return _by_groups(op, x, dim, chosen, source, by_row)
    at = dim if by_row else by.dim
    if not by.is_single:
        unknown(op)
    if isinstance(by.points, Ends):
        refuse(f"{op.name} writes rows by the sources of edges; use index_add, scatter_add or scatter_reduce")
    if at != dim:
        return _along_columns(op, x, chosen, source, by)
    if isinstance(source, Tensor) and source.dim():
        _check_fits(op, source, at, by)
    if by.points is None:
        return _summed(op, x)
    _check_written(op, x, dim, by.points)
    return Rows(by.points, dim)


def _check_fits(op: Op, source: Tensor, at: int, by: Rows) -> None:
    rows = rows_of(source)
    if rows is None and not is_even(source, at):
        refuse(f"{op.name} combines {op.what()} with a tensor that has a row per position; {POSITION}")
    if rows is not None and (rows.dim != at or not rows.fits(by)):
        refuse(f"{op.name} is given an index and rows of different sets")


def _check_written(op: Op, x: Tensor, dim: int, points: Space) -> None:
    rows = rows_of(x)
    if rows is None and not (is_even(x, dim) and x.shape[dim] == points.size):
        refuse(f"{op.name} writes rows of {points.kind} into a tensor that every rank holds; use a tensor made of rows")
    if rows is not None and (rows.dim != dim or not rows.is_single or not rows.space.is_like(points)):
        refuse(f"{op.name} writes to other rows than its index points to")


def _by_groups(op: Op, x: Tensor, dim: int, chosen: Tensor, source: Any, by_row: bool) -> Mark | None:
    """Handle an index that is equal on every rank, or that is the same number everywhere."""
    target, rows = rows_of(x), rows_of(source) if isinstance(source, Tensor) else None
    if target is None and rows is None:
        return None
    if rows is not None and rows.dim == dim and is_even(chosen, 0 if by_row else dim):
        return _summed(op, x)
    at = target or rows
    if at is None or at.dim == dim or not (by_row or is_even(chosen, at.dim)):
        refuse(CUT)
    if rows is None or target is None or rows.dim != target.dim or not rows.space.is_like(target.space):
        unknown(op)
    return target


def _along_columns(op: Op, x: Tensor, chosen: Tensor, source: Any, by: Rows) -> Mark:
    """Handle an index within each row, as in zeros(n, C).scatter(1, y[:, None], 1)."""
    for tensor in (x, source):
        if isinstance(tensor, Tensor) and tensor.dim():
            _check_fits(op, tensor, by.dim, by)
    if by.points is not None:
        refuse(f"{TABLE}; {POSITION}")
    return by


def _summed(op: Op, x: Tensor) -> Mark:
    """Rows summed by groups that are equal on every rank, such as classes: a share of a sum over all ranks."""
    what = mark_of(x)
    adds = op.name in ADDS or op.given.get("reduce") == "sum"
    if not adds or not isinstance(what, Even) or not what.zero:
        refuse(f"{op.name} over {op.what()} by groups; add into zeros (index_add, scatter_add), and divide by a count")
    return PARTIAL


def index_put(op: Op) -> Mark | None:
    """x[indices] = values."""
    x, used = op.x, [(dim, i) for dim, i in enumerate(op.given["indices"]) if i is not None]
    target, values = mark_of(x), op.given["values"]
    if len(used) != 1:
        return unknown(op) if op.marked else target
    dim, chosen = used[0]
    by = rows_of(chosen)
    if by is None:
        if op.marked and not (isinstance(target, Rows) and target.dim != dim and rows_of(values) is None):
            refuse(CUT)
        return None if isinstance(target, Even) else target
    if isinstance(by.points, Ends) or (chosen.dtype != torch.bool and by.points is None):
        refuse(BY_SOURCE if by.points else CUT)
    written = by.space if chosen.dtype == torch.bool else by.points
    assert isinstance(written, Space)
    _check_written(op, x, dim, written)
    if (values.dim() and values.shape[0] != 1) or rows_of(values) is not None:
        mark = rows_of(values)
        within = op.follow.picked(written, chosen, int(chosen.sum())) if chosen.dtype == torch.bool else by.space
        if (mark is None and not is_even(values, 0)) or (mark is not None and not mark.space.is_like(within)):
            refuse(
                f"{op.name} writes other rows than its index points to; make the values of rows, such as "
                "h[mask] or torch.rand(x.size(0))[mask]"
            )
    return Rows(written, dim, 1, target.points if isinstance(target, Rows) else None)


def bincount(op: Op) -> Mark | None:
    rows = rows_of(op.x)
    if rows is None:
        unknown(op)
    if not isinstance(rows.points, Space) or len(op.out) != rows.points.size:
        refuse("bincount over rows of all ranks; add ones into zeros with index_add")
    return Rows(rows.points, 0)


def isin(op: Op) -> Mark | None:
    """Whether each row is among numbers that every rank has."""
    rows = rows_of(op.given.get("elements"))
    if op.marked and (rows is None or rows.points is not None or len(op.marked) > 1):
        unknown(op)
    return rows


def bucketize(op: Op) -> Mark | None:
    bounds = op.given["sorted_sequence" if op.name == "searchsorted" else "boundaries"]
    if rows_of(bounds) is not None:
        unknown(op)
    return rows_of(op.given["self"])


INDEXING: dict[str, Rule] = {
    "index": index,
    "index_select": index_select,
    "embedding": embedding,
    "gather": gather,
    "nonzero": nonzero,
    "masked_select": masked_select,
    **dict.fromkeys(
        ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_reduce", "index_fill"), scatter
    ),
    **dict.fromkeys(("index_put", "_index_put_impl"), index_put),
    "bincount": bincount,
    "isin": isin,
    **dict.fromkeys(("bucketize", "searchsorted"), bucketize),
}
