"""A codec with memory: the difference of every row from the reader's copy of it, in few bits."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fullgraph.codec import LowBit, Memory


@dataclass(frozen=True)
class Difference(LowBit):
    """x'_t = x'_{t-1} + Q(x_t - x'_{t-1}), where Q is LowBit and x'_{-1} is zero."""

    bits: int = 4

    def for_channel(self, facts):  # once for each direction of each channel; facts.ids, facts.squares: see below
        return Last(LowBit(self.bits))


class Last(Memory):
    tables: ClassVar = {"last": None}  # rows as they crossed last: the same on both ends, and in every checkpoint

    def __init__(self, codec):
        self.step = codec

    def codec(self, message):
        return Added(self.step, self.rows("last", message))

    def note(self, message, wire):
        rows = self.codec(message).decode(wire, message.crossing, message.dtype, message.key)
        self.keep("last", message, rows)


@dataclass(frozen=True)
class Added:
    """The codec of one message: encode x - base, decode base + Q."""

    codec: LowBit
    base: torch.Tensor | None  # x' of the same rows; None: zero

    def encode(self, x, key):
        return self.codec.encode(x if self.base is None else x - self.base, key)

    def decode(self, wire, shape, dtype, key):
        rows = self.codec.decode(wire, shape, dtype, key)
        return rows if self.base is None else rows + self.base

    def nbytes(self, shape, dtype, key):
        return self.codec.nbytes(shape, dtype, key)
