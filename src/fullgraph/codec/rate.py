"""Compression rates by step: r(t) >= 1; rate 1 sends everything."""

from dataclasses import dataclass
from math import pow
from typing import Annotated, Protocol

from fullgraph.errors import InputError
from fullgraph.values import Range, Value

Rate = Annotated[float, Range(1, 1e9)]


class RateSchedule(Protocol):
    """The compression rate as a pure function of the step."""

    def at(self, step: int) -> float: ...


@dataclass(frozen=True)
class Constant(Value):
    """r(t) = r;  1 sends everything."""

    rate: Rate = 1.0

    def at(self, step: int) -> float:
        return self.rate


@dataclass(frozen=True, kw_only=True)
class _Falling(Value):
    """A rate that falls from c_max to c_min."""

    c_max: Rate = 128.0
    c_min: Rate = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c_min > self.c_max:
            raise InputError(f"rates from c_max={self.c_max} to c_min={self.c_min} do not fall; give c_max >= c_min")


@dataclass(frozen=True, kw_only=True)
class _Sloping(_Falling):
    """A rate that falls from c_max to c_min within 1/slope of the steps."""

    steps: Annotated[int, Range(1, 10**9)]
    slope: Annotated[float, Range(1e-9, 1e9)] = 5.0


@dataclass(frozen=True, kw_only=True)
class Linear(_Sloping):
    """r(t) = max(c_max - a t (c_max - c_min) / (T - 1), c_min), with slope a over T steps (VARCO, arXiv:2406.17611)."""

    def at(self, step: int) -> float:
        return max(self.c_max - self.slope * _share(step, self.steps) * (self.c_max - self.c_min), self.c_min)


@dataclass(frozen=True, kw_only=True)
class Exponential(_Sloping):
    """r(t) = max(c_max (c_min / c_max)^(a t / (T - 1)), c_min): reaches c_min when Linear does, and falls faster at
    first.
    """

    def at(self, step: int) -> float:
        fall = pow(self.c_min / self.c_max, self.slope * _share(step, self.steps))
        return max(self.c_max * fall, self.c_min)


@dataclass(frozen=True, kw_only=True)
class Step(_Falling):
    """r(t) = max(c_max / factor^floor(t / every), c_min)."""

    every: Annotated[int, Range(1, 10**18)]
    factor: Annotated[float, Range(1, 1e9, above=True)] = 2.0

    def at(self, step: int) -> float:
        # A negative power underflows to 0; a positive power could overflow.
        return max(self.c_max * pow(self.factor, -(max(step, 0) // self.every)), self.c_min)


def _share(step: int, steps: int) -> float:
    return max(step, 0) / max(steps - 1, 1)
