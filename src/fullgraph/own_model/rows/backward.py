"""Gradients inside a model: hooks on rows are followed in the backward pass, everything else is refused."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.own_code import OwnCodeError
from fullgraph.own_model.rows.follow import Follow
from fullgraph.own_model.rows.guard import RULES
from fullgraph.own_model.rows.place import place_of, refuse
from fullgraph.own_model.rows.spaces import Rows, Sets, mark, rows_of

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward

SHARE = "of a weight would see one rank's share of its gradient; change gradients after they were summed over ranks"
MIXED = (
    "a hook of a tensor mixes gradients of different rows, of which each rank has its own; change the gradient of each "
    "row by itself, and clip gradients of weights after fg.sync_gradients"
)


def hook(forward: "Forward", func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Register a hook that runs in the backward pass; its operations on one rank's rows are followed there."""
    rows = rows_of(x)
    if forward.guard.checks:
        if rows is None:
            refuse(f"{func.__name__} {SHARE}")
        if func.__name__ == "register_hook":
            (function,) = (*args, *kwargs.values())
            return func(x, followed(function, rows, forward.sets))
        forward.guard.meet("a hook of a tensor")
    return func(x, *args, **kwargs)


def followed(function: Callable[[Tensor], Any], rows: Rows, sets: Sets) -> Callable[[Tensor], Any]:
    """A hook whose operations are followed whenever it runs; it cannot sum over ranks."""

    def hook(grad: Tensor) -> Any:
        try:
            with Follow(RULES, sets):
                out = function(mark(grad.view_as(grad), rows.values))
            kept = rows_of(out)
            if out is not None and (kept is None or kept.dim != rows.dim or not kept.fits(rows)):
                refuse("")
        except InputError as error:
            raise OwnCodeError(f"{place_of(error)}{MIXED}") from None
        return out

    return hook


def gradient(forward: "Forward", func: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse gradients inside a model, even of a sum over all ranks by a weight: the result would be one rank's
    share.
    """
    if forward.guard.checks:
        refuse(
            f"{func.__name__} inside of the model computes gradients of rows, which other ranks have a share in; write "
            "the derivative out, or leave it out of forward"
        )
    return func(*args, **kwargs)
