"""How one step's rows become bytes, and come back: those of them that cross, each peer's message in its codec.

The bits of a row may be chosen anew every so many steps, by both ends alike.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor

from fullgraph.codec import ByRow, Codec, MinVariance, Shape
from fullgraph.exchange.rows import ByPeer, Picked
from fullgraph.exchange.state import Residuals, are_shaped, rows_of
from fullgraph.transport import Key

Side = Literal["sent", "come"]
SIDES: tuple[Side, Side] = ("sent", "come")


class Bits:
    """What both ends know of the rows of their messages: the bits, and the spans when they last crossed."""

    def __init__(self, rule: MinVariance, weights: tuple[ByPeer, ByPeer] | None) -> None:
        self.rule = rule
        self.weights: dict[Side, ByPeer] = dict(zip(SIDES, weights or ({}, {}), strict=True))
        self.bits: dict[Side, ByPeer] = {"sent": {}, "come": {}}
        self.spans: dict[Side, ByPeer] = {"sent": {}, "come": {}}
        self._whole: dict[tuple[Side, int], ByRow] = {}  # of messages all of whose rows cross, for as long as bits hold

    def due(self, step: int) -> bool:
        return step > 0 and step % self.rule.period == 0

    def choose(self, sent: dict[int, Shape], come: dict[int, Shape]) -> None:
        """New bits for all rows of messages of these shapes, from the spans of all that crossed so far."""
        self._whole.clear()
        for side, shapes in zip(SIDES, (sent, come), strict=True):
            for peer, spans_n in self.spans[side].items():
                width = prod(shapes[peer][1:])
                self.bits[side][peer] = self.rule.chosen(spans_n, self.weights[side].get(peer), width)

    def codec(self, side: Side, peer: int, rows: int, at: Tensor | None) -> ByRow:
        """The codec of a message of so many rows, or of those of them that cross."""
        if (side, peer) not in self._whole:
            start = torch.full((rows,), self.rule.start, dtype=torch.uint8)
            self._whole[side, peer] = ByRow(self.bits[side].get(peer, start))
        whole = self._whole[side, peer]
        return whole if at is None else ByRow(whole.bits_n[at])

    def note(self, side: Side, peer: int, rows: int, at: Tensor | None, spans_k: Tensor) -> None:
        """Remember the spans of what crossed, of so many rows; a row that never did has none."""
        if at is not None:
            spans_n = self.spans[side].get(peer, torch.zeros(rows)).clone()
            spans_n[at] = spans_k
            spans_k = spans_n
        self.spans[side][peer] = spans_k

    def held(self) -> dict[str, Tensor]:
        tables = {"bits": self.bits, "span": self.spans}
        return {
            f"{what}.{side}.{peer}": value
            for what, table in tables.items()
            for side in SIDES
            for peer, value in table[side].items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        self._whole.clear()
        for side in SIDES:
            for what, table in (("bits", self.bits), ("span", self.spans)):
                table[side] = {peer: value.cpu() for peer, value in rows_of(state, f"{what}.{side}.").items()}

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        return all(
            are_shaped(table[side], {peer: shapes.get(peer, ())[:1] for peer in table[side]}, kind)
            for table, kind in ((self.bits, torch.uint8), (self.spans, torch.float32))
            for side, shapes in zip(SIDES, (sent, come), strict=True)
        )


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
