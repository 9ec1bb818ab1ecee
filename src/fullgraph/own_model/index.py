"""Arcs that know which of their ends lies elsewhere: the `edge_index` that a distributed model is given.

A PyG layer reads its neighbours by indexing node rows with `edge_index[0]`. Here that index is a tensor of its own
kind: indexing n owned rows with it first fetches the halo rows. Everything else that is done with arcs keeps the kind
(masks, added self loops), gives a plain tensor (comparisons), or is refused.

Legend: n owned rows, h halo rows, e arcs; sources are numbered 0..n-1 owned, n..n+h-1 halo; targets are owned.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops.hashing import pair_ids

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward

REVERSED = (
    "the model sends rows against the arcs (flow='target_to_source', or arcs turned around in the model); "
    "add the reverse arcs to the graph instead"
)


class ArcIndex(Tensor):
    """Arcs [2, e] into owned rows."""

    forward: "Forward"
    ids: Tensor  # [e], which arc of the whole graph each one is; the draws of dropout depend on it
    whole: bool  # whether these are all arcs of the graph, as the model was given them

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class SourceIndex(Tensor):
    """The sources [e] of arcs."""

    forward: "Forward"
    ids: Tensor
    targets: Tensor  # [e]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def arc_index(plain_2e: Tensor, ids: Tensor, forward: "Forward", *, whole: bool = False) -> ArcIndex:
    arcs = plain_2e.as_subclass(ArcIndex)
    arcs.forward, arcs.ids, arcs.whole = forward, ids, whole
    return arcs


def plain(value: Any) -> Any:
    """The same numbers as a tensor of no kind; also inside tuples and lists."""
    if isinstance(value, ArcIndex | SourceIndex):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(plain(item) for item in value)
    return value


def _dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    rule = _RULES.get(func)
    if rule is not None:
        return rule(func, *args, **kwargs)
    return func(*plain(args), **{name: plain(value) for name, value in kwargs.items()})


def _sources(plain_e: Tensor, ids: Tensor, targets: Tensor, forward: "Forward") -> SourceIndex:
    sources = plain_e.as_subclass(SourceIndex)
    sources.forward, sources.ids, sources.targets = forward, ids, targets
    return sources


def _row(arcs: ArcIndex, row: int) -> Tensor:
    both: Tensor = plain(arcs)
    return both[1] if row % 2 else _sources(both[0], arcs.ids, both[1], arcs.forward)


def _getitem(func: Any, rows: Any, key: Any) -> Any:
    if isinstance(rows, ArcIndex):
        return _cut_arcs(rows, key)
    if isinstance(rows, SourceIndex):
        key = plain(key)
        return _sources(plain(rows)[key], rows.ids[key], rows.targets[key], rows.forward)
    if isinstance(key, SourceIndex):
        return _lifted(rows, 0, key)
    if isinstance(key, tuple) and isinstance(key[0], SourceIndex):
        return _lifted(rows, 0, key[0])[(slice(None), *plain(key[1:]))]
    if isinstance(key, tuple) and any(isinstance(part, SourceIndex) for part in key):
        raise InputError("rows are read by a source in a place other than the first; index the rows with x[source]")
    return func(rows, plain(key))


def _cut_arcs(arcs: ArcIndex, key: Any) -> Any:
    if isinstance(key, int):
        return _row(arcs, key)
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], int):
        return _row(arcs, key[0])[key[1]]
    if isinstance(key, tuple) and len(key) == 2 and key[0] in (slice(None), Ellipsis):
        chosen = plain(key[1])
        return arc_index(plain(arcs)[:, chosen], arcs.ids[chosen], arcs.forward)
    raise InputError(
        f"edge_index[{key}] is not understood here; use edge_index[0], edge_index[1] or edge_index[:, some]"
    )


def _unbind(func: Any, arcs: Any, dim: int = 0) -> Any:
    if isinstance(arcs, ArcIndex) and dim == 0:
        return _row(arcs, 0), _row(arcs, 1)
    return func(plain(arcs), dim)


def _index_select(func: Any, rows: Any, dim: int, index: Any) -> Tensor:
    if isinstance(rows, ArcIndex) and dim in (1, -1):
        return arc_index(plain(rows)[:, plain(index)], rows.ids[plain(index)], rows.forward)
    if isinstance(rows, SourceIndex):
        picked: Tensor = _getitem(func, rows, plain(index))
        return picked
    if isinstance(index, SourceIndex):
        return _lifted(rows, dim, index)
    picked = func(plain(rows), dim, plain(index))
    return picked


def _lifted(rows: Tensor, dim: int, index: SourceIndex) -> Tensor:
    """rows[source]: owned and halo rows, one for every arc."""
    return index.forward.lift(rows, dim, plain(index), index.ids)


def _cat(func: Any, parts: Any, dim: int = 0, **kwargs: Any) -> Any:
    marked = [part for part in parts if isinstance(part, ArcIndex | SourceIndex)]
    first = marked[0]
    joined = func(plain(list(parts)), dim, **kwargs)
    if isinstance(first, ArcIndex) and dim in (1, -1):
        ids = torch.cat([_ids_of(part, first.forward) for part in parts])
        return arc_index(joined, ids, first.forward)
    raise InputError(f"sources and targets of arcs are mixed in the model ({func.__name__}); {REVERSED}")


def _ids_of(part: Tensor, forward: "Forward") -> Tensor:
    """Of arcs; those that a layer added, such as self loops, are known by their two ends."""
    if isinstance(part, ArcIndex):
        return part.ids
    ids = forward.graph.all_ids
    return pair_ids(ids[part[1]], ~ids[part[0]])


def _stack(func: Any, parts: Any, dim: int = 0, **kwargs: Any) -> Any:
    source, target = parts if len(parts) == 2 else (None, None)
    if isinstance(source, SourceIndex) and not isinstance(target, SourceIndex) and dim == 0:
        return arc_index(func(plain(list(parts)), dim, **kwargs), source.ids, source.forward)
    raise InputError(f"sources and targets of arcs are mixed in the model; {REVERSED}")


def _same(func: Any, index: Any, *args: Any, **kwargs: Any) -> Any:
    """A copy is of the same kind."""
    copy = func(plain(index), *args, **kwargs)
    if isinstance(index, ArcIndex):
        return arc_index(copy, index.ids, index.forward, whole=index.whole)
    return _sources(copy, index.ids, index.targets, index.forward)


def _shaped(func: Any, index: Any, *args: Any, **kwargs: Any) -> Any:
    """Sources in another shape are still sources; arcs are not."""
    if isinstance(index, SourceIndex):
        return _sources(func(plain(index), *plain(args), **kwargs), index.ids, index.targets, index.forward)
    return func(plain(index), *plain(args), **kwargs)


def _max(func: Any, index: Any, *args: Any, **kwargs: Any) -> Any:
    """edge_index.max() + 1 is how PyG counts nodes: here, the owned ones."""
    if args or kwargs:
        return func(plain(index), *args, **kwargs)
    return torch.tensor(index.forward.graph.num_owned - 1)


def _scattered(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Sums over the arcs out of a node are spread over ranks."""
    if any(isinstance(value, SourceIndex) for value in (*args, *kwargs.values())):
        raise InputError(f"the model adds up rows by the sources of arcs ({func.__name__}): {REVERSED}")
    return func(*plain(args), **kwargs)


def _setitem(func: Any, rows: Any, key: Any, value: Any) -> None:
    """Only self loops may be written by their source, which is their target."""
    if isinstance(key, SourceIndex) and not torch.equal(plain(key), key.targets):
        raise InputError(f"the model writes rows by the sources of arcs: {REVERSED}")
    func(plain(rows), plain(key), plain(value))


def _gather(func: Any, rows: Any, dim: int, index: Any, **kwargs: Any) -> Any:
    if isinstance(index, SourceIndex) and dim == 0:
        return func(index.forward.sources(rows), dim, plain(index), **kwargs)
    return func(plain(rows), dim, plain(index), **kwargs)


def _refuse_flip(func: Any, index: Any, *args: Any, **kwargs: Any) -> Any:
    raise InputError(REVERSED)


_T = Tensor
_RULES: dict[Any, Callable[..., Any]] = {
    _T.__getitem__: _getitem,
    _T.__setitem__: _setitem,
    **dict.fromkeys((torch.unbind, _T.unbind), _unbind),
    **dict.fromkeys((torch.index_select, _T.index_select), _index_select),
    **dict.fromkeys((torch.cat, torch.concat), _cat),
    torch.stack: _stack,
    **dict.fromkeys((_T.clone, torch.clone, _T.detach, _T.contiguous, _T.to, _T.long, _T.int, _T.cpu, _T.cuda), _same),
    **dict.fromkeys((_T.view, _T.reshape, _T.expand, _T.expand_as, _T.unsqueeze), _shaped),
    **dict.fromkeys((torch.gather, _T.gather), _gather),
    **dict.fromkeys((_T.max, torch.max), _max),
    **dict.fromkeys((_T.flip, torch.flip, _T.t, torch.t, _T.T.__get__), _refuse_flip),  # type: ignore[attr-defined]
    **dict.fromkeys(
        (
            _T.scatter_add_, _T.scatter_add, torch.scatter_add, _T.scatter_reduce_, _T.scatter_reduce, _T.scatter_,
            _T.scatter, torch.scatter, torch.scatter_reduce, _T.index_add_, _T.index_add, torch.index_add,
            torch.bincount, _T.bincount, _T.index_put_, _T.index_put, _T.index_copy_, _T.index_reduce_,
        ),
        _scattered,
    ),
}  # fmt: skip
