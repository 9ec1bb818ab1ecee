"""Torch functions inside a distributed forward pass: dropout by global id, batch norm over all ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fullgraph.own_model.forward import Forward, running
from fullgraph.own_model.rows.draws import DRAWS, by_id, drawn, gumbel_softmax
from fullgraph.own_model.rows.lengths import LENGTHS
from fullgraph.own_model.rows.outside import watch_outside
from fullgraph.own_model.rows.place import refuse, refused
from fullgraph.own_model.rows.spaces import SAME, current, mark, rows_of
from fullgraph.own_model.rows.sparse import EdgeMatrix
from fullgraph.own_model.rows.special import SPECIAL
from fullgraph.own_model.rows.sums import SUMS

ASKS = frozenset(
    [Tensor.dim, Tensor.is_floating_point, Tensor.is_complex]
    + [
        getattr(Tensor, name).__get__
        for name in ("dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_sparse", "is_leaf", "grad_fn",
                     "_version")
    ]
)  # fmt: skip  # their answers about a tensor are equal on every rank
NUMPYS = {"axis": "dim", "keepdims": "keepdim"}  # torch takes these names too
OVER_RANKS = SUMS | LENGTHS


class RowMode(TorchFunctionMode):
    """Active while a forward pass runs."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.forward = forward

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, forward = kwargs or {}, self.forward
        if EdgeMatrix in types:
            with self:  # the operations inside its products are followed
                return EdgeMatrix.__torch_function__(func, types, args, kwargs)
        if func in ASKS:
            return func(*args, **kwargs)
        again = None if forward.trusted else forward.trace.again(forward.calls, func, args, kwargs)
        if again is not None:
            forward.calls += 1
            return again.marked(func(*args, **kwargs))
        rule = _RULES.get(func)
        if rule is not None:
            return _seen(rule(forward, func, *args, **kwargs))
        if forward.trusted:
            return func(*args, **kwargs)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            refuse(
                "torch.compile of a function, torch.func and vmap hide which rows a tensor holds; write the "
                "computation without them"
            )
        out = self._special(func, args, kwargs)
        return forward.guard.call(forward, func, args, kwargs) if out is NotImplemented else _seen(out)

    def _special(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in OVER_RANKS:
            named = {NUMPYS.get(name, name): value for name, value in kwargs.items()}
            first = () if args else (named.pop("input", None),)
            into = named.pop("out", None)
            if not rows_of((*first, *args)[0]):
                return NotImplemented
            found = OVER_RANKS[func](self.forward, *first, *args, **named)
            return found if into is None or found is NotImplemented else _written(found, into)
        if func in SPECIAL:
            return SPECIAL[func](self.forward, func, *args, **kwargs)
        return NotImplemented


def _seen(out: Any) -> Any:
    """Mark results without a mark as equal on every rank."""
    for x in (out,) if isinstance(out, Tensor) else out if isinstance(out, tuple | list) else ():
        if isinstance(x, Tensor) and current(x) is None:
            mark(x, SAME)
    return out


def _written(found: Any, into: Any) -> Any:
    """The result, written into the tensor that was given as `out`."""
    if not isinstance(found, Tensor) or not isinstance(into, Tensor):
        refuse("several results over rows of all ranks are written with out=; take them as results")
    return mark(into.resize_(found.shape).copy_(found), current(found))


@contextmanager
def entered(forward: Forward) -> Iterator[None]:
    """While the block runs, torch's functions and the model's layers know that rows belong to one rank.

    A refusal that the model caught is raised again at the end, because its later results differ from those of one
    process.
    """
    watch_outside()
    token, caught = running.set(forward), refused.set([] if forward.guard.checks else None)
    try:
        with RowMode(forward):
            yield
        if errors := refused.get():
            raise errors[0]
    finally:
        refused.reset(caught)
        running.reset(token)


def _dropout(
    forward: Forward, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if not training or not p > 0:
        return input
    if not inplace:
        return forward.dropout(input, p)
    ones = torch.ones_like(input, requires_grad=False)
    return input.mul_(forward.dropout(mark(ones, current(input)), p))


def _torch_dropout(forward: Forward, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
    return forward.dropout(input, p) if train and p > 0 else input


def _batch_norm(
    forward: Forward, func: Any, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias,  mean and variance over the rows of all ranks."""
    rows = rows_of(input)
    if rows is not None and rows.dim == 1:
        refuse("a batch norm has rows of nodes for channels")
    if not training or (rows is None and not forward.trusted):
        out: Tensor = func(input, running_mean, running_var, weight, bias, training, momentum, eps)
        return mark(out, rows)
    fine = torch.promote_types(input.dtype, torch.float32)
    x = input.to(fine)
    dims = [0, *range(2, x.dim())]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    count = x.new_tensor([x.numel() // max(1, x.shape[1])])
    sums = forward.reduce(torch.cat([x.sum(dims), count]))
    mean, total = sums[:-1] / sums[-1].detach(), sums[-1].detach()
    centred = x - mean.view(shape)
    var = forward.reduce(centred.square().sum(dims)) / total
    if running_mean is not None and running_var is not None and not forward.replaying:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * total / (total - 1).clamp(min=1)).to(running_var.dtype), momentum)
    out = centred * (var + eps).rsqrt().view(shape)
    if weight is not None:
        out = out * weight.view(shape)
    if bias is not None:
        out = out + bias.view(shape)
    return mark(out.to(input.dtype), rows)


def _refused(forward: Forward, func: Any, *args: Any, **kwargs: Any) -> Any:
    refuse(
        f"the model calls {getattr(func, '__name__', func)}, whose draws depend on the number of ranks; "
        "use F.dropout, torch.rand or torch.randn, which draw by node, or add the random numbers to the graph's x"
    )


def _drawn(forward: Forward, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Random numbers, drawn by the id of each row as in dropout, or equal on every rank."""

    def new(*size: Any, **kwargs: Any) -> Tensor:
        found: Tensor = SPECIAL[torch.empty](forward, torch.empty, *size, **kwargs)
        return found

    return drawn(func, args, kwargs, new, partial(by_id, forward))


def _gumbel_softmax(forward: Forward, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    with RowMode(forward):
        return gumbel_softmax(*args, **kwargs)


_RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(DRAWS, _drawn),
    F.gumbel_softmax: _gumbel_softmax,
    F.dropout: _dropout,
    torch.dropout: _torch_dropout,
    F.batch_norm: _batch_norm,
    **dict.fromkeys(
        (
            F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.poisson,
            torch.randint_like, Tensor.random_, Tensor.geometric_, Tensor.cauchy_, Tensor.log_normal_, torch.binomial,
        ),
        _refused,
    ),
}  # fmt: skip
