"""Rules for operations on values: number by number, along one dimension, row by row, products of matrices."""

from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from fullgraph.own_model.rows.follow import Op, Rule
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import PARTIAL, Ends, Even, Mark, Rows, mark_of, rows_of

REVERSED = "turn edges around with edge_index.flip(0) or edge_index[[1, 0]], or add the reverse edges to the graph"
TURNS: dict[Any, Ends] = {Ends.BOTH: Ends.TURNED, Ends.TURNED: Ends.BOTH, Ends.EITHER: Ends.EITHER}
EQUALITIES, ORDERS = ("eq", "ne"), ("lt", "le", "gt", "ge", "maximum", "minimum")
POSITION = (
    "each rank has other nodes at these positions; choose rows by a mask made of node inputs (x, node_id, a field of "
    "the graph), and keep numbers of a node in the graph"
)


def pointwise(op: Op) -> Mark | None:
    """Number by number, with broadcasting: all arguments must hold the same rows, in the same dimension from the
    right.
    """
    if not op.marked:
        return _evenly(op)
    first, rows = op.marked[0]
    at = rows.dim - first.dim()
    for x, other in op.marked[1:]:
        if other.dim - x.dim() != at:
            refuse(f"{op.name} pairs {op.what()} with each other; every rank has only its own rows")
        if not other.fits(rows):
            refuse(f"{op.name} combines different rows: {rows.space.kind} with other {other.space.kind}")
    for x in op.tensors:
        if x.dim() >= -at and x.shape[at] != 1 and not is_even(x, at):
            refuse(f"{op.name} combines {op.what()} with a tensor that has a row per position; {POSITION}")
    out: Tensor = op.out
    if out.shape != torch.broadcast_shapes(*(x.shape for x in op.tensors)):
        refuse(f"{op.name} takes a mean or sum over {op.what()}; use reduction='none', and sum in a line of its own")
    return _pointing(op, rows.at(out.dim() + at))


def loss(op: Op) -> Any:
    """A loss per number, or per row's class."""
    if op.given["reduction"]:
        refuse(
            f"{op.name} takes a mean or sum over {op.what()}; use reduction='none', and the mean in a line of its own"
        )
    if op.name != "nll_loss_forward":
        return pointwise(op)
    rows, classes = rows_of(op.x), rows_of(op.given["target"])
    if rows is None or rows.dim or classes is None or classes.points is not None or not classes.fits(rows):
        unknown(op)
    return [rows, None]


def _evenly(op: Op) -> Even | None:
    """Dimensions that are even in all arguments are even in the result."""
    marks = [mark_of(x) for x in op.tensors if x.dim()]
    if not marks or not all(isinstance(m, Even) for m in marks) or len({x.shape for x in op.tensors if x.dim()}) > 1:
        return None
    dims = set.intersection(*(set(m.dims) for m in marks if isinstance(m, Even)))
    return Even(tuple(sorted(dims))) if dims else None


def _pointing(op: Op, rows: Rows) -> Rows:
    """Allow positions of nodes to be compared with each other and copied; other numbers from them differ by rank."""
    points = {mark.points for _, mark in op.marked}
    if points == {None}:
        return rows
    if op.name in (*EQUALITIES, *ORDERS):
        if len(op.marked) < 2 or None in points:
            refuse(f"{op.name} compares positions of nodes with numbers; {POSITION}")
        if op.name in ORDERS:
            refuse(f"{op.name} asks for an order of nodes; every rank has its own: compare node_id, a model input")
        return rows.values
    if len(points) == 1 and op.name in ("clone", "copy", "where", "detach", "alias", "_to_copy"):
        if op.out.is_floating_point():
            refuse(f"positions of nodes become numbers of the model ({op.name}); {POSITION}")
        return rows
    if op.name in ("where", "masked_fill") and op.marked[0][1].points is None:
        refuse(f"{op.name} mixes positions of nodes with numbers; {POSITION}")
    if op.name == "isnan":
        return rows.values
    refuse(f"{op.name} computes with positions of nodes; {POSITION}")


def log_sigmoid(op: Op) -> list[Mark | None]:
    """log_sigmoid returns its result and a buffer for its backward pass, which is empty on some devices."""
    rows = rows_of(op.x)
    return [rows if out.shape == op.x.shape else None for out in op.out]


def is_even(x: Tensor, dim: int) -> bool:
    """Whether x fits rows of any set along a dimension."""
    what = mark_of(x)
    if isinstance(what, Rows):
        return what.dim == dim % x.dim()
    return isinstance(what, Even) and dim % x.dim() in what.dims


def same(op: Op) -> Mark | None:
    """A copy."""
    what = mark_of(op.x)
    if isinstance(what, Rows) and what.points is not None and op.out.is_floating_point():
        refuse(f"positions of nodes become numbers of the model ({op.name}); {POSITION}")
    return what


def filled(op: Op) -> Mark | None:
    """One number everywhere, in the shape of another tensor or in a given shape."""
    zero = op.name in ("zeros", "new_zeros", "zeros_like", "zero")
    whole = Even(tuple(range(op.out.dim())), zero)
    rows = rows_of(op.x) if op.name.endswith("_like") or op.name in ("zero", "fill") else None
    return rows.values if rows is not None and op.out.shape == op.x.shape else whole


def along(op: Op) -> Any:
    """Sums, extremes, sorting, softmax along some dimensions, or all; these must not include rows."""
    x = op.x
    rows = rows_of(x)
    if rows is None or len(op.marked) > 1:
        return None if not op.marked else unknown(op)
    dims = _dims(op, x)
    if rows.points in TURNS and op.name == "flip" and dims == {0}:
        return replace(rows, points=TURNS[rows.points])
    if rows.dim in dims:
        if op.name in ("sum", "nansum", "count_nonzero") and rows.points is None:
            return PARTIAL
        refuse(f"{op.name} along {op.what()} mixes the rows of all ranks; {_way_out(op.name)}")
    if rows.points is not None:
        refuse(f"{op.name} computes with positions of nodes; {POSITION}")
    outs = list(op.out if isinstance(op.out, tuple | list) else [op.out])
    kept = outs[0].dim() == x.dim()
    return rows.at(rows.dim if kept else rows.dim - sum(dim < rows.dim for dim in dims))


def _dims(op: Op, x: Tensor) -> set[int]:
    given = op.given.get("dim", op.given.get("dims"))
    if (op.name == "aminmax" and given is None) or given is None or given == []:
        return set(range(x.dim()))
    return {dim % max(1, x.dim()) for dim in ([given] if isinstance(given, int) else given)}


def _way_out(name: str) -> str:
    if name in ("sort", "topk", "argsort", "kthvalue", "median", "nanmedian", "mode", "argmax", "argmin", "cumsum",
                "cumprod", "cummax", "cummin", "logcumsumexp", "flip", "roll"):  # fmt: skip
        return "there is no order of nodes over ranks: compute it before training, as a node input"
    return "use mean, sum, max, min, std, var, norm or softmax over nodes, which are taken over all ranks"


def unknown(op: Op) -> NoReturn:
    refuse(f"{op.name} is not known to work on {op.what()} of one rank alone when it is called like this")


def first(op: Op) -> Any:
    """Row by row along dimension 0: convolutions of short sequences, recurrent cells, pooling of features."""
    if op.name in ("convolution", "native_group_norm") and any(x is not op.x for x, _ in op.marked):
        refuse(f"{op.name} takes {op.what()} for weights; every rank has only its own rows")
    if any(rows.dim or rows.points for _, rows in op.marked):
        refuse(f"{op.name} mixes {op.what()}; every rank has only its own rows")
    if op.given.get("dropout_p"):
        refuse(f"{op.name} draws numbers for {op.what()}, which depend on the number of ranks; use F.dropout")
    rows = op.marked[0][1]
    if any(not rows.fits(other) for _, other in op.marked):
        unknown(op)
    if op.name.startswith("_scaled") and any(x.dim() and x.shape[0] != 1 and not is_even(x, 0) for x in op.tensors):
        unknown(op)  # attention of rows to a tensor with one row per position
    outs = op.out if isinstance(op.out, tuple | list) else [op.out]
    return [rows if isinstance(o, Tensor) and o.dim() and o.shape[0] == op.x.shape[0] else None for o in outs]


def layer_norm(op: Op) -> Any:
    rows = rows_of(op.x)
    if rows is None or rows.dim >= op.x.dim() - len(op.given["normalized_shape"]):
        refuse(f"a norm over {op.what()} mixes the rows of all ranks; use BatchNorm, or LayerNorm of each row")
    return [rows, rows, rows]


def product(op: Op) -> Mark | None:
    """mm, mv, bmm, addmm, baddbmm:  rows times a matrix are rows; a sum over rows is a share of a sum."""
    a, b = [x for x in (op.given.get(n) for n in ("self", "mat1", "batch1", "input", "mat2", "batch2", "vec", "other",
                        "tensor")) if isinstance(x, Tensor)][-2:]  # fmt: skip
    bias = op.given["self"] if op.name.startswith(("add", "badd")) else None
    left, right = rows_of(a), rows_of(b)
    if any(rows is not None and rows.points is not None for rows in (left, right)):
        refuse(f"{op.name} computes with positions of nodes; {POSITION}")
    summed = a.dim() - 1, max(0, b.dim() - 2)
    if (left is not None and left.dim == summed[0]) or (right is not None and right.dim == summed[1]):
        return _contracted(op, a, b, left, right, bias)
    place: Rows | None = left
    if right is not None:
        moved = right if right.dim < b.dim() - 2 else right.at(op.out.dim() - 1)
        if place is not None and place.dim != moved.dim:
            refuse(f"{op.name} compares {op.what()} with each other, pair by pair; every rank has only its own rows")
        if place is not None and not place.fits(moved):
            unknown(op)
        place = moved
    assert place is not None
    for x in (a, b):
        batch = x.dim() == 3 and place.dim == 0 and rows_of(x) is None
        if batch and x.shape[0] != 1 and not is_even(x, 0):
            refuse(f"{op.name} combines {op.what()} with a tensor that has a row per position; {POSITION}")
    return place


def _contracted(op: Op, a: Tensor, b: Tensor, left: Rows | None, right: Rows | None, bias: Tensor | None) -> Mark:
    if left is None or right is None:
        other = b if left is not None else a
        if not is_even(other, max(0, b.dim() - 2) if left is not None else a.dim() - 1):
            refuse(f"{op.name} sums {op.what()} with weights that have an entry per position; {POSITION}")
    elif left.dim != a.dim() - 1 or right.dim != max(0, b.dim() - 2) or not left.fits(right):
        refuse(f"{op.name} compares {op.what()} with each other, pair by pair; every rank has only its own rows")
    if bias is not None:
        refuse(f"{op.name} adds a bias to a sum over {op.what()}; write the product and the sum in two lines")
    return PARTIAL


def linear(op: Op) -> Mark | None:
    rows = rows_of(op.x)
    if rows is None or rows.dim == op.x.dim() - 1:
        refuse(f"linear sums {op.what()} with weights that have an entry per position; {POSITION}")
    return rows


def distances(op: Op) -> Mark | None:
    """Distances of rows to points that are equal on every rank."""
    a, b = op.args[0], op.args[1]
    if rows_of(b) is not None:
        refuse(f"{op.name} compares {op.what()} with each other, pair by pair; every rank has only its own rows")
    return rows_of(a)


def renorm(op: Op) -> Mark | None:
    """Each row separately, if `dim` is the dimension of the rows."""
    rows = rows_of(op.x)
    if rows is None or rows.dim != op.dim("dim", op.x):
        refuse(f"renorm mixes {op.what()}; scale with a norm over nodes, h.norm(dim=0)")
    return rows


def transformed(op: Op) -> Mark | None:
    """Fourier transforms along dimensions other than that of the rows."""
    rows = rows_of(op.x)
    assert rows is not None
    if rows.dim in {dim % op.x.dim() for dim in op.given["dim"]}:
        refuse(f"{op.name} along {op.what()} mixes the rows of all ranks; {_way_out('sort')}")
    return rows


def complex_view(op: Op) -> Mark | None:
    """Pairs of numbers in the last dimension as complex numbers, and back."""
    rows = rows_of(op.x)
    assert rows is not None
    if op.name == "view_as_complex" and rows.dim == op.x.dim() - 1:
        refuse(f"view_as_complex pairs {op.what()} with each other; every rank has only its own rows")
    return rows


def scalar(op: Op) -> None:
    refuse(f"the value of {op.what()} is read ({op.name}); every rank has other rows: take a mean or sum first")


ALONG = (
    "sum", "nansum", "mean", "nanmean", "amax", "amin", "max", "min", "aminmax", "var", "std", "var_mean", "std_mean",
    "linalg_vector_norm", "norm", "logsumexp", "all", "any", "prod", "argmax", "argmin", "median", "nanmedian", "mode",
    "kthvalue", "count_nonzero", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "topk",
    "_softmax", "_safe_softmax", "_log_softmax", "flip", "roll", "glu",
)  # fmt: skip
FIRST = (
    "convolution", "native_group_norm", "max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "_adaptive_avg_pool2d",
    "max_pool2d_with_indices", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "adaptive_max_pool2d",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math",
)  # fmt: skip
LOSSES = (
    "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "soft_margin_loss", "nll_loss_forward",
)  # fmt: skip
SAME = (
    "clone", "detach", "alias", "_to_copy", "lift_fresh", "positive", "contiguous", "_conj", "_neg_view",
    "conj_physical", "resolve_conj", "resolve_neg",
)  # fmt: skip
FILLED = (
    "zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like",
    "full_like", "empty_like", "zero", "fill",
)  # fmt: skip


def given_rows(rule: Rule) -> Rule:
    """Apply a rule only if an argument holds rows: zeros, which fit any rows, are equal on every rank."""
    return lambda op: rule(op) if op.marked else None


VALUES: dict[str, Rule] = {
    "pointwise": pointwise,
    "log_sigmoid_forward": log_sigmoid,
    **dict.fromkeys(LOSSES, given_rows(loss)),
    **dict.fromkeys(("copy", "_prelu_kernel", "masked_fill", "where", "lerp", "clamp", "threshold"), pointwise),
    **dict.fromkeys(SAME, same),
    **dict.fromkeys(FILLED, filled),
    **dict.fromkeys(ALONG, along),
    **dict.fromkeys(FIRST, given_rows(first)),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), given_rows(layer_norm)),
    "renorm": given_rows(renorm),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), given_rows(transformed)),
    **dict.fromkeys(("view_as_complex", "view_as_real"), given_rows(complex_view)),
    **dict.fromkeys(("mm", "mv", "bmm", "addmm", "addmv", "baddbmm", "dot", "vdot"), given_rows(product)),
    "linear": given_rows(linear),
    **dict.fromkeys(("_cdist_forward", "_euclidean_dist"), given_rows(distances)),
    **dict.fromkeys(("_local_scalar_dense", "equal", "is_nonzero"), given_rows(scalar)),
}
