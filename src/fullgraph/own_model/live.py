"""Live rows of a user's model: a layer on our kernels computes only the rows that the loss reads.

A forward pass reads rows of neighbours `total` times, one reading after another. What is computed after reading r can
cross at most total - 1 - r further edges. The loss therefore reads only those of its rows that are at most as many
hops from a training node. This is true whatever the model does between readings, except for a sum over nodes (also a
norm, a count or an extreme) and for messages against the edges, which may read all rows of everything before them.

All other rows of a layer's output are copies of a row that is computed: nothing in training reads them, and like all
computed rows they are finite.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.own_model.live_view import LiveView
from fullgraph.own_model.pyg_view import PygView
from fullgraph.own_model.rows.spaces import Ends, mark, rows_of
from fullgraph.own_model.typed.live import LiveRelation, LiveTyped
from fullgraph.own_model.typed.views import TypedView
from fullgraph.placement.holding.live import WORTH, live_rows

PLAIN = (bool, int, float, str, type(None))

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Counts, Forward


@dataclass(frozen=True, slots=True)
class Readings:
    """How often a training pass reads rows of neighbours: in total, and before its last sum over nodes."""

    total: int = 0
    before_sum: int = 0

    def also(self, counts: "Counts") -> "Readings":
        return Readings(max(self.total, counts.reads), max(self.before_sum, counts.before_sum))

    @property
    def hops(self) -> tuple[int | None, ...]:
        """By reading: how far from a training node its results are read; None: everywhere."""
        return tuple(None if r < self.before_sum else self.total - 1 - r for r in range(self.total))


class LiveRows:
    """The part of a rank's graph that each reading of a training pass needs; None: all of it."""

    def __init__(self, readings: Readings, parts: list[LiveView | LiveTyped | None]) -> None:
        self.readings, self.parts = readings, parts

    @classmethod
    def of(cls, view: PygView, readings: Readings, worth: float = WORTH) -> "LiveRows | None":
        """worth: a reading needs all rows if it would still read more than this share of the edges."""
        if all(hop is None for hop in readings.hops):
            return None
        near_n, kind = view.graph.rows.masks["train"].clone(), LiveTyped if isinstance(view, TypedView) else LiveView
        for rows in view.apart.rows.values() if isinstance(view, TypedView) else (torch.arange(len(near_n)),):
            if not near_n[rows].any():
                near_n[rows[:1]] = True  # so that every rank computes a row, which the other rows can copy
        live = live_rows(view.graph.with_rows(masks={"train": near_n}), readings.hops, view.transport, worth)
        if live is None:
            return None
        parts = {
            hop: kind.within(view, live.level_n <= hop, f"setup/live part {hop}")
            for hop in sorted({hop for hop in live.hops if hop is not None})
        }
        return cls(readings, [None if hop is None else parts[hop] for hop in live.hops])

    def part(self, reading: int) -> LiveView | LiveTyped | None:
        return self.parts[reading] if reading < len(self.parts) else None

    def check(self, counts: "Counts") -> None:
        """Refuse a pass whose loss may read rows that were not computed."""
        if self.readings.also(counts) != self.readings:
            raise InputError(
                "the model reads neighbours or sums over nodes more often than in the self-check, so rows may be "
                "missing that the loss reads; compute all rows (--all-rows)"
            )


def on_live_rows(forward: "Forward", layer: Callable[..., Tensor | None], args: Any, kwargs: Any) -> Tensor | None:
    """A layer on our kernels, over the rows that are read later; None if it cannot run there."""
    values = (*args, *kwargs.values())
    with torch._C.DisableTorchFunction():  # our own code
        view = next((view for value in values if (view := _over(forward, value)) is not None), None)
    if view is None:
        return None
    counts, reading = forward.counts, forward.counts.reads
    with torch._C.DisableTorchFunction():
        part, given = _trimmed(forward, view, reading, values)
    with forward.over(view if part is None else part):
        out = layer(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))
    if out is None:
        return None
    counts.reads = reading + 1  # its messages cross one edge, however often it reads rows
    if part is None:
        return out
    with torch._C.DisableTorchFunction():
        return mark(part.spread(out), view.node_rows)


def _over(forward: "Forward", value: Any) -> PygView | None:
    """The view of a layer that is given this edge_index."""
    rows = rows_of(value)
    return forward.view.over(rows.space) if rows is not None and rows.points is Ends.BOTH else None


def _trimmed(
    forward: "Forward", view: PygView, reading: int, values: tuple[Any, ...]
) -> tuple[LiveView | LiveRelation | None, list[Any]]:
    """The part of the view that a reading needs, and a layer's arguments for it; else None, and them as they are."""
    live = None if forward.live is None else forward.live.part(reading)
    if live is not None:
        part = live.part_of(view)
        given = [part.given(value, forward.keep) for value in values]
        if not any(value is NotImplemented for value in given):
            return part, given
    return None, list(values)


def kept_rows(module: nn.Module) -> str:
    """The name of an attribute or buffer in which a model keeps rows for later steps; empty if there is none."""
    for name, part in module.named_modules():
        for key, value in (vars(part) | part._buffers | {"_buffers": None, "_parameters": None}).items():
            many = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            if any(rows_of(one) is not None for one in many):
                return f"{name}.{key}".lstrip(".")
    return ""


def counters(module: nn.Module) -> dict[str, Any]:
    """A model's plain attributes, and the versions of its buffers: a later pass may depend on what changes there."""
    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        plain = {key: x for key, x in vars(part).items() if isinstance(x, PLAIN) and key != "training"}
        if not isinstance(part, nn.modules.batchnorm._BatchNorm):
            plain |= {key: (id(x), x._version) for key, x in part._buffers.items() if x is not None}
        found |= {f"{name}.{key}".lstrip("."): x for key, x in plain.items()}
    return found


def first_change(before: dict[str, Any], after: dict[str, Any]) -> str:
    return next((name for name, value in after.items() if before.get(name) != value), "")
