"""The bits of every row of one direction of a channel, on both ends, chosen again after every period."""

from collections.abc import Callable
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from fullgraph.codec.base import Shape
from fullgraph.codec.byrow import ByRow
from fullgraph.codec.memory import SIDES, BySide, Memory, Message, Side

Choose = Callable[[Tensor, Tensor | None, int], Tensor]  # spans of rows, their weights, the width -> bits of each row


class Bits(Memory):
    """The bits of rows, and their spans when they last crossed; both ends know them."""

    tables: ClassVar[dict[str, torch.dtype | None]] = {"bits": torch.uint8, "span": torch.float32}
    prefix: ClassVar[str] = ""

    def __init__(self, chosen: Choose, *, start: int, period: int, weights: BySide | None) -> None:
        """start: bits of all rows before the first choice, which comes after `period` steps."""
        self.chosen, self.start, self.period, self.weights = chosen, start, period, weights
        self._whole: dict[tuple[Side, int], ByRow] = {}  # for messages whose rows all cross, until the next choice

    def due(self, step: int) -> bool:
        return step > 0 and step % self.period == 0

    def choose(self, sent: dict[int, Shape], come: dict[int, Shape]) -> None:
        """Choose the bits of all rows of messages of these shapes, from the spans of all earlier messages."""
        self._whole.clear()
        for side, shapes in zip(SIDES, (sent, come), strict=True):
            for peer, spans_n in self.kept("span")[side].items():
                weights_n = None if self.weights is None else self.weights[side].get(peer)
                self.kept("bits")[side][peer] = self.chosen(spans_n, weights_n, prod(shapes[peer][1:]))

    def codec(self, message: Message) -> ByRow:
        side, peer = message.side, message.peer
        if (side, peer) not in self._whole:
            start = torch.full(message.shape[:1], self.start, dtype=torch.uint8)
            self._whole[side, peer] = ByRow(self.kept("bits")[side].get(peer, start))
        whole = self._whole[side, peer]
        return whole if message.at is None else ByRow(whole.bits_n[message.at])

    def note(self, message: Message, wire: Tensor) -> None:
        self.keep("span", message, self.codec(message).spans(wire, message.crossing, message.key))

    def load(self, state: dict[str, Tensor]) -> None:
        self._whole.clear()
        super().load(state)
