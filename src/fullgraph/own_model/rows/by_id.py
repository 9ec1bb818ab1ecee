"""Tables with one row per node, read by global ids: `emb(node_id)`, `emb(arange(N))`."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import Ends, Rows, Space, mark, rows_of

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward

OTHERS = (
    "rows of other nodes are read from a table with a row per node, of which a rank holds those of its own nodes; "
    "read it by node_id, by arange over all nodes, by edge_index[0], or use its weight"
)


def positions(forward: "Forward", numbers: Tensor, table: Tensor) -> Tensor:
    """Positions of global ids among this rank's rows of a table, marked as positions."""
    by, held = rows_of(numbers), rows_of(table)
    assert held is not None
    view, nodes = forward.view.at(held.space), held.space
    total = view.num_nodes
    with torch._C.DisableTorchFunction():
        if by is None:
            whole = torch.arange(total, device=numbers.device)
            if numbers.shape != whole.shape or not torch.equal(numbers, whole.to(numbers.dtype)):
                refuse(OTHERS)
            return mark(torch.arange(nodes.size, device=numbers.device), Rows(nodes, 0, points=nodes))
        ids, order = view.once("sorted ids", lambda: view.numbers.sort())
        place = torch.searchsorted(ids, numbers.detach()).clamp(max=max(0, len(ids) - 1))
        if numbers.numel() and (not len(ids) or not torch.equal(ids[place], numbers)):
            refuse(OTHERS)
        return mark(order[place] if len(ids) else place, Rows(by.space, by.dim, by.each, nodes, by.blocks))


def is_by_number(forward: "Forward", x: Any, index: Any) -> bool:
    """Whether a table with one row per node is read by global ids."""
    if not any(x is table for table in forward.guard.tables) or not isinstance(index, Tensor):
        return False
    rows = rows_of(index)
    return index.dtype in (torch.int64, torch.int32) and (rows is None or rows.points is None)


def embedding(
    forward: "Forward", func: Any, input: Any, weight: Any, padding_idx: int | None = None,
    max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    """nn.Embedding over the nodes of the graph."""
    rows, table = rows_of(input), rows_of(weight)
    if table is None:
        return NotImplemented
    if rows is not None and rows.points is Ends.SOURCES and padding_idx is None and max_norm is None:
        return forward.lift(weight, 0, input)
    if is_by_number(forward, weight, input):
        index = positions(forward, input, weight)
    elif rows is not None and isinstance(rows.points, Space) and rows.points.is_like(table.space):
        index = input
    else:
        refuse(OTHERS)
    if scale_grad_by_freq or sparse:
        refuse("a table with a row per node is an nn.Embedding; leave out scale_grad_by_freq and sparse")
    by = rows_of(index)
    assert by is not None
    view = forward.view.at(table.space)
    padding = None if padding_idx is None else padding_idx % view.num_nodes
    own = [] if padding is None else (view.numbers == padding).nonzero().flatten().tolist()
    out = func(index, weight, own[0] if own else None, max_norm, norm_type)
    return mark(out, by.values)
