"""The place of an error in a user's model: file, line, layer."""

import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import NoReturn

from torch import nn

from fullgraph.own_code import OwnCodeError

LIBRARIES = ("torch", "torch_geometric", "fullgraph", "contextlib", "functools", "threading", "concurrent")


# the refusals of the current forward pass
refused: ContextVar[list[Exception] | None] = ContextVar("refused", default=None)


A_PART = "of which a rank has a part; do it before training, to the graph's edges"
NEEDS_ALL = {  # PyG functions that cannot work on one rank's edges, by module, or by module and name
    "torch_geometric.utils._coalesce": (
        f"coalesce (as to_undirected calls it) sorts all edges and joins equal ones, {A_PART}"
    ),
    "torch_geometric.utils._sort_edge_index": f"sort_edge_index sorts all edges, {A_PART}",
    "torch_geometric.utils._to_dense_adj": (
        "to_dense_adj makes an entry for each pair of nodes; use message passing, or torch.sparse_coo_tensor("
        "edge_index, values, (n, n)) @ x"
    ),
    "torch_geometric.utils.sparse": (
        "a sparse matrix is made of all edges, of which a rank has a part; give edge_index to layers, or "
        "torch.sparse_coo_tensor(edge_index, values, (n, n)) @ x"
    ),
    "torch_geometric.utils._subgraph.k_hop_subgraph": (
        "k_hop_subgraph searches the whole graph, of which a rank has a part; do it before training, as a node input"
    ),
    "torch_geometric.utils._subgraph.subgraph": (
        "subgraph is given a list of nodes or relabel_nodes=True, and each rank has other nodes; give it a mask of "
        "nodes alone: rows of all nodes with the edges that it keeps have the same sums"
    ),
}


def refuse(text: str) -> NoReturn:
    """Raise one line that begins with the place in the model; if the model catches it, it is raised again later."""
    for frame in _frames():
        home = _home(frame)
        text = NEEDS_ALL.get(home) or NEEDS_ALL.get(f"{home}.{frame.f_code.co_name}") or text
    error = OwnCodeError(f"{place()}{text}")
    if (before := refused.get()) is not None:
        before.append(error)
    raise error


def place() -> str:
    """`net.py:12, Net (layer convs.0): `, as far as it is known."""
    return _place([(frame, frame.f_lineno) for frame in _frames()])


def place_of(error: BaseException) -> str:
    """The place of an exception that has left the model."""
    trace: TracebackType | None = error.__traceback__
    return _place(list(walk_tb(trace))[::-1])


def _place(frames: list[tuple[FrameType, int]]) -> str:
    line = next((f"{Path(f.f_code.co_filename).name}:{number}" for f, number in frames if not is_library(_home(f))), "")
    layer = _layer(frame for frame, _ in frames)
    return f"{', '.join(filter(None, (line, layer)))}: " if line or layer else ""


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_library(module: str) -> bool:
    return module.split(".")[0] in LIBRARIES


def in_users_code() -> bool:
    """Whether the caller of torch is a user's file, and not a layer of PyG's or ours."""
    asked = next((home for frame in _frames() if not _is_between(home := _home(frame))), "")
    return not is_library(asked)


def is_at_hand_in_users_code() -> bool:
    """Whether our caller was called directly by a user's file."""
    return not is_library(_home(sys._getframe(2)))


def modules_running() -> Iterator[str]:
    """The module name of each running function, the innermost first."""
    return map(_home, _frames())


def _is_between(module: str) -> bool:
    """Whether a module only passes calls on: torch, and the code that follows rows."""
    ours = ("rows", "mode", "forward", "counting")
    return module.split(".")[0] == "torch" or module.startswith(tuple(f"fullgraph.own_model.{name}" for name in ours))


def _home(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _layer(frames: Iterable[FrameType]) -> str:
    """The innermost running module, by its name in the model."""
    running = [module for frame in frames if (module := _module(frame)) is not None]
    if not running:
        return ""
    inner, outer = running[0], running[-1]
    name = next((name for module in reversed(running) for name, part in module.named_modules() if part is inner), "")
    name = next((name for name, part in outer.named_modules() if part is inner), name)
    return f"{type(inner).__name__} (layer {name})" if name else type(inner).__name__


def _module(frame: FrameType) -> nn.Module | None:
    """The user's or PyG's module whose method this frame runs."""
    if _home(frame) == "torch.nn.modules.module":
        return None
    owner = frame.f_locals.get("self")
    return owner if isinstance(owner, nn.Module) and not type(owner).__module__.startswith("fullgraph") else None
