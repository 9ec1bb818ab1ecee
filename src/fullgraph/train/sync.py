"""The gradient all-reduce: most gradients are summed over ranks while the backward pass still computes the others."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fullgraph.transport import Key, Pending, Transport

ENOUGH = 32 << 10  # minimum bytes of gradients per message


class GradSync:
    """g <- sum over ranks of g, in a few flat buffers; every rank's loss is already its share of the global mean."""

    def __init__(self, transport: Transport, *, may_lack: bool = False) -> None:
        """may_lack: a weight may have a gradient on no rank; it then has none afterwards, and no optimizer steps it."""
        self.transport, self.may_lack = transport, may_lack
        self._pending: list[tuple[Sequence[nn.Parameter], Pending[Tensor]]] = []  # (weights, their pending sum)
        self._waiting: list[list[nn.Parameter]] | None = None  # groups not sent in the backward pass; None: no pass

    def __call__(self, parameters: Iterable[nn.Parameter], step: int) -> None:
        """Start the remaining sums, and wait for all of them."""
        if self.transport.size == 1:
            return
        groups = [_trainable(parameters)] if self._waiting is None else self._waiting
        for group in groups:
            self._begin(group, step)
        for together, pending in self._pending:
            self._take(together, pending.wait())
        self._pending, self._waiting = [], None

    @contextmanager
    def under_way(self, model: nn.Module, step: int) -> Iterator[None]:
        """Enclose a backward pass: gradients are sent in groups as they are computed, from the last layer to the first.

        Sums begin in the same order on all ranks. If a gradient is never computed, its group and the groups after it
        are sent by the next `__call__`.
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

        self._pending, self._waiting = [], waiting
        hooks = [parameter.register_post_accumulate_grad_hook(on) for group in waiting for parameter in group]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, parameters: Sequence[nn.Parameter], step: int) -> None:
        # A weight that no path reached on this rank has no gradient here, but takes part in the sum.
        has = [parameter.grad is not None for parameter in parameters]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([_shared(parameter) for parameter in parameters])
        if self.may_lack:
            flat = torch.cat([flat, flat.new_tensor(has)])
        key = Key("weights", step, chunk=len(self._pending), use="weights")
        self._pending.append((parameters, self.transport.all_reduce(key, flat)))

    def _take(self, parameters: Sequence[nn.Parameter], flat: Tensor) -> None:
        sizes = [len(_shared(parameter)) for parameter in parameters]
        *parts, have = flat.split([*sizes, len(parameters) if self.may_lack else 0])
        for parameter, part in zip(parameters, parts, strict=True):
            if not holds_own_rows(parameter):
                assert parameter.grad is not None
                parameter.grad.copy_(part.view_as(parameter))
        if not self.may_lack:
            return
        for parameter, ranks in zip(parameters, have.tolist(), strict=True):
            if not ranks:
                parameter.grad = None


def _shared(parameter: nn.Parameter) -> Tensor:
    """The flat gradient that all ranks sum; empty for a weight whose rows are spread over ranks."""
    assert parameter.grad is not None
    flat = parameter.grad.reshape(-1)
    return flat[:0] if holds_own_rows(parameter) else flat


def holds_own_rows(weight: Tensor) -> bool:
    """Whether a weight has one row per node and holds only this rank's rows."""
    return getattr(weight, "holds_own_rows", False)


def _trainable(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters that are not frozen."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def _groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """Group parameters roughly in the order of their gradients, from the last layer to the first.

    Each group is large enough for a message; rows of one rank are in none, so that all ranks have the same groups.
    A parameter's layer is the first number in its name; a name without a
    number belongs to the layer of the parameter before it.
    """
    layer, numbered = 0, list[tuple[int, nn.Parameter]]()
    for name, parameter in model.named_parameters():
        number = re.search(r"\d+", name)
        layer = int(number[0]) if number else layer
        numbered.append((layer, parameter))
    backwards = [parameter for _, parameter in sorted(numbered, key=lambda pair: pair[0])][::-1]
    groups: list[list[nn.Parameter]] = [[]]
    for parameter in _trainable(backwards):
        groups[-1].append(parameter)
        if sum(one.nbytes for one in groups[-1] if not holds_own_rows(one)) >= ENOUGH:
            groups.append([])
    return [group for group in groups if group]
