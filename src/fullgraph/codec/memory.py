"""Codecs with state or facts about rows: the facts of a channel, and the state that both of its ends keep.

class MyCodec:                          # a codec with one more method
    def for_channel(self, facts):       # called once for each direction of each channel
        return MyMemory(...)            # a Memory: builds the codec of each message
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fullgraph.codec.base import Codec, Shape
from fullgraph.own_code import unfit
from fullgraph.transport.key import Key

Side = Literal["sent", "come"]
SIDES: tuple[Side, Side] = ("sent", "come")
ByPeer = dict[int, Tensor]  # rows, or one value per row, by the peer of the message
BySide = dict[Side, ByPeer]


class ChannelFacts(Protocol):
    """Facts about the rows of one direction of a channel, by message; None: the placement does not provide them."""

    @property
    def ids(self) -> BySide | None:
        """The number of each row's node in the whole graph."""
        ...

    @property
    def grades(self) -> BySide | None:
        """Importance of rows, 0 to 3, by in-degree; only if the codec's attribute `graded` is true."""
        ...

    @property
    def squares(self) -> BySide | None:
        """For each row, the sum of the squared weights by which readers multiply it."""
        ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Message:
    """The facts of one message that both of its ranks know."""

    side: Side  # whether this rank sends or receives it
    peer: int
    key: Key
    shape: Shape  # shape of all rows that the message may hold
    dtype: torch.dtype
    at: Tensor | None  # the rows that cross; None: all

    @property
    def crossing(self) -> Shape:
        """The shape of the rows that cross."""
        return self.shape if self.at is None else (len(self.at), *self.shape[1:])


class Memory:
    """The state of a codec for one direction of a channel; checkpoints save it.

    Both ends must keep the same state: values read from the bytes that crossed, never the rows before coding.
    `tables` names the state: one number per row on the host, of the given dtype, or (None) rows as they cross.
    """

    tables: ClassVar[dict[str, torch.dtype | None]] = {}
    prefix: ClassVar[str] = "codec."  # begins the tables' names in a checkpoint

    def codec(self, message: Message) -> Codec:
        """The codec of a message; its number of bytes must not depend on messages after the last `choose`."""
        raise NotImplementedError

    def note(self, message: Message, wire: Tensor) -> None:
        """Store values of a message that crossed; both ends call it once per message, in the order of messages."""

    def due(self, step: int) -> bool:
        """Whether `choose` is called before this step's messages, after all earlier messages have arrived."""
        return False

    def choose(self, sent: dict[int, Shape], come: dict[int, Shape]) -> None:
        """Use the state to make a new choice for messages of these shapes."""

    def kept(self, name: str) -> BySide:
        """A whole table."""
        if name not in self.tables:
            raise unfit(self, f"keeps {name!r}, but its tables are {', '.join(self.tables) or 'none'}: add it there")
        held: dict[str, BySide] = self.__dict__.setdefault("_kept", {})
        return held.setdefault(name, {"sent": {}, "come": {}})

    def rows(self, name: str, message: Message) -> Tensor | None:
        """A table's entries for the rows that cross; None: no message of this peer yet."""
        kept = self.kept(name)[message.side].get(message.peer)
        return kept if kept is None or message.at is None else kept[message.at.to(kept.device)]

    def keep(self, name: str, message: Message, rows: Tensor) -> None:
        """Write the rows that crossed into a table; other rows are unchanged, or zero."""
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
    """Rows in peer order, as in routes; a file sorts names differently, such as 0, 1, 10, 11, 2."""
    rows = {int(name.removeprefix(prefix)): rows for name, rows in state.items() if name.startswith(prefix)}
    return dict(sorted(rows.items()))


def are_shaped(rows: ByPeer, shapes: dict[int, Shape], dtype: torch.dtype) -> bool:
    """Whether there are rows of these shapes, for every peer."""
    same = {peer: tuple(value.shape) for peer, value in rows.items()} == shapes
    return same and {value.dtype for value in rows.values()} <= {dtype}
