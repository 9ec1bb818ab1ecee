"""Random numbers for rows, drawn by the id of each node or edge as in dropout: equal on any number of ranks.

utils.dropout_edge of PyG keeps the edges whose number in torch.rand(e.size(1)) is large enough.
"""

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from fullgraph.ops.hashing import draws, row_keys
from fullgraph.own_model.rows.count import Count
from fullgraph.own_model.rows.spaces import Rows, mark

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward

MIDDLE = 0.5  # replaces all numbers in the self-check, which compares with a process that draws other numbers
BITS = 24  # the precision of a float32


def uniform(
    forward: "Forward",
    *args: Any,
    size: Any = None,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **others: Any,
) -> Any:
    """torch.rand for a tensor of rows; NotImplemented for any other tensor."""
    sizes = args if size is None else size
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    counts = [one for one in sizes if type(one) is Count]
    if (
        any(others.values())
        or len(counts) != 1
        or type(sizes[0]) is not Count
        or counts[0].shift
        or counts[0].scale != 1
    ):
        return NotImplemented
    space = counts[0].space
    shape = (space.size, *map(int, sizes[1:]))
    key = forward.draw_key()
    dtype = dtype or torch.get_default_dtype()
    if not forward.draws:
        out = torch.full(shape, MIDDLE, dtype=dtype, device=device)
    else:
        a, b = row_keys(key, space.ids)
        drawn = draws(a[:, None], b[:, None], torch.arange(prod(shape[1:]), device=space.ids.device))
        out = ((drawn >> (32 - BITS)) * 2.0**-BITS).to(dtype=dtype, device=device).view(shape)
    return mark(out, Rows(space, 0))
