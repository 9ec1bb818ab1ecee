"""A strategy: rows in few bits every few steps, gradients in 16 bits; the last layer fresh and unchanged."""

from dataclasses import dataclass
from typing import ClassVar

from fullgraph.codec import Half, LowBit
from fullgraph.exchange import Except, Skip, Wire
from fullgraph.recipes import Strategy


@dataclass(frozen=True, kw_only=True)
class Thrifty(Strategy):
    """Send every `every` steps, in `bits` each."""

    sends: ClassVar[str] = "input"  # send a layer's input, not what it is mapped to
    every: int = 2
    bits: int = 4

    def wires(self, *, epochs, layers):
        thrifty = Wire(schedule=Skip(self.every), codec=LowBit(self.bits), backward=Half())
        return Except(wire=thrifty, layer=layers - 1, other=Wire())
