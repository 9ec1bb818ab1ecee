"""A step's rows as its readers see them: what came, among what they had."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fullgraph.codec import Shape
from fullgraph.exchange.memory import ByPeer, are_shaped, rows_of
from fullgraph.exchange.picks import Picked
from fullgraph.transport import Pending


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Rows by peer, and which of them are absent."""

    rows: ByPeer
    absent: ByPeer

    def fits(self, shapes: dict[int, Shape], dtype: torch.dtype) -> bool:
        counts = {peer: shape[:1] for peer, shape in shapes.items()}
        return are_shaped(self.rows, shapes, dtype) and are_shaped(self.absent, counts, torch.bool)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Filling:
    """How the rows that crossed at a step become all rows of its messages."""

    picked: Picked | None
    scale: float  # of rows that crossed
    shapes: dict[int, Shape]
    silent: frozenset[int]  # peers that had nothing new to say
    like: Tensor

    def __call__(self, came: ByPeer, before: Seen | None) -> Seen:
        rows, absent = {}, {}
        for peer, shape in self.shapes.items():
            if self.picked is None and peer not in self.silent:  # all of its rows came
                rows[peer], absent[peer] = came[peer], torch.zeros(shape[0], dtype=torch.bool)
                continue
            rows[peer], absent[peer] = self._old(peer, shape, before)
            if self.picked is not None and peer not in self.silent:
                self._put(self.picked, peer, came.get(peer), rows[peer], absent[peer])
        return Seen(rows, absent)

    def _old(self, peer: int, shape: Shape, before: Seen | None) -> tuple[Tensor, Tensor]:
        """A copy: versions share no memory, for a checkpoint may hold several."""
        if before is not None:
            return before.rows[peer].clone(), before.absent[peer].clone()
        return self.like.new_zeros(shape), torch.zeros(shape[0], dtype=torch.bool)

    def _put(self, picked: Picked, peer: int, came: Tensor | None, rows: Tensor, absent: Tensor) -> None:
        """Write what came over the rows that were due."""
        due, drawn, device = picked.due[peer], picked.come[peer], rows.device
        rows[due.to(device)], absent[due] = 0, True
        absent[drawn] = False
        if came is not None:
            rows[drawn.to(device)] = came if self.scale == 1 else came * self.scale


def seen_in(state: dict[str, Tensor], name: str) -> Seen:
    """What a checkpoint holds under a name, and `absent.` before the name."""
    absent = rows_of(state, f"absent.{name}.")
    return Seen(rows_of(state, f"{name}."), {peer: rows.cpu() for peer, rows in absent.items()})


class Version:
    """Under way, and then there; `before` is the version whose rows it goes over, if it goes over any."""

    def __init__(self, coming: Pending[ByPeer], filling: Filling, before: "Version | Kept | None") -> None:
        self._coming, self._filling, self._before = coming, filling, before
        self._seen: Seen | None = None

    def seen(self) -> Seen:
        if self._seen is None:
            before = None if self._before is None else self._before.seen()
            self._seen = self._filling(self._coming.wait(), before)
            self._before = None
        return self._seen

    def wait(self) -> ByPeer:
        return self.seen().rows


class Kept:
    """A version out of a checkpoint."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def seen(self) -> Seen:
        return self._seen

    def wait(self) -> ByPeer:
        return self._seen.rows
