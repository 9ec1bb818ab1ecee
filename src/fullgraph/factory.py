"""Functions, lambdas and existing modules as model constructors that a run can name."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from fullgraph.reference import hand_over, has_a_file, reference_of


class Factory:
    """Builds a model: calls a function, or copies a module, whose weights are then the run's initial weights."""

    def __init__(self, function: Callable[..., Any], name: str, home: str, signature: inspect.Signature) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = name
        self.__module__ = home
        self.__signature__ = signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @classmethod
    def of_module(cls, module: Any) -> "Factory":
        """Copy a module at each call."""
        kind = type(module)
        return cls(partial(copy.deepcopy, module), kind.__name__, kind.__module__, inspect.Signature())

    @classmethod
    def of_function(cls, function: Callable[..., Any]) -> "Factory":
        """Wrap a function without a name, such as a lambda."""
        inner = function.func if isinstance(function, partial) else function
        name = getattr(inner, "__name__", type(inner).__name__).strip("<>")
        return cls(function, name, inner.__module__, inspect.signature(function))


def reference_to(thing: Any) -> str:
    """The reference by which ranks find a class, a function or a module; an object that no file holds is sent to
    them.
    """
    if hasattr(thing, "named_parameters") and not isinstance(thing, type):
        return hand_over(Factory.of_module(thing))
    if isinstance(thing, type) or (inspect.isfunction(thing) and has_a_file(thing)):
        return reference_of(thing) if has_a_file(thing) else hand_over(thing)
    return hand_over(Factory.of_function(thing))
