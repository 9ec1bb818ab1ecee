"""Describe a constructor call as a frozen dataclass of its arguments, which files and options can hold."""

import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import make_dataclass
from typing import Any

from fullgraph.own_code import DEFINITION

# type and field of a parameter; None: it keeps its default
FieldOf = Callable[[inspect.Parameter], tuple[Any, Any] | None]


def described(
    kind: Any, base: type, attribute: str, field_of: FieldOf, given: Container[str],
    parameters: Mapping[str, inspect.Parameter] | None = None,
) -> type:  # fmt: skip
    """Build the dataclass that describes calls of `kind`. It has the name of `kind`, and keeps `kind` as `attribute`.

    given: the arguments that a run supplies. parameters: the arguments, if they differ from those of `kind`.
    """
    taken = (
        (name, field_of(parameter))
        for name, parameter in (parameters or inspect.signature(kind).parameters).items()
        if name not in given and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )
    made = make_dataclass(
        kind.__name__,
        [(name, *field) for name, field in taken if field is not None],
        bases=(base,),
        namespace={attribute: kind, DEFINITION: kind},
        frozen=True,
        kw_only=True,
    )
    made.__module__, made.__qualname__ = kind.__module__, kind.__qualname__
    return made
