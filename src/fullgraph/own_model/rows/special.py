"""Torch functions with a different meaning inside a distributed forward pass, beside sums, dropout and norms.

Sizes used as numbers count rows of all ranks; an index of sources reads halo rows; values of rows must not leave torch,
because they could not be followed. A function returns NotImplemented if torch's own function is correct.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.own_model.rows.backward import gradient, hook
from fullgraph.own_model.rows.by_id import embedding, is_by_number, positions
from fullgraph.own_model.rows.count import Count, Shape, number
from fullgraph.own_model.rows.follow import flat
from fullgraph.own_model.rows.groups import grouped
from fullgraph.own_model.rows.indexing import BY_SOURCE
from fullgraph.own_model.rows.layers import LAYERS
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import SAME, Ends, Even, Rows, current, mark, rows_of
from fullgraph.own_model.rows.sparse import MATRIX
from fullgraph.own_model.rows.sparse import made as made_sparse
from fullgraph.own_model.rows.values import POSITION, TURNS

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward


# Sizes


def shape(forward: "Forward", func: Any, x: Tensor) -> Any:
    rows = rows_of(x)
    sizes: Any = func(x)
    if rows is None:
        return sizes
    return Shape(
        forward.count(rows.space, rows.each * rows.blocks) if d == rows.dim else size for d, size in enumerate(sizes)
    )


def size(forward: "Forward", func: Any, x: Tensor, dim: int | None = None) -> Any:
    if rows_of(x) is None:
        return func(x) if dim is None else func(x, dim)
    sizes = shape(forward, Tensor.size, x)
    return sizes if dim is None else sizes[dim]


def numel(forward: "Forward", func: Any, x: Tensor) -> Any:
    rows = rows_of(x)
    count: int = func(x)
    if rows is None:
        return count
    return forward.count(rows.space, rows.each * rows.blocks * count // x.shape[rows.dim] if count else 1)


def length(forward: "Forward", func: Any, x: Tensor) -> int:
    rows = rows_of(x)
    if rows is not None and rows.dim == 0:
        forward.gave(rows.space, len(x))
    return func(x)  # type: ignore[no-any-return]


# New tensors


def made(zero: bool) -> Callable[..., Any]:
    def function(forward: "Forward", func: Any, *args: Any, **kwargs: Any) -> Any:
        """zeros, ones, empty and similar functions: a tensor with a count as its size holds rows."""
        given = kwargs.pop("size", None)
        of = args[:1] if args and isinstance(args[0], Tensor) else ()
        sizes = given if given is not None else args[len(of) :]
        sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
        out = func(*of, [_plain(size) for size in sizes], **{name: number(value) for name, value in kwargs.items()})
        return _as_rows(forward, out, sizes, zero)

    return function


def made_full(forward: "Forward", func: Any, *args: Any, **kwargs: Any) -> Any:
    """full(size, value) and x.new_full(size, value)."""
    of = args[:1] if args and isinstance(args[0], Tensor) else ()
    rest = list(args[len(of) :])
    sizes = rest.pop(0) if rest else kwargs.pop("size")
    value = rest.pop(0) if rest else kwargs.pop("fill_value")
    if rows_of(value) is not None:
        refuse(f"full is given a value of rows; {POSITION}")
    sizes = [sizes] if isinstance(sizes, int) else sizes
    out = func(*of, [_plain(size) for size in sizes], number(value), **kwargs)
    return _as_rows(forward, out, sizes, False)


def arange(forward: "Forward", func: Any, *args: Any, **kwargs: Any) -> Any:
    """arange(x.size(0)) returns the positions of this rank's rows."""
    counts = [value for value in (*args, *kwargs.values()) if type(value) is Count]
    out = func(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})
    whole = len(counts) == 1 and counts[0].scale == 1 and not counts[0].shift and len(out) == counts[0].rows
    if not counts:
        return out
    if not whole or out.is_floating_point():
        refuse(f"arange numbers the rows of one rank; {POSITION}")
    return mark(out, Rows(counts[0].space, 0, points=counts[0].space))


def _plain(value: Any) -> Any:
    return value.rows if type(value) is Count else value


def _as_rows(forward: "Forward", out: Tensor, sizes: Any, zero: bool) -> Tensor:
    places = [(d, size) for d, size in enumerate(sizes) if type(size) is Count and not size.shift]
    if len(places) > 1:
        refuse("a tensor with an entry for each pair of rows would have to hold the rows of all ranks")
    if places:
        dim, count = places[0]
        return mark(out, Rows(count.space, dim, count.scale))
    plain = [
        (d, nodes) for d, size in enumerate(sizes) if type(size) is int and (nodes := forward.gave_nodes.get(size))
    ]
    if len(plain) == 1:
        dim, nodes = plain[0]
        return mark(out, Rows(nodes, dim))
    return mark(out, Even(tuple(range(out.dim())), zero))


def eye(forward: "Forward", func: Any, *args: Any, **kwargs: Any) -> Any:
    if any(type(value) is Count for value in (*args, *kwargs.values())):
        refuse("a tensor with an entry for each pair of rows would have to hold the rows of all ranks")
    return func(*args, **kwargs)


def tensor(forward: "Forward", func: Any, data: Any, **kwargs: Any) -> Any:
    return NotImplemented if isinstance(data, Tensor) else func(_numbers(data), **kwargs)


def _numbers(value: Any) -> Any:
    """Nested lists, with counts as their numbers over all ranks."""
    return [_numbers(item) for item in value] if isinstance(value, list | tuple) else number(value)


# Reading and writing by index


def getitem(forward: "Forward", func: Any, x: Any, key: Any) -> Any:
    parts = key if isinstance(key, tuple) else (key,)
    if _turns(x, parts):
        return forward.guard.call(forward, torch.flip, (x, (0,)), {})
    if len(parts) == 1 and is_by_number(forward, x, parts[0]):
        return forward.guard.call(forward, func, (x, positions(forward, parts[0], x)), {})
    _check_slices(x, parts)
    sources = [_reads_sources(part) for part in parts]
    if not any(sources):
        return NotImplemented
    if not sources[0] or any(sources[1:]):
        refuse("rows are read by a source in a place other than the first; index the rows with x[source]")
    lifted = forward.lift(x, 0, parts[0])
    return lifted if len(parts) == 1 else forward.guard.call(forward, func, (lifted, (slice(None), *parts[1:])), {})


def _turns(x: Any, parts: tuple[Any, ...]) -> bool:
    """edge_index[[1, 0]]"""
    rows = rows_of(x)
    return (
        rows is not None and rows.points in TURNS and len(parts) == 1 and type(parts[0]) is list and parts[0] == [1, 0]
    )


def setitem(forward: "Forward", func: Any, x: Any, key: Any, value: Any) -> Any:
    """Allow writing by source only for self loops, whose source is their target."""
    rows = rows_of(key)
    _check_slices(x, key if isinstance(key, tuple) else (key,))
    if rows is None or rows.points is not Ends.SOURCES:
        return NotImplemented
    source, target = rows.space.ends or (None, None)
    if source is not target or not torch.equal(key, rows.space.targets):
        refuse(BY_SOURCE)
    loops = mark(key.detach().clone(), Rows(rows.space, 0, points=target))
    return forward.guard.call(forward, func, (x, loops, value), {})


def _check_slices(x: Any, parts: tuple[Any, ...]) -> None:
    """Refuse x[:500] and table[: x.size(0)]: the first rows belong to different nodes on every rank.

    Torch removes a slice that is as long as this rank's rows, so such a slice is visible only here.
    """
    if not isinstance(x, Tensor):
        return
    rows, dim = rows_of(x), 0
    for place, part in enumerate(parts):
        if part is Ellipsis:
            dim = x.dim() - sum(map(_dims_of, parts[place + 1 :]))
            continue
        if type(part) is slice and not _is_whole(part, rows):
            if rows is None and Count in map(type, (part.start, part.stop)):
                refuse(f"the first rows of a table are taken for the rows of this rank; {POSITION}")
            if rows is not None and rows.dim == dim and rows.space.size:
                refuse(f"rows of {rows.space.kind} are taken by their position; {POSITION}")
        dim += _dims_of(part)


def _is_whole(part: slice, rows: Rows | None) -> bool:
    """Whether a slice takes all rows: [:], [0:], or up to the number of rows itself."""
    stop = part.stop
    if type(stop) is Count:
        ends = rows is not None and (stop.space, stop.scale, stop.shift) == (rows.space, rows.each * rows.blocks, 0)
    else:
        ends = stop is None
    return ends and type(part.start) is not Count and not part.start and part.step in (None, 1)


def _dims_of(part: Any) -> int:
    """The number of a tensor's dimensions that a part of an index stands for."""
    if part is None or isinstance(part, bool):
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) else 1


def index_select(forward: "Forward", func: Any, x: Any, dim: int, index: Any) -> Any:
    if is_by_number(forward, x, index):
        return forward.guard.call(forward, func, (x, dim, positions(forward, index, x)), {})
    return forward.lift(x, dim, index) if _reads_sources(index) else NotImplemented


def gather(forward: "Forward", func: Any, x: Any, dim: int, index: Any, **kwargs: Any) -> Any:
    if not _reads_sources(index):
        return NotImplemented
    rows = rows_of(index)
    assert rows is not None
    if rows.dim != dim % x.dim():
        refuse("rows are read by a source in a place other than their own dimension; index the rows with x[source]")
    return mark(func(forward.sources(x, dim), dim, index, **kwargs), rows.values)


def _reads_sources(value: Any) -> bool:
    rows = rows_of(value)
    return rows is not None and rows.points is Ends.SOURCES


# Other functions


def set_data(forward: "Forward", func: Any, x: Any, value: Any) -> None:
    """x.data = value"""
    func(x, value)
    mark(x, current(value))


def added(in_place: bool, function: Any) -> Callable[..., Any]:
    def add(forward: "Forward", func: Any, x: Any, dim: int, index: Any, source: Any, **kwargs: Any) -> Any:
        """Add rows by groups to a tensor that every rank has: the sum over all ranks is added."""
        by, rows = rows_of(index), rows_of(source)
        if by is not None and by.points is Ends.SOURCES:
            if kwargs.get("alpha", 1) != 1:
                refuse("index_add with alpha by the sources of edges; multiply the rows instead")
            found = forward.by_source(x, dim, index, source)
            return mark(x.copy_(found), current(found)) if in_place else found
        if rows_of(x) is not None or by is None or by.points is not None or rows is None or rows.dim != dim % x.dim():
            return NotImplemented
        zeros = torch.zeros_like(x, requires_grad=False)
        mark(zeros, Even(tuple(range(x.dim())), zero=True))
        total = forward.guard.call(forward, function, (zeros, dim, index, source), kwargs)
        return mark(x.add_(total) if in_place else x + total, SAME)

    return add


def scatter_reduce(in_place: bool) -> Callable[..., Any]:
    def function(
        forward: "Forward", func: Any, x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
    ) -> Any:
        """A reduction by the sources of edges or by groups of rows, over the parts of all ranks."""
        by_source = _reads_sources(index)
        found = (
            forward.by_source(x, dim, index, src, reduce, include_self)
            if by_source
            else grouped(forward, x, dim, index, src, reduce, include_self)
        )
        if found is NotImplemented:
            return found
        return mark(x.copy_(found), current(found)) if in_place else found

    return function


def leaves(forward: "Forward", func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    rows = rows_of(x)
    if rows is not None and forward.guard.checks:
        refuse(
            f"the values of rows of {rows.space.kind} leave torch ({_name(func)}), where they cannot be followed over "
            "ranks; compute with torch, or before training"
        )
    return func(x, *args, **kwargs)


def refused(text: str) -> Callable[..., Any]:
    def function(forward: "Forward", func: Any, *args: Any, **kwargs: Any) -> Any:
        given = flat((args, tuple(kwargs.values())))
        if forward.guard.checks and any(rows_of(value) is not None for value in given):
            refuse(text.format(_name(func)))
        return func(*args, **kwargs)

    return function


def equal(forward: "Forward", func: Any, x: Any, other: Any) -> Any:
    """torch.equal(h, last): whether the rows of all ranks are equal."""
    rows, others = rows_of(x), rows_of(other)
    if rows is None or others is None or rows.points is not None or rows.dim != others.dim or not rows.fits(others):
        return NotImplemented
    return not int(forward.reduce(torch.tensor([not func(x, other)], dtype=torch.int64)))


def expand_as(forward: "Forward", func: Any, x: Any, other: Any) -> Any:
    """A row that every rank has, once for each row of `other`."""
    if rows_of(x) is not None or rows_of(other) is None:
        return NotImplemented
    return forward.guard.call(forward, _T.expand, (x, shape(forward, _T.size, other)), {})


def cosine_similarity(forward: "Forward", func: Any, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Rows beside a row that every rank has, such as a mean; torch repeats that row first, once per position."""
    if (rows_of(x1) is None) == (rows_of(x2) is None):
        return NotImplemented
    call, along = forward.guard.call, {"dim": dim % (width := max(x1.dim(), x2.dim())) - width}
    units = [call(forward, F.normalize, (x,), {**along, "eps": eps}) for x in (x1, x2)]
    return call(forward, torch.sum, (call(forward, torch.mul, tuple(units), {}),), along)


def in_order(forward: "Forward", func: Any, x: Any, other: Any) -> Any:
    """row < col: compare nodes by their global ids."""
    rows, others = rows_of(x), rows_of(other)
    source, target = (rows.space.ends if rows is not None else None) or (None, None)
    ends = (Ends.SOURCES, target)
    if rows is None or others is None or target is None or rows.points not in ends or others.points not in ends:
        return NotImplemented
    if rows.dim != others.dim or not rows.values.fits(others.values):
        return NotImplemented
    if source is not target:
        refuse("nodes of two types are compared by their position; compare numbers that the nodes have in the graph")
    with torch._C.DisableTorchFunction():
        ids = forward.at(rows.space).all_ids
        return mark(func(ids[x], ids[other]), rows.values)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


_T: Any = Tensor
BYTES = refused("{} counts the rows of one rank; use x.numel(), which counts those of all ranks in computations")
MATRIX_OF = refused(MATRIX)
LEAVING = (
    _T.numpy, _T.tolist, _T.__array__, _T.__dlpack__, _T.data_ptr, _T.untyped_storage, _T.storage,
    _T.__cuda_array_interface__.__get__, _T.__reduce_ex__, _T.__repr__, _T.__format__,
)  # fmt: skip
COMPARISONS = (
    torch.lt, _T.lt, _T.__lt__, torch.le, _T.le, _T.__le__, torch.gt, _T.gt, _T.__gt__, torch.ge, _T.ge, _T.__ge__,
)  # fmt: skip
SPECIAL: dict[Any, Callable[..., Any]] = LAYERS | {
    F.embedding: embedding,
    F.cosine_similarity: cosine_similarity,
    _T.expand_as: expand_as,
    _T.shape.__get__: shape,
    _T.size: size,
    **dict.fromkeys((_T.numel, torch.numel, _T.nelement), numel),
    _T.__len__: length,
    **dict.fromkeys((torch.zeros, _T.new_zeros), made(zero=True)),
    **dict.fromkeys((torch.ones, torch.empty, _T.new_ones, _T.new_empty), made(zero=False)),
    **dict.fromkeys((torch.full, _T.new_full), made_full),
    torch.arange: arange,
    torch.eye: eye,
    **dict.fromkeys((torch.tensor, torch.as_tensor), tensor),
    _T.__getitem__: getitem,
    _T.__setitem__: setitem,
    **dict.fromkeys((_T.index_select, torch.index_select), index_select),
    **dict.fromkeys((_T.gather, torch.gather), gather),
    _T.data.__set__: set_data,
    _T.index_add_: added(True, torch.index_add),
    _T.scatter_add_: added(True, torch.scatter_add),
    **dict.fromkeys((_T.index_add, torch.index_add), added(False, torch.index_add)),
    **dict.fromkeys((_T.scatter_add, torch.scatter_add), added(False, torch.scatter_add)),
    **dict.fromkeys((_T.scatter_reduce, torch.scatter_reduce), scatter_reduce(False)),
    _T.scatter_reduce_: scatter_reduce(True),
    **dict.fromkeys(LEAVING, leaves),
    **dict.fromkeys((_T.register_hook, _T.register_post_accumulate_grad_hook), hook),
    _T.nbytes.__get__: BYTES,
    torch.sparse_coo_tensor: lambda forward, func, *args, **kwargs: made_sparse(*args, **kwargs),
    **dict.fromkeys((torch.sparse_csr_tensor, torch.sparse_csc_tensor), MATRIX_OF),
    **dict.fromkeys((torch.autograd.grad, torch.autograd.backward, _T.backward), gradient),
    **dict.fromkeys((torch.equal, _T.equal), equal),
    **dict.fromkeys(COMPARISONS, in_order),
}
