"""Sylvie: halo features and gradients in a few bits, in step or one step behind (arXiv:2303.01277)."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.codec import LowBit
from fullgraph.errors import InputError
from fullgraph.exchange import Adaptive, Bounded, Pipelined, Wire
from fullgraph.recipes.base import Published
from fullgraph.values import Range

TAU = 10


@dataclass(frozen=True, kw_only=True)
class SylvieS(Published):
    """Halo features and gradients in `bits` (1, 2, 4, 8) each, in step; `feedback` sends later what was dropped.

    adaptive: more bits for nodes of many in-arcs, and where the loss falls more slowly than `tau` steps ago.
    """

    bits: int = 1
    feedback: bool = False
    adaptive: bool = False
    tau: int = TAU

    def wires(self, *, epochs: int, layers: int) -> Adaptive | Wire:
        if self.adaptive:
            return Adaptive(bits=self.bits, tau=self.tau, feedback=self.feedback)
        self._check_tau()
        return Wire(codec=LowBit(self.bits), feedback=self.feedback)

    def _check_tau(self) -> None:
        if self.tau != TAU:
            raise InputError(f"tau={self.tau} is the pace of adaptive bits; add -o adaptive=true, or leave it out")


@dataclass(frozen=True, kw_only=True)
class SylvieA(SylvieS):
    """The same one step behind, with a fresh step every `refresh` (0: never); the first `warm_up` steps are in step.

    adaptive: the loss also chooses between in step and behind, so there is no `refresh` and no `warm_up`.
    """

    refresh: Annotated[int, Range(0, 10**9)] = 0
    warm_up: int = 0

    def wires(self, *, epochs: int, layers: int) -> Adaptive | Wire:
        late = Pipelined(warm_up=self.warm_up)
        schedule = Bounded(self.refresh, self.warm_up) if self.refresh else late
        if self.adaptive:
            if self.refresh or self.warm_up:
                told = f"refresh={self.refresh} and warm_up={self.warm_up} have no say with adaptive=true"
                raise InputError(f"{told}: the loss chooses the fresh steps; use --strategy sylvie-a without them")
            return Adaptive(bits=self.bits, tau=self.tau, switch=True, feedback=self.feedback)
        self._check_tau()
        return Wire(schedule=schedule, codec=LowBit(self.bits), feedback=self.feedback)


@dataclass(frozen=True, kw_only=True)
class SylvieABounded(SylvieA):
    """`sylvie-a` with the paper's bounded staleness: a fresh step every `refresh`."""

    refresh: Annotated[int, Range(0, 10**9)] = 10
