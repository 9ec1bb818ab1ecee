"""Random numbers inside a model, equal on any number of ranks: rows draw by the id of their node or edge.

Every entry of a new tensor gets a number k below 2^24 by the hash that dropout uses: by row id and column for a tensor
of rows, by position for a tensor that is equal on every rank. Each distribution is a function of k.
"""

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.ops.hashing import draws, row_keys
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import mark, rows_of

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward

BITS = 24  # the precision of a float32
MIDDLE = 2 ** (BITS - 1)  # replaces all k in the self-check, which compares with a process that draws other numbers

New = Callable[..., Tensor]  # makes an empty tensor of a size
Drawn = tuple[Tensor, bool, Callable[[Tensor], Tensor]]  # (the tensor to fill, whether it is given, its values by k)


def _uniform(k: Tensor, low: Any = 0.0, high: Any = 1.0) -> Any:
    return low + (high - low) * (k.double() * 2.0**-BITS)


def _normal(k: Tensor, mean: Any = 0.0, std: Any = 1.0) -> Any:
    return mean + std * (sqrt(2) * torch.erfinv((2 * k.double() + 1) * 2.0**-BITS - 1))


def _bernoulli(k: Tensor, p: Any = 0.5) -> Any:
    return k.double() * 2.0**-BITS < p


def _exponential(k: Tensor, rate: float = 1.0) -> Tensor:
    return -torch.log1p(-(k.double() + 0.5) * 2.0**-BITS) / rate


def _integers(k: Tensor, low: int, high: int) -> Tensor:
    return low + ((k * (high - low)) >> BITS)


def _made(values: Callable[..., Tensor], **always: Any) -> Callable[..., Drawn]:
    """A function of a size, such as torch.rand."""
    return lambda new, *sizes, **kwargs: (new(*sizes, **(always | kwargs)), False, values)


def _like(values: Callable[..., Tensor]) -> Callable[..., Drawn]:
    return lambda new, x, **kwargs: (_empty_like(x, **kwargs), False, values)


def _empty_like(x: Tensor, **kwargs: Any) -> Tensor:
    rows = rows_of(x)
    return mark(torch.empty_like(x, **kwargs), rows and rows.values)


def _given(values: Callable[..., Tensor], *names: str) -> Callable[..., Drawn]:
    """A method that fills its tensor; names: of its arguments, in the order in which `values` takes them."""

    def plan(new: New, x: Tensor, *args: Any, **kwargs: Any) -> Drawn:
        given = dict(zip(names, args, strict=False)) | kwargs
        if any(name not in names for name in given) or any(name not in given for name in names[: len(given)]):
            refuse(f"random numbers are drawn with {', '.join(given)}; name {', '.join(names)} alone")
        return x, True, lambda k: values(k, *(given[name] for name in names[: len(given)]))

    return plan


def _of_chances(new: New, p: Tensor) -> Drawn:
    return _empty_like(p), False, lambda k: _bernoulli(k, p)


def _of_means(new: New, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **kwargs: Any) -> Drawn:
    of = next((x for x in (mean, std) if isinstance(x, Tensor)), None)
    x = new(size, **kwargs) if of is None else _empty_like(of)
    return x, False, lambda k: _normal(k, mean, std)


def _randint(new: New, *args: Any, low: int = 0, high: Any = None, size: Any = None, **kwargs: Any) -> Drawn:
    *bounds, size = args if size is None else (*args, size)
    bounds = [*bounds] if high is None else [*bounds, high]
    low, high = bounds if len(bounds) == 2 else (low, *bounds)
    if any(type(bound) is not int for bound in (low, high)):
        refuse("torch.randint draws positions of nodes or edges; each rank has others: draw by torch.rand for each row")
    return new(size, **({"dtype": torch.int64} | kwargs)), False, lambda k: _integers(k, low, high)


def _randperm(new: New, n: Any, **kwargs: Any) -> Drawn:
    if type(n) is not int:
        refuse("torch.randperm gives an order of nodes or edges, and no rank has all of them; draw by torch.rand")
    return new(n, **({"dtype": torch.int64} | kwargs)), False, lambda k: k.argsort(stable=True)


def _multinomial(new: New, p: Tensor, num_samples: int, replacement: bool = False) -> Drawn:
    """From each row of chances; the first class whose sum of chances is more than the draw."""
    rows = rows_of(p)
    if (rows is not None and rows.dim == p.dim() - 1) or (num_samples > 1 and not replacement):
        refuse("torch.multinomial draws from the rows of all ranks, or without replacement; draw by torch.rand")
    x = mark(torch.empty(*p.shape[:-1], num_samples, dtype=torch.int64, device=p.device), rows)

    def values(k: Tensor) -> Any:
        sums = p.double().cumsum(-1)
        return (sums[..., None, :] <= (_uniform(k) * sums[..., -1:])[..., None]).sum(-1)

    return x, False, values


DRAWS: dict[Any, Callable[..., Drawn]] = {
    torch.rand: _made(_uniform),
    torch.randn: _made(_normal),
    torch.randint: _randint,
    torch.rand_like: _like(_uniform),
    torch.randn_like: _like(_normal),
    torch.normal: _of_means,
    Tensor.uniform_: _given(_uniform, "from", "to"),
    Tensor.normal_: _given(_normal, "mean", "std"),
    Tensor.bernoulli_: _given(_bernoulli, "p"),
    Tensor.exponential_: _given(_exponential, "lambd"),
    torch.randperm: _randperm,
    **dict.fromkeys((torch.multinomial, Tensor.multinomial), _multinomial),
    torch.bernoulli: _of_chances,
    Tensor.bernoulli: _of_chances,
}


@torch.no_grad()
def drawn(func: Any, args: Any, kwargs: Any, new: New, numbers: Callable[[Tensor], Tensor]) -> Tensor:
    """What a function of DRAWS returns. new: torch.empty. numbers: k for every entry of a tensor."""
    kwargs = {name: value for name, value in kwargs.items() if value is not None and value is not False}
    if kwargs.keys() & {"generator", "out", "requires_grad"}:
        refuse(f"{func.__name__} is called with {', '.join(kwargs)}; draw without a generator, into a new tensor")
    x, given, values = DRAWS[func](new, *args, **kwargs)
    found = values(numbers(x)).to(x.dtype)
    return x.copy_(found) if given else mark(found, rows_of(x))


def by_id(forward: "Forward", x: Tensor) -> Tensor:
    """k for every entry of a tensor."""
    rows = rows_of(x)
    if rows is not None and rows.points is not None:
        refuse("random numbers are written over positions of nodes or edges; make a new tensor for them")
    key = forward.draw_key()
    if not forward.draws:
        return middle(x)

    def of_rows(flat: Tensor, ids: Tensor) -> Tensor:
        a, b = row_keys(key, ids)
        return draws(a[:, None], b[:, None], torch.arange(flat.shape[1], device=ids.device)) >> (32 - BITS)

    return forward.by_rows(x, of_rows)


def middle(x: Tensor) -> Tensor:
    return torch.full(x.shape, MIDDLE, dtype=torch.int64, device=x.device)


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:  # fmt: skip
    """As torch's function, which hides its draws."""
    noise = -torch.empty_like(logits).exponential_().log()
    soft = F.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    best = torch.zeros_like(logits).scatter_(dim, soft.max(dim, keepdim=True)[1], 1.0)
    return best - soft.detach() + soft
