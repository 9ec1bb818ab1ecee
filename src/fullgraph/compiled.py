"""Compile loops with numba. Its cache notices changes only in the file that contains a loop."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])
Array = Any  # a numpy array; numba infers the rest


def compiled(**options: Any) -> Callable[[Loop], Loop]:
    """A decorator that compiles a loop, which releases the GIL."""

    def decorated(loop: Loop) -> Loop:
        try:
            return cast(Loop, njit(cache=True, nogil=True, **options)(loop))
        except RuntimeError:  # numba finds no writable folder for its cache
            return cast(Loop, njit(nogil=True, **options)(loop))

    return decorated


def inlined(loop: Loop) -> Loop:
    """Copy a function into the loops that call it.

    A call with an array argument counts references, atomically: once per arc, that took a third of the time.
    """
    return cast(Loop, njit(inline="always")(loop))
