"""A constructor as a value: a frozen dataclass whose fields are its arguments, which files and options can hold."""

import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import make_dataclass
from typing import Any

from fullgraph.own_code import DEFINITION

FieldOf = Callable[[inspect.Parameter], tuple[Any, Any] | None]  # type and field; None: it stays at its default


def described(
    kind: Any, base: type, attribute: str, field_of: FieldOf, given: Container[str],
    parameters: Mapping[str, inspect.Parameter] | None = None,
) -> type:  # fmt: skip
    """The class of values that describe calls of `kind`; it goes by the name of `kind`, which is its `attribute`.

    given: the arguments that a run fills in. parameters: the arguments, where they are not those of `kind` itself.
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
