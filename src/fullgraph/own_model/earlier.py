"""Gradients of earlier steps, in a loop that does not set them to zero: they are already summed over all ranks."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class EarlierGradients:
    """Sets aside a weight's gradient from before a step, so that only this step's gradient is summed over ranks."""

    def __init__(self) -> None:
        self._aside: dict[nn.Parameter, Tensor] = {}
        self._came: set[nn.Parameter] = set()  # weights that this step's backward pass has reached
        self._hooks: list[Any] = []

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Begin a step; its backward pass comes later, and `zero_grad` may be called before that."""
        self.end()
        self._hooks = [p.register_hook(self._on(p)) for p in parameters if p.requires_grad]

    def _on(self, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        def before_it_is_added(grad: Tensor) -> None:
            if parameter not in self._came:
                self._came.add(parameter)
                self._set_aside(parameter)

        return before_it_is_added

    def _set_aside(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            self._aside[parameter], parameter.grad = parameter.grad, None

    @contextmanager
    def left_out(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """Enclose the all-reduce over ranks."""
        for parameter in parameters:
            if parameter not in self._came:
                self._set_aside(parameter)
        yield
        for parameter, earlier in self._aside.items():
            parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)
        self.end()

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._aside, self._came, self._hooks = {}, set(), []
