"""Codecs that remember, or ask facts of rows: what they are told of a channel, and what they keep on both of its ends.

class MyCodec:                          # a codec with one method more
    def for_channel(self, facts):       # called once for each direction of each channel
        return MyMemory(...)            # a Memory: makes the codec of each message
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fullgraph.codec.base import Codec, Shape
from fullgraph.transport.key import Key

Side = Literal["sent", "come"]
SIDES: tuple[Side, Side] = ("sent", "come")
ByPeer = dict[int, Tensor]  # rows, or a value of each, by the peer whose message they are
BySide = dict[Side, ByPeer]


class ChannelFacts(Protocol):
    """What is known of the rows of one direction of a channel, by message; None: nothing of the kind."""

    @property
    def ids(self) -> BySide | None:
        """The number of each row's node in the whole graph."""
        ...

    @property
    def grades(self) -> BySide | None:
        """How much rows matter, 0 to 3, by in-degree; only for a codec with a true attribute `graded`."""
        ...

    @property
    def squares(self) -> BySide | None:
        """The sum of the squares of the numbers that readers multiply each row by."""
        ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Message:
    """One message, as the two ranks that code it know it."""

    side: Side  # this rank sends it, or it comes to this rank
    peer: int
    key: Key
    shape: Shape  # of all rows that such a message may hold
    dtype: torch.dtype
    at: Tensor | None  # those of them that cross; None: all

    @property
    def crossing(self) -> Shape:
        """The shape of the rows that cross."""
        return self.shape if self.at is None else (len(self.at), *self.shape[1:])


class Memory:
    """What a codec remembers of one direction of a channel; a checkpoint keeps it.

    Both ends must remember the same: what they read off the bytes that crossed, never the rows before coding.
    `tables` names what is kept: a number per row on the host, of the dtype given, or (None) rows as they cross.
    """

    tables: ClassVar[dict[str, torch.dtype | None]] = {}
    prefix: ClassVar[str] = "codec."  # of the tables' names in a checkpoint

    def codec(self, message: Message) -> Codec:
        """The codec of a message; the number of bytes must not depend on messages after the last `choose`."""
        raise NotImplementedError

    def note(self, message: Message, wire: Tensor) -> None:
        """Remember what crossed; both ends call it once per message, in the order of the messages."""

    def due(self, step: int) -> bool:
        """Whether `choose` comes before this step's messages; all earlier ones are waited for."""
        return False

    def choose(self, sent: dict[int, Shape], come: dict[int, Shape]) -> None:
        """Choose anew, by what is remembered, for messages of these shapes."""

    def kept(self, name: str) -> BySide:
        """All of a table."""
        held: dict[str, BySide] = self.__dict__.setdefault("_kept", {})
        return held.setdefault(name, {"sent": {}, "come": {}})

    def rows(self, name: str, message: Message) -> Tensor | None:
        """What a table has of the rows that cross; None: nothing of this peer yet."""
        kept = self.kept(name)[message.side].get(message.peer)
        return kept if kept is None or message.at is None else kept[message.at.to(kept.device)]

    def keep(self, name: str, message: Message, rows: Tensor) -> None:
        """Put the rows that crossed into a table; the others stay, or are zero."""
        if message.at is not None:
            before = self.kept(name)[message.side].get(message.peer)
            whole = rows.new_zeros((message.shape[0], *rows.shape[1:])) if before is None else before.clone()
            whole[message.at.to(rows.device)] = rows
            rows = whole
        self.kept(name)[message.side][message.peer] = rows

    def held(self) -> dict[str, Tensor]:
        return {
            f"{self.prefix}{name}.{side}.{peer}": rows
            for name in self.tables
            for side in SIDES
            for peer, rows in self.kept(name)[side].items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        for name, dtype in self.tables.items():
            for side in SIDES:
                found = rows_of(state, f"{self.prefix}{name}.{side}.")
                self.kept(name)[side] = found if dtype is None else {peer: rows.cpu() for peer, rows in found.items()}

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        return all(
            are_shaped(
                kept, {peer: shapes.get(peer, ())[: None if kind is None else 1] for peer in kept}, kind or dtype
            )
            for name, kind in self.tables.items()
            for side, shapes in zip(SIDES, (sent, come), strict=True)
            for kept in (self.kept(name)[side],)
        )


def rows_of(state: dict[str, Tensor], prefix: str) -> ByPeer:
    """In peer order, as routes have it; a file has names in an order of its own, such as 0, 1, 10, 11, 2."""
    rows = {int(name.removeprefix(prefix)): rows for name, rows in state.items() if name.startswith(prefix)}
    return dict(sorted(rows.items()))


def are_shaped(rows: ByPeer, shapes: dict[int, Shape], dtype: torch.dtype) -> bool:
    """Whether there are rows of these shapes, for every peer."""
    same = {peer: tuple(value.shape) for peer, value in rows.items()} == shapes
    return same and {value.dtype for value in rows.values()} <= {dtype}
