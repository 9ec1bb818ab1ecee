"""Record the output of one layer for each node while the model runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from fullgraph.errors import InputError, one_line


@runtime_checkable
class Layered(Protocol):
    """A model with named layers."""

    def layer_names(self) -> dict[str, nn.Module]:
        """Return layers by number, starting at "1", and by the model's names."""


@contextmanager
def watched(model: nn.Module, layer: str) -> Iterator[list[Tensor]]:
    """Collect the results of the named or numbered layer while the block runs; an empty name collects nothing."""
    if not layer:
        yield []
        return
    names = model.layer_names() if isinstance(model, Layered) else dict(model.named_modules())
    if layer not in names:
        known = one_line(", ".join(name for name in names if name), 160)
        raise InputError(f"embeddings: the model has no layer {one_line(layer, 40)!r}; it has {known}")
    seen: list[Tensor] = []

    def keep(part: nn.Module, args: Any, out: Any) -> None:
        rows = out[0] if isinstance(out, tuple) and out else out
        if isinstance(rows, Tensor):
            seen.append(rows.detach())

    handle = names[layer].register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def rows_seen(seen: list[Tensor], layer: str, num_rows: int) -> Tensor:
    """Return the layer's only result as [rows, columns] in at least float32."""
    if len(seen) != 1:
        raise InputError(
            f"embeddings: layer {layer!r} gives rows {len(seen)} times in a pass, not once; name another one"
        )
    rows = seen[0]
    if not rows.dim() or len(rows) != num_rows:
        raise InputError(
            f"embeddings: layer {layer!r} gives {tuple(rows.shape)} for {num_rows} nodes; name another one"
        )
    rows = rows.reshape(num_rows, -1) if num_rows else rows.flatten(1)
    return rows.float() if rows.dtype.itemsize < 4 else rows
