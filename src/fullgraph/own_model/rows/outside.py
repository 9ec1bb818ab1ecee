"""What runs where calls of torch's functions are not seen: threads, and TorchScript. Rows must not get there.

Both are asked at their beginning, for as long as the process lasts; outside of a forward pass over ranks they go on.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from fullgraph.own_model.rows.follow import flat
from fullgraph.own_model.rows.place import refuse, refused
from fullgraph.own_model.rows.spaces import rows_of

OURS = ("fullgraph", "torch")
_watched: list[type] = []


def watch_outside() -> None:
    """From now on, a model that starts a thread or calls TorchScript with rows is stopped."""
    if _watched:
        return
    _watched.extend((threading.Thread, torch._C.ScriptFunction, torch._C.ScriptMethod))
    _ask_first(threading.Thread, "start", _no_thread)
    _ask_first(torch._C.ScriptFunction, "__call__", _no_script)
    _ask_first(torch._C.ScriptMethod, "__call__", _no_script)


def _ask_first(kind: Any, name: str, ask: Callable[..., None]) -> None:
    function = getattr(kind, name)

    @wraps(function)
    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if refused.get() is not None:
            ask(self, *args, **kwargs)
        return function(self, *args, **kwargs)

    setattr(kind, name, asked)


def _no_thread(thread: Any) -> None:
    target = getattr(thread, "_target", None) or thread
    if getattr(target, "__module__", "").split(".")[0] not in OURS:
        refuse("the model starts a thread, where rows of nodes cannot be followed over ranks; compute without threads")


def _no_script(function: Any, *args: Any, **kwargs: Any) -> None:
    if any(rows_of(x) is not None for x in flat((args, tuple(kwargs.values())))):
        refuse("TorchScript is given rows of nodes, which cannot be followed in it; call the Python function itself")
