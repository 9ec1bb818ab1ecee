"""Encoding and decoding of one step's messages: the rows that cross, with each message's codec."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.codec import Codec, Memory, Message, Shape
from fullgraph.codec.memory import Side
from fullgraph.exchange.own import codec_of, note
from fullgraph.exchange.rows import Picked
from fullgraph.exchange.state import Residuals
from fullgraph.transport import Key


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepCoding:
    """The coding of one step's messages."""

    codec: Codec
    residuals: Residuals | None
    picked: Picked | None
    memory: Memory | None
    key: Key
    rank: int
    shapes: dict[int, Shape]  # by peer, the shape of all rows that it may send
    like: Tensor

    def crosses(self, side: Side, peer: int) -> bool:
        """Whether any row of a message crosses."""
        at = self._at(side, peer)
        return at is None or len(at) > 0

    def incoming(self) -> dict[int, int]:
        """The size in bytes of each peer's message."""
        shapes = self.shapes.items()
        return {peer: self._nbytes("come", peer, shape, self.like.dtype) for peer, shape in shapes}

    def nbytes(self, peer: int, rows: Tensor) -> int:
        return self._nbytes("sent", peer, tuple(rows.shape), rows.dtype)

    def encode(self, peer: int, rows: Tensor) -> Tensor:
        message, codec = self._message("sent", peer, tuple(rows.shape), rows.dtype)
        if self.residuals is not None:
            wire = self.residuals.encode(codec, peer, rows, message.key, message.at)
        else:
            wire = codec.encode(rows if message.at is None else rows[message.at.to(rows.device)], message.key)
        if self.memory is not None:
            note(self.memory, message, wire)
        return wire

    def decode(self, peer: int, wire: Tensor) -> Tensor:
        wire = wire.to(self.like.device)
        message, codec = self._message("come", peer, self.shapes[peer], self.like.dtype)
        rows = codec.decode(wire, message.crossing, message.dtype, message.key)
        if self.memory is not None:
            note(self.memory, message, wire)
        return rows

    def _nbytes(self, side: Side, peer: int, shape: Shape, dtype: torch.dtype) -> int:
        message, codec = self._message(side, peer, shape, dtype)
        return codec.nbytes(message.crossing, dtype, message.key)

    def _message(self, side: Side, peer: int, shape: Shape, dtype: torch.dtype) -> tuple[Message, Codec]:
        """The key of a peer's message, and its codec."""
        ends = (self.rank, peer) if side == "sent" else (peer, self.rank)
        message = Message(
            side=side, peer=peer, key=replace(self.key, ends=ends), shape=shape, dtype=dtype, at=self._at(side, peer)
        )
        return message, self.codec if self.memory is None else codec_of(self.memory, message)

    def _at(self, side: Side, peer: int) -> Tensor | None:
        if self.picked is None:
            return None
        return (self.picked.sent if side == "sent" else self.picked.come)[peer]
