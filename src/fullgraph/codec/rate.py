"""How much to compress at which step: rates r(t) >= 1, of which 1 sends everything."""

from dataclasses import dataclass
from math import pow
from typing import Protocol

from fullgraph.errors import InputError


class RateSchedule(Protocol):
    """A pure function of the step."""

    def at(self, step: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """r(t) = r."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        if not self.rate >= 1:
            raise InputError(f"rate={self.rate} would send more than there is; give 1 (everything) or more")

    def at(self, step: int) -> float:
        return self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Falling:
    """From c_max to c_min within 1/slope of the steps."""

    steps: int
    c_max: float = 128.0
    c_min: float = 1.0
    slope: float = 5.0

    def __post_init__(self) -> None:
        _check(self.c_max, self.c_min, steps=self.steps, slope=self.slope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(_Falling):
    """r(t) = max(c_max - a t (c_max - c_min) / (T - 1), c_min), with slope a over T steps (VARCO, arXiv:2406.17611)."""

    def at(self, step: int) -> float:
        return max(self.c_max - self.slope * _share(step, self.steps) * (self.c_max - self.c_min), self.c_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(_Falling):
    """r(t) = max(c_max (c_min / c_max)^(a t / (T - 1)), c_min): at c_min when Linear is, far lower on the way."""

    def at(self, step: int) -> float:
        fall = pow(self.c_min / self.c_max, self.slope * _share(step, self.steps))
        return max(self.c_max * fall, self.c_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """r(t) = max(c_max / factor^floor(t / every), c_min)."""

    every: int
    c_max: float = 128.0
    c_min: float = 1.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        _check(self.c_max, self.c_min, every=self.every, factor=self.factor)
        if self.factor <= 1:
            raise InputError(f"factor={self.factor} never lowers the rate; give more than 1")

    def at(self, step: int) -> float:
        # A negative power underflows to 0 where a positive one would overflow.
        return max(self.c_max * pow(self.factor, -(max(step, 0) // self.every)), self.c_min)


def _share(step: int, steps: int) -> float:
    return max(step, 0) / max(steps - 1, 1)


def _check(c_max: float, c_min: float, **positive: float) -> None:
    if not 1 <= c_min <= c_max:
        raise InputError(f"rates from c_max={c_max} to c_min={c_min} do not fall; give c_max >= c_min >= 1")
    for name, value in positive.items():
        if not value > 0:
            raise InputError(f"{name}={value} must be positive")
