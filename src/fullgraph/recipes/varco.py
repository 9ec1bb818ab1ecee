"""VARCO: few columns early, all of them late (arXiv:2406.17611); and fixed ratios, its baselines."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fullgraph.codec import Exponential, Linear, RateSchedule, Step, Subsample
from fullgraph.exchange import Except, Wire
from fullgraph.recipes.base import Strategy
from fullgraph.values import OneOf


@dataclass(frozen=True, kw_only=True)
class Fixed(Strategy):
    """The same share of columns, 1/ratio, at every step; the last layer sends all."""

    narrow_first: ClassVar[bool] = False
    ratio: float = 4.0

    def wires(self, *, epochs: int, layers: int) -> Except:
        return Except(wire=Wire(codec=Subsample(self.ratio)), layer=layers - 1, other=Wire())


@dataclass(frozen=True, kw_only=True)
class Varco(Strategy):
    """A random subset of columns, from 1/c_max of them to all by 1/slope of the run; the last layer sends all."""

    narrow_first: ClassVar[bool] = False
    c_max: float = 128.0
    c_min: float = 1.0
    slope: float = 5.0
    schedule: Annotated[str, OneOf("linear", "exponential", "step")] = "linear"
    rescale: bool = False

    def wires(self, *, epochs: int, layers: int) -> Except:
        codec = Subsample(self.rate(epochs), rescale=self.rescale)
        return Except(wire=Wire(codec=codec), layer=layers - 1, other=Wire())

    def rate(self, epochs: int) -> RateSchedule:
        if self.schedule == "step":
            every = max(1, int(epochs / self.slope / 8))
            return Step(every=every, c_max=self.c_max, c_min=self.c_min)
        kind = Exponential if self.schedule == "exponential" else Linear
        return kind(steps=epochs, slope=self.slope, c_max=self.c_max, c_min=self.c_min)
