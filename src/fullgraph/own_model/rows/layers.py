"""Torch functions that are whole layers and treat each row separately: recurrent networks, bags of embeddings.

A function returns NotImplemented if torch's own function is correct.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.own_model.rows.follow import flat
from fullgraph.own_model.rows.indexing import BY_FREQUENCY
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import mark, rows_of
from fullgraph.own_model.rows.values import POSITION, is_even

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward


def one_hot(forward: "Forward", func: Any, tensor: Tensor, num_classes: int = -1) -> Any:
    rows = rows_of(tensor)
    if rows is None:
        return NotImplemented
    if rows.points is not None or num_classes < 1:
        refuse("one_hot counts the classes of one rank's rows; give num_classes")
    return mark(func(tensor, num_classes), rows)


def recurrent(forward: "Forward", func: Any, *args: Any) -> Any:
    """LSTM, GRU and RNN over short sequences: each row is a separate sequence."""
    rows = rows_of(args[0])
    if rows is None:
        return NotImplemented
    if not isinstance(args[3], bool):
        refuse("packed sequences of rows cannot be followed over ranks; give a tensor [rows, steps, features]")
    along = 0 if args[-1] else 1
    if args[0].dim() != 3 or rows.dim != along:
        refuse("a recurrent network runs along the rows of nodes; there is no order of nodes over ranks")
    for state in flat(args[1]):
        first = rows_of(state)
        if not is_even(state, 1) or (first is not None and not first.fits(rows.values)):
            refuse(f"a recurrent network begins with states that have a row per position; {POSITION}")
    if args[5] and args[6]:
        refuse("dropout inside of a recurrent network depends on the number of ranks; use F.dropout on its output")
    out, *states = func(*args)
    return (mark(out, rows), *(mark(state, rows.at(1)) for state in states))


def embedding_bag(
    forward: "Forward", func: Any, input: Any, weight: Any, offsets: Any = None, max_norm: Any = None, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """A mean, sum or maximum of rows of a table, for each row of numbers."""
    rows = rows_of(input)
    if rows is None:
        return NotImplemented
    weights = [rows_of(x) for x in flat((args, tuple(kwargs.values())))]
    plain = rows_of(weight) is None and rows.points is None and not rows.dim and rows.is_single and input.dim() == 2
    if kwargs.get("scale_grad_by_freq") or (args and args[0]):
        refuse(BY_FREQUENCY.format("embedding_bag"))
    if not plain or offsets is not None or max_norm is not None or any(w is None or not w.fits(rows) for w in weights):
        refuse("embedding_bag is known for a row of numbers for each row of nodes, without offsets and max_norm")
    return mark(func(input, weight, offsets, max_norm, *args, **kwargs), rows)


def linear(forward: "Forward", func: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    """A map of the last dimension: torch joins the others for it, which hides the rows of a rank that has only one."""
    rows, owned = rows_of(input), forward.guard.owned
    if rows is None or input.dim() < 3 or rows.dim == input.dim() - 1 or rows.points is not None:
        return NotImplemented
    if id(weight) not in owned or rows_of(weight) is not None or (bias is not None and id(bias) not in owned):
        return NotImplemented
    forward.guard.meet_maker(input)
    return mark(func(input, weight, bias), rows)


def bilinear(
    forward: "Forward", func: Any, one: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Any:
    """Row by row over two inputs: y = one W other + b."""
    marks = [rows_of(x) for x in (one, other)]
    if not any(marks):
        return NotImplemented
    rows = marks[0]
    if (
        rows is None
        or marks[1] is None
        or rows.dim == one.dim() - 1
        or rows.dim != marks[1].dim
        or not rows.fits(marks[1])
    ):
        refuse(f"bilinear is given rows of different sets, or rows beside a tensor that has none; {POSITION}")
    return mark(func(one, other, weight, bias), rows)


_VF: Any = torch._VF
LAYERS: dict[Any, Callable[..., Any]] = {
    F.one_hot: one_hot,
    F.linear: linear,
    F.bilinear: bilinear,
    F.embedding_bag: embedding_bag,
    **dict.fromkeys((_VF.lstm, _VF.gru, _VF.rnn_tanh, _VF.rnn_relu), recurrent),
}
