"""Weight gradients, summed over ranks: most of them while the backward pass still computes the others."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fullgraph.transport import Key, Pending, Transport

ENOUGH = 32 << 10  # bytes of gradients that are worth a message of their own


class GradSync:
    """g <- sum over ranks of g, in a few flat buffers; every rank's loss is already a part of the global mean."""

    def __init__(self, transport: Transport, *, may_lack: bool = False) -> None:
        """may_lack: a weight may have a gradient on no rank; it then has none afterwards, and no optimizer steps it."""
        self.transport, self.may_lack = transport, may_lack
        self._coming: list[tuple[Sequence[nn.Parameter], Pending[Tensor]]] = []  # weights, and their gradients' sum
        self._waiting: list[list[nn.Parameter]] | None = None  # groups that a backward pass left; None: there was none

    def __call__(self, parameters: Iterable[nn.Parameter], step: int) -> None:
        """Add up what is not under way yet, and wait for all of it."""
        if self.transport.size == 1:
            return
        groups = [_trained(parameters)] if self._waiting is None else self._waiting
        for group in groups:
            self._begin(group, step)
        for together, coming in self._coming:
            self._take(together, coming.wait())
        self._coming, self._waiting = [], None

    @contextmanager
    def under_way(self, model: nn.Module, step: int) -> Iterator[None]:
        """Around one backward pass: gradients leave as they come, some at a time, from the last layer back.

        Sums begin in the same order on all ranks. Where a gradient never comes, that group and those after it are left
        to the call that follows.
        """
        if self.transport.size == 1:
            yield
            return
        came: set[nn.Parameter] = set()
        waiting = _groups(model)

        def on(parameter: nn.Parameter) -> None:
            came.add(parameter)
            while waiting and came.issuperset(waiting[0]):
                self._begin(waiting.pop(0), step)

        self._coming, self._waiting = [], waiting
        hooks = [parameter.register_post_accumulate_grad_hook(on) for group in waiting for parameter in group]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, parameters: Sequence[nn.Parameter], step: int) -> None:
        # A weight no path reached on this rank has no gradient here, yet takes part in the sum.
        has = [parameter.grad is not None for parameter in parameters]
        grads = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        if self.may_lack:
            flat = torch.cat([flat, flat.new_tensor(has)])
        key = Key("weights", step, chunk=len(self._coming), use="weights")
        self._coming.append((parameters, self.transport.all_reduce(key, flat)))

    def _take(self, parameters: Sequence[nn.Parameter], flat: Tensor) -> None:
        *parts, have = flat.split([*(p.numel() for p in parameters), len(parameters) if self.may_lack else 0])
        for parameter, part in zip(parameters, parts, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(part.view_as(parameter))
        for parameter, ranks in zip(parameters, have.tolist(), strict=False):
            if not ranks:
                parameter.grad = None


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Without those that are frozen."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def _groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """Parameters about as their gradients come, enough for a message each: backwards, from the last layer on.

    A parameter's layer is the first number in its name, or that of the one before it.
    """
    layer, found = 0, list[tuple[int, nn.Parameter]]()
    for name, parameter in model.named_parameters():
        number = re.search(r"\d+", name)
        layer = int(number[0]) if number else layer
        found.append((layer, parameter))
    backwards = [parameter for _, parameter in sorted(found, key=lambda pair: pair[0])][::-1]
    groups: list[list[nn.Parameter]] = [[]]
    for parameter in _trained(backwards):
        groups[-1].append(parameter)
        if sum(one.nbytes for one in groups[-1]) >= ENOUGH:
            groups.append([])
    return [group for group in groups if group]
