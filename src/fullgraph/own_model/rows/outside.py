"""Code that a mode of torch's functions does not see: threads, TorchScript, and tensors that share another's memory.

Rows must not get there. Each of these checks its caller for as long as the process lives; outside a distributed forward
pass it continues normally.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from fullgraph.own_model.rows.follow import flat
from fullgraph.own_model.rows.place import modules_running, refuse, refused
from fullgraph.own_model.rows.spaces import rows_of

OURS = ("fullgraph", "torch", "numba")
# modules between a thread's start and the code that starts it
BETWEEN = ("threading", "concurrent.", "fullgraph.own_model.rows.")
_watched: list[type] = []


def watch_outside() -> None:
    """From now on, stop a model that starts a thread or calls TorchScript with rows."""
    if _watched:
        return
    _watched.append(threading.Thread)
    _ask_first(threading.Thread, "start", _no_thread)
    for script in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        _ask_first(script, "__call__", _no_rows("TorchScript", "call the Python function itself"))
    for kind, name in ((torch.nn.Parameter, "__new__"), (torch.Tensor, "set_"), (torch.Tensor, "as_subclass")):
        _ask_first(kind, name, _no_rows(f"{kind.__name__}.{name}".removesuffix(".__new__"), "use the rows themselves"))


def _ask_first(kind: Any, name: str, ask: Callable[..., None]) -> None:
    function = getattr(kind, name)

    @wraps(function)
    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if refused.get() is not None:
            ask(self, *args, **kwargs)
        return function(self, *args, **kwargs)

    setattr(kind, name, staticmethod(asked) if name == "__new__" else asked)


def _no_thread(thread: Any) -> None:
    starters = (home for home in modules_running() if not home.startswith(BETWEEN))
    if next(starters, "").split(".")[0] not in OURS:  # our kernels also start threads, at their first call
        refuse("the model starts a thread, where rows of nodes cannot be followed over ranks; compute without threads")


def _no_rows(name: str, way_out: str) -> Callable[..., None]:
    def ask(*args: Any, **kwargs: Any) -> None:
        if any(rows_of(x) is not None for x in flat((args, tuple(kwargs.values())))):
            refuse(f"{name} is given rows of nodes, which cannot be followed over ranks from there on; {way_out}")

    return ask
