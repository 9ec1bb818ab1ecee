"""How one step's rows become bytes, and come back: those of them that cross, each peer's message in its codec."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.codec import ByRow, Codec, Shape
from fullgraph.exchange.bits import Bits, Side
from fullgraph.exchange.picks import Picked
from fullgraph.exchange.state import Residuals
from fullgraph.transport import Key


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepCoding:
    """The codec of one step's messages, with all it must know."""

    codec: Codec
    residuals: Residuals | None
    picked: Picked | None
    bits: Bits | None
    key: Key
    rank: int
    shapes: dict[int, Shape]  # of all rows that each peer may send
    like: Tensor

    def crosses(self, side: Side, peer: int) -> bool:
        """Whether any row does."""
        at = self._at(side, peer)
        return at is None or len(at) > 0

    def incoming(self) -> dict[int, int]:
        """The bytes that each peer would send."""
        shapes = self.shapes.items()
        return {peer: self._nbytes("come", peer, shape, self.like.dtype) for peer, shape in shapes}

    def nbytes(self, peer: int, rows: Tensor) -> int:
        return self._nbytes("sent", peer, tuple(rows.shape), rows.dtype)

    def encode(self, peer: int, rows: Tensor) -> Tensor:
        """The bytes of those of the rows that cross."""
        key, at, codec = self._message("sent", peer, len(rows))
        if self.residuals is not None:
            wire = self.residuals.encode(codec, peer, rows, key, at)
        else:
            wire = codec.encode(rows if at is None else rows[at.to(rows.device)], key)
        self._note("sent", peer, tuple(rows.shape), wire)
        return wire

    def decode(self, peer: int, wire: Tensor) -> Tensor:
        """The rows that crossed."""
        shape, wire = self.shapes[peer], wire.to(self.like.device)
        key, at, codec = self._message("come", peer, shape[0])
        self._note("come", peer, shape, wire)
        return codec.decode(wire, _taken(shape, at), self.like.dtype, key)

    def _nbytes(self, side: Side, peer: int, shape: Shape, dtype: torch.dtype) -> int:
        key, at, codec = self._message(side, peer, shape[0])
        return codec.nbytes(_taken(shape, at), dtype, key)

    def _message(self, side: Side, peer: int, rows: int) -> tuple[Key, Tensor | None, Codec]:
        """The key of a peer's message of so many rows, those of them that cross (None: all), and their codec."""
        ends = (self.rank, peer) if side == "sent" else (peer, self.rank)
        at = self._at(side, peer)
        codec = self.codec if self.bits is None else self.bits.codec(side, peer, rows, at)
        return replace(self.key, ends=ends), at, codec

    def _at(self, side: Side, peer: int) -> Tensor | None:
        if self.picked is None:
            return None
        return (self.picked.sent if side == "sent" else self.picked.come)[peer]

    def _note(self, side: Side, peer: int, shape: Shape, wire: Tensor) -> None:
        if self.bits is not None:
            key, at, codec = self._message(side, peer, shape[0])
            assert isinstance(codec, ByRow)
            self.bits.note(side, peer, shape[0], at, codec.spans(wire, _taken(shape, at), key))


def _taken(shape: Shape, at: Tensor | None) -> Shape:
    return shape if at is None else (len(at), *shape[1:])
