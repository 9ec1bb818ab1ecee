"""Sylvie: halo features and gradients in a few bits, in step or one step behind (arXiv:2303.01277)."""

from fullgraph.codec import LowBit
from fullgraph.exchange import Adaptive, Bounded, Pipelined, Wire
from fullgraph.recipes.base import Recipe


def sylvie_s(bits: int = 1, feedback: bool = False, adaptive: bool = False, tau: int = 10) -> Recipe:
    """Halo features and gradients in `bits` (1, 2, 4, 8) each, in step; `feedback` sends later what was dropped.

    adaptive: more bits for nodes of many in-arcs, and where the loss falls more slowly than `tau` steps ago.
    """
    options = {"bits": bits, "feedback": feedback, "adaptive": adaptive, "tau": tau}
    wire = Adaptive(bits=bits, tau=tau, feedback=feedback) if adaptive else Wire(codec=LowBit(bits), feedback=feedback)
    return Recipe(name="sylvie-s", options=options, wire=wire, narrow_first=False)


def sylvie_a(bits: int = 1, refresh: int = 10, feedback: bool = False, adaptive: bool = False, tau: int = 10) -> Recipe:
    """The same one step behind, with a fresh step every `refresh` (0: never).

    adaptive: the loss also chooses between in step and behind, in place of `refresh`.
    """
    options = {"bits": bits, "refresh": refresh, "feedback": feedback, "adaptive": adaptive, "tau": tau}
    schedule = Bounded(refresh) if refresh else Pipelined()
    if adaptive:
        wire: Adaptive | Wire = Adaptive(bits=bits, tau=tau, switch=True, feedback=feedback)
    else:
        wire = Wire(schedule=schedule, codec=LowBit(bits), feedback=feedback)
    return Recipe(name="sylvie-a", options=options, wire=wire, narrow_first=False)
