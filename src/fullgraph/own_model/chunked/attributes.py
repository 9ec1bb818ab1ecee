"""Restore a layer's plain attributes, which its functions may read, to their values in the forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Attributes:
    """The attributes of a layer and its parts, and the versions of its buffers."""

    def __init__(self, part: nn.Module) -> None:
        self._vars = [(one, dict(vars(one))) for one in part.modules()]
        self._buffers = [(name, x, x._version) for name, x in part.named_buffers()]

    def changed(self) -> str:
        """The name of an attribute or buffer that has been written to since; empty if there is none."""
        for one, before in self._vars:
            for name, value in vars(one).items():
                if before.get(name, before) is not value:
                    return name
        return next((name for name, x, version in self._buffers if x._version != version), "")

    def put_back(self) -> None:
        """Restore the saved value of every attribute."""
        for one, before in self._vars:
            if not _is_same(vars(one), before):
                _replace(vars(one), before)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """While the block runs, attributes have their saved values."""
        now = [(vars(one), dict(vars(one))) for one, before in self._vars if not _is_same(vars(one), before)]
        self.put_back()
        try:
            yield
        finally:
            for mine, after in now:
                _replace(mine, after)


def _is_same(mine: dict[str, Any], values: dict[str, Any]) -> bool:
    return mine.keys() == values.keys() and all(mine[name] is value for name, value in values.items())


def _replace(mine: dict[str, Any], values: dict[str, Any]) -> None:
    mine.clear()
    mine.update(values)
