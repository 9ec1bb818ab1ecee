"""Sylvie: halo features and gradients in a few bits, in step or one step behind (arXiv:2303.01277)."""

from fullgraph.codec import LowBit
from fullgraph.exchange import Bounded, Pipelined, Wire
from fullgraph.recipes.base import Recipe


def sylvie_s(bits: int = 1, feedback: bool = False) -> Recipe:
    """Halo features and gradients in `bits` (1, 2, 4, 8) each, in step; `feedback` sends later what was dropped."""
    wire = Wire(codec=LowBit(bits), feedback=feedback)
    return Recipe(name="sylvie-s", options={"bits": bits, "feedback": feedback}, wire=wire, narrow_first=False)


def sylvie_a(bits: int = 1, refresh: int = 10, feedback: bool = False) -> Recipe:
    """The same one step behind, with a fresh step every `refresh` (0: never)."""
    schedule = Bounded(refresh) if refresh else Pipelined()
    options = {"bits": bits, "refresh": refresh, "feedback": feedback}
    wire = Wire(schedule=schedule, codec=LowBit(bits), feedback=feedback)
    return Recipe(name="sylvie-a", options=options, wire=wire, narrow_first=False)
