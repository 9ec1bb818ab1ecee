"""Rules for operations on shapes: views, permutations, cuts, joins."""

import sys
from typing import Any

from torch import Tensor

from fullgraph.own_model.rows.follow import Op, Rule
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import PARTIAL, Ends, Even, Mark, Rows, Space, mark_of, moved, rows_of
from fullgraph.own_model.rows.values import POSITION, REVERSED, is_even, unknown

CUT = f"rows of nodes are taken by their position; {POSITION}"


def view(op: Op) -> Mark | None:
    what, before, after = mark_of(op.x), tuple(op.x.shape), tuple(op.out.shape)
    if isinstance(what, Rows):
        found = moved(before, after, what)
        if found is None and op.follow.writes and before[what.dim] == 1:
            return None
        if found is None:
            refuse(f"a view from {list(before)} to {list(after)} tears {op.what()} apart")
        if what.points in PAIRS and found.dim != 1:
            refuse(f"a view of edge_index mixes its two rows; {REVERSED}")
        return found
    if isinstance(what, Even):
        if len(what.dims) == len(before):
            return Even(tuple(range(len(after))), what.zero)
        dims = [found.dim for dim in what.dims if (found := moved(before, after, _any(before, dim))) is not None]
        return Even(tuple(dims)) if dims else None
    return what


def _any(shape: tuple[int, ...], dim: int) -> Rows:
    """A mark for rows of any set."""

    def none() -> Any:
        raise AssertionError("rows of no set have no ids")

    return Rows(Space("rows", shape[dim], ids=none, targets=none, edge_ids=none), dim)


def permuted(op: Op) -> Mark | None:
    what, rank = mark_of(op.x), op.x.dim()
    if what is PARTIAL or what is None:
        return what
    order = list(range(rank))
    if op.name == "permute":
        order = [dim % rank for dim in op.given["dims"]]
    elif rank > 1:
        a, b = (0, 1) if op.name == "t" else (op.dim("dim0", op.x), op.dim("dim1", op.x))
        order[a], order[b] = order[b], order[a]
    if isinstance(what, Even):
        return Even(tuple(order.index(dim) for dim in what.dims), what.zero)
    assert isinstance(what, Rows)
    if what.points in PAIRS:
        refuse(REVERSED)
    return what.at(order.index(what.dim))


def unsqueezed(op: Op) -> Mark | None:
    return _shifted(mark_of(op.x), op.given["dim"] % (op.x.dim() + 1))


def _shifted(what: Mark | None, new: int) -> Mark | None:
    if isinstance(what, Even):
        return Even((*(dim + (dim >= new) for dim in what.dims), new), what.zero)
    return what.at(what.dim + (what.dim >= new)) if isinstance(what, Rows) else what


def squeezed(op: Op) -> Mark | None:
    what, rank = mark_of(op.x), op.x.dim()
    given = op.given.get("dim")
    if given is None:
        dims = {dim for dim in range(rank) if op.x.shape[dim] == 1}
        if isinstance(what, Rows) and (what.dim in dims or op.x.shape[what.dim] == 0):
            dims -= {what.dim}
    else:
        dims = {dim % max(1, rank) for dim in ([given] if isinstance(given, int) else given)}
        dims = {dim for dim in dims if op.x.shape[dim] == 1}
    if isinstance(what, Rows):
        if op.out.dim() < rank - len(dims) or what.dim in dims:
            refuse(f"squeeze removes the dimension of {op.what()} where a rank has a single row; name other dimensions")
        return what.at(what.dim - sum(dim < what.dim for dim in dims))
    if what is PARTIAL:
        return what
    return Even(tuple(range(op.out.dim())), what.zero) if isinstance(what, Even) and len(what.dims) == rank else None


def expanded(op: Op) -> Mark | None:
    what, new = mark_of(op.x), op.out.dim() - op.x.dim()
    if isinstance(what, Rows):
        return what.at(what.dim + new)
    fresh = [dim for dim in range(op.out.dim()) if dim < new or op.x.shape[dim - new] == 1]
    kept = [dim + new for dim in what.dims] if isinstance(what, Even) else []
    dims = sorted({*fresh, *kept})
    return Even(tuple(dims)) if dims and what is not PARTIAL else what


def repeated(op: Op) -> Mark | None:
    rows, repeats = rows_of(op.x), op.given["repeats"]
    if rows is None:
        return None
    at = rows.dim + len(repeats) - op.x.dim()
    if repeats[at] == 1 or not rows.is_single:
        return rows.at(at) if repeats[at] == 1 else unknown(op)
    return Rows(op.follow.joined([rows.space] * repeats[at]), at, points=rows.points)


def cut(op: Op) -> Any:
    """slice, split, unbind, select along a dimension: columns may be cut, rows may not."""
    rows = rows_of(op.x)
    if rows is None:
        return None
    dim = op.dim("dim", op.x)
    if dim == rows.dim:
        if op.name == "slice" and not op.given["start"] and _ends(op.given["end"]) and op.given["step"] == 1:
            return rows
        refuse(CUT if rows.space.kind == "nodes" else CUT.replace("nodes are", "edges are"))
    drops = op.name in ("select", "unbind")
    after = rows.at(rows.dim - (drops and dim < rows.dim))
    if rows.points not in PAIRS:
        return after
    return _end_of(op, after)


def _ends(end: int | None) -> bool:
    return end is None or end == sys.maxsize


PAIRS = (Ends.BOTH, Ends.TURNED, Ends.EITHER)


def ends_of(pair: Any, edges: Space) -> tuple[Space | Ends, Space | Ends]:
    """The rows that an edge_index points to. Owned nodes come first among owned and halo nodes."""
    if edges.ends is None:
        refuse("edges of different relations are joined; use each relation by itself")
    targets = edges.ends[1]
    first = targets if pair is Ends.TURNED else Ends.SOURCES
    return first, targets if pair is Ends.BOTH else Ends.SOURCES


def _end_of(op: Op, rows: Rows) -> Any:
    """A row of edge_index: sources point to owned and halo nodes, targets to owned nodes."""
    edges = rows.space
    ends = [Rows(edges, 0, points=end) for end in ends_of(rows.points, edges)]
    if op.name == "unbind":
        return ends
    if op.name == "select":
        return ends[op.given["index"] % 2]
    if op.name == "slice" and op.out.shape[0] == 2:
        return rows
    if op.out.shape[:1] == (1,) and op.name == "slice":
        return Rows(edges, 1, points=ends[(op.given["start"] or 0) % 2].points)
    refuse("edge_index is cut in a way that is not understood; use edge_index[0], edge_index[1] or edge_index[:, some]")


def cat(op: Op) -> Mark | None:
    parts = [x for x in op.args[0] if x.numel() or x.dim() > 1 or rows_of(x) is not None]
    marks = [rows_of(x) for x in parts]
    if not any(marks):
        return None
    dim = op.given["dim"] % op.out.dim()
    at = next(rows for rows in marks if rows is not None)
    if dim != at.dim:
        return _side_by_side(op, parts, marks, at)
    if any(rows is None for rows in marks):
        refuse(f"cat puts {op.what()} behind rows that every rank has; {POSITION}")
    found = [rows for rows in marks if rows is not None]
    if not all(rows.is_single and rows.dim == dim for rows in found):
        unknown(op)
    space = op.follow.joined([rows.space for rows in found])
    return Rows(space, dim, 1, _points(op, [rows.points for rows in found], space))


def _points(op: Op, points: list[Space | Ends | None], joined: Space) -> Space | Ends | None:
    """The set that joined index tensors point into; refuse tensors that point into different sets."""
    source, target = joined.ends or (None, None)
    if any(isinstance(p, Ends) for p in points) and source is None:
        refuse(f"edges of different relations are joined ({op.name}); use each relation by itself")
    kinds = {p for p in points if p is not source or source is not target}
    if not kinds:
        return source
    if kinds <= set(PAIRS):
        return kinds.pop() if len(kinds) == 1 else Ends.EITHER
    if kinds == {Ends.SOURCES}:  # owned nodes are the first of them
        return Ends.SOURCES
    if len(kinds) == 1 and all(p in kinds for p in points):
        return kinds.pop()
    refuse(f"positions of nodes are mixed with numbers, or with other positions ({op.name}); {POSITION}")


def _side_by_side(op: Op, parts: list[Any], marks: list[Rows | None], at: Rows) -> Rows:
    for x, rows in zip(parts, marks, strict=True):
        if rows is None and not is_even(x, at.dim):
            refuse(f"{op.name} combines {op.what()} with a tensor that has a row per position; {POSITION}")
        if rows is not None and (rows.dim != at.dim or not rows.fits(at)):
            refuse(f"{op.name} puts different rows side by side")
    points = {rows.points for rows in marks if rows is not None}
    if len(points) > 1:
        refuse(f"sources and targets of edges are mixed ({op.name}); {REVERSED}")
    return at


def stack(op: Op) -> Mark | None:
    parts = list(op.args[0])
    marks = [rows_of(x) for x in parts]
    if not any(marks):
        return None
    new = op.given["dim"] % op.out.dim()
    points = [rows.points if rows is not None else None for rows in marks]
    if Ends.SOURCES in points:
        edges = marks[0].space if marks[0] is not None else None
        pair = next((pair for pair in PAIRS if edges and points == list(ends_of(pair, edges))), None)
        if pair is None or new or marks[0] is None or marks[1] is None or not marks[0].values.fits(marks[1].values):
            refuse(f"ends of edges are stacked in a way that is not understood; {REVERSED}")
        return Rows(marks[0].space, 1, points=pair)
    at = _side_by_side(op, parts, marks, next(rows for rows in marks if rows is not None))
    return at.at(at.dim + (at.dim >= new))


def padded(op: Op) -> Mark | None:
    rows = rows_of(op.x)
    if rows is None:
        return None
    pad = op.given["pad"]
    at = op.x.dim() - 1 - rows.dim
    if any(pad[2 * at : 2 * at + 2]):
        refuse(f"pad adds rows to {op.what()}; every rank would add them to its own")
    return rows


def set_to(op: Op) -> Mark | None:
    """x.set_(y): x becomes y."""
    source = op.given.get("source")
    if not isinstance(source, Tensor):
        refused_view(op)
    return mark_of(source)


def refused_view(op: Op) -> None:
    if rows_of(op.x) is not None:
        refuse(f"{op.name} is not known to keep {op.what()} apart")


SHAPES: dict[str, Rule] = {
    **dict.fromkeys(("view", "_unsafe_view", "_reshape_alias", "reshape"), view),
    **dict.fromkeys(("permute", "transpose", "t"), permuted),
    "unsqueeze": unsqueezed,
    "squeeze": squeezed,
    "expand": expanded,
    "repeat": repeated,
    **dict.fromkeys(("slice", "select", "unbind", "split", "split_with_sizes", "unsafe_split", "chunk"), cut),
    "unsafe_split_with_sizes": cut,
    "cat": cat,
    "stack": stack,
    "constant_pad_nd": padded,
    "set": set_to,
    **dict.fromkeys(("as_strided", "resize", "unfold", "diagonal"), refused_view),
}
