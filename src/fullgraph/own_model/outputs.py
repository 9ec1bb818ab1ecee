"""Find the logits in a model's output: a tensor, a tuple, a dictionary, or an object with fields."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

LOGITS = ("logits", "out", "output", "y_hat", "pred")  # these names are preferred to the first tensor


def parts_of(out: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of each item that a model returned, tensors or not; names of nested items contain their place."""
    if isinstance(out, Mapping):
        items: list[tuple[str, Any]] = [(str(name), value) for name, value in out.items()]
    elif is_dataclass(out) and not isinstance(out, type):
        items = [(one.name, getattr(out, one.name)) for one in fields(out)]
    elif isinstance(out, tuple | list):
        names = getattr(out, "_fields", [""] * len(out))
        items = list(zip(names, out, strict=True))
    else:
        yield "", out
        return
    for name, value in items:
        for inner, one in parts_of(value):
            yield inner or name, one


def logits_of(found: list[tuple[str, Tensor]], kind: str = "") -> Tensor | None:
    """The tensor named after the target type or `logits` or `out`, else the first tensor; None if there is none."""
    named = next((x for key in ((kind, *LOGITS) if kind else LOGITS) for name, x in found if name == key), None)
    return named if named is not None else found[0][1] if found else None


def changed(out: Any, by: Any) -> Any:
    """The same structure with `by(x)` for each tensor; an object of unknown structure is returned unchanged."""
    if isinstance(out, Tensor):
        return by(out)
    if isinstance(out, Mapping):
        pairs = {name: changed(value, by) for name, value in out.items()}
        return type(out)(pairs) if type(out) is not dict else pairs  # type: ignore[call-arg]
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return type(out)(*(changed(value, by) for value in out))
    if isinstance(out, tuple | list):
        return type(out)(changed(value, by) for value in out)
    if is_dataclass(out) and not isinstance(out, type):
        for one in fields(out):
            object.__setattr__(out, one.name, changed(getattr(out, one.name), by))
    return out
