"""VARCO: few columns early, all of them late (arXiv:2406.17611); and fixed ratios, its baselines."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.codec import Exponential, Linear, RateSchedule, Step, Subsample
from fullgraph.exchange import Except, Wire
from fullgraph.recipes.base import Published
from fullgraph.values import OneOf, Range


def compressed(codec: Subsample, layers: int, *, every_layer: bool) -> Wire | Except:
    """A codec in all layers, or in all but the last."""
    wire = Wire(codec=codec)
    return wire if every_layer else Except(wire=wire, layer=layers - 1, other=Wire())


@dataclass(frozen=True, kw_only=True)
class Fixed(Published):
    """The same share of columns, 1/ratio, at every step; the last layer sends all, unless `every_layer` is set."""

    ratio: Annotated[float, Range(1, 1e9)] = 4.0
    every_layer: bool = False

    def wires(self, *, epochs: int, layers: int) -> Wire | Except:
        return compressed(Subsample(self.ratio), layers, every_layer=self.every_layer)


@dataclass(frozen=True, kw_only=True)
class Varco(Published):
    """A random subset of columns, from 1/c_max of them to all by 1/slope of the run.

    The last layer sends all, as the authors' code does; every_layer: it does not, as in the paper.
    """

    c_max: float = 128.0
    c_min: float = 1.0
    slope: float = 5.0
    schedule: Annotated[str, OneOf("linear", "exponential", "step")] = "linear"
    rescale: bool = False
    every_layer: bool = False

    def wires(self, *, epochs: int, layers: int) -> Wire | Except:
        return compressed(Subsample(self.rate(epochs), rescale=self.rescale), layers, every_layer=self.every_layer)

    def rate(self, epochs: int) -> RateSchedule:
        if self.schedule == "step":
            every = max(1, int(epochs / self.slope / 8))
            return Step(every=every, c_max=self.c_max, c_min=self.c_min)
        kind = Exponential if self.schedule == "exponential" else Linear
        return kind(steps=epochs, slope=self.slope, c_max=self.c_max, c_min=self.c_min)


@dataclass(frozen=True, kw_only=True)
class VarcoSlow(Varco):
    """`varco` in every layer, taking half of the run until all columns cross: it scores best for its bytes."""

    slope: float = 2.0
    every_layer: bool = True
