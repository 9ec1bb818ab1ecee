"""A property that is computed once, without a lock."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # used like functools.cached_property
    """Compute a property at its first use, and keep the value in the instance.

    functools.cached_property of Python 3.11 holds one lock for all instances of a class. Ranks that are threads would
    deadlock: one holds the lock while it waits for a message from another, which waits for the lock.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self._name, self.__doc__ = make, "", make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "cached_property[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> "cached_property[T] | T":
        if instance is None:
            return self
        value = self._make(instance)
        vars(instance)[self._name] = value
        return value
