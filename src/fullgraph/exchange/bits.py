"""The bits of every row of one way of a channel, on both ends, chosen anew every so many steps."""

from math import prod
from typing import Literal

import torch
from torch import Tensor

from fullgraph.codec import ByRow, MinVariance, Shape
from fullgraph.exchange.picks import ByPeer
from fullgraph.exchange.state import are_shaped, rows_of

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
