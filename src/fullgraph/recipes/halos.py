"""The published systems that exchange halo rows: how late rows are read, in how many bits, and which rows cross.

PipeGCN (arXiv:2203.10428), Sylvie (arXiv:2303.01277), VARCO (arXiv:2406.17611), BNS-GCN (arXiv:2203.10983), DistGNN's
cd-r (arXiv:2104.06700), SANCUS (VLDB 2022, doi:10.14778/3538598.3538614), AdaQP (arXiv:2306.01381).
"""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.codec import Exponential, Linear, LowBit, MinVariance, RateSchedule, Step, Subsample
from fullgraph.errors import InputError
from fullgraph.exchange import Adaptive, Bounded, Drift, Except, Extrapolate, Pipelined, Smooth, Wire
from fullgraph.recipes.base import Published
from fullgraph.values import OneOf, Range

GAMMA = 0.95  # default decay of moving averages
TAU = 10  # default interval of adaptive bits, in steps


def averaging(smooth: str, gamma: float, correct: bool, extrapolate: bool) -> Smooth | Extrapolate | None:
    """The smoothing of features (f), gradients (g) or both (gf); none for an empty text."""
    if extrapolate:
        if not smooth or gamma != GAMMA or correct:
            raise InputError("extrapolate=true replaces an average; add -o smooth=gf, without gamma and correct")
        return Extrapolate(features="f" in smooth, gradients="g" in smooth)
    if not smooth and (gamma != GAMMA or correct):
        raise InputError(f"gamma={gamma:g} and correct={str(correct).lower()} are for averages; add -o smooth=gf")
    return Smooth(gamma=gamma, features="f" in smooth, gradients="g" in smooth, correct=correct) if smooth else None


@dataclass(frozen=True, kw_only=True)
class PipeGCN(Published):
    """Halo features and gradients are one step old; `smooth` f, g or gf averages them. The first `warm_up` steps are
    fresh.
    """

    smooth: Annotated[str, OneOf("", "f", "g", "gf")] = ""
    gamma: float = GAMMA
    lag: int = 1
    warm_up: int = 0
    correct: bool = False
    extrapolate: bool = False

    def sending(self, *, epochs: int, layers: int) -> Wire:
        smooth = averaging(self.smooth, self.gamma, self.correct, self.extrapolate)
        return Wire(schedule=Pipelined(self.lag, self.warm_up), smooth=smooth)


@dataclass(frozen=True, kw_only=True)
class PipeGCNF(PipeGCN):
    """PipeGCN with smoothed halo features."""

    smooth: Annotated[str, OneOf("f")] = "f"


@dataclass(frozen=True, kw_only=True)
class PipeGCNG(PipeGCN):
    """PipeGCN with smoothed halo gradients."""

    smooth: Annotated[str, OneOf("g")] = "g"


@dataclass(frozen=True, kw_only=True)
class PipeGCNGF(PipeGCN):
    """PipeGCN with smoothed halo features and gradients."""

    smooth: Annotated[str, OneOf("gf")] = "gf"


@dataclass(frozen=True, kw_only=True)
class SylvieS(Published):
    """Fresh halo features and gradients of `bits` (1, 2, 4, 8) per number; `feedback` adds each rounding error to the
    next message.

    adaptive: more bits for nodes with many in-edges, and when the loss falls more slowly than `tau` steps ago.
    """

    bits: int = 1
    feedback: bool = False
    adaptive: bool = False
    tau: int = TAU

    def sending(self, *, epochs: int, layers: int) -> Adaptive | Wire:
        if self.adaptive:
            return Adaptive(bits=self.bits, tau=self.tau, feedback=self.feedback)
        self._check_tau()
        return Wire(codec=LowBit(self.bits), feedback=self.feedback)

    def _check_tau(self) -> None:
        if self.tau != TAU:
            raise InputError(f"tau={self.tau} is the interval of adaptive bits; add -o adaptive=true, or leave it out")


@dataclass(frozen=True, kw_only=True)
class SylvieA(SylvieS):
    """Like `sylvie-s`, one step late. Every `refresh`-th step is fresh (0: none), and so are the first `warm_up` steps.

    adaptive: the loss also chooses which steps are fresh, so `refresh` and `warm_up` must stay 0.
    """

    refresh: Annotated[int, Range(0, 10**9)] = 0
    warm_up: int = 0

    def sending(self, *, epochs: int, layers: int) -> Adaptive | Wire:
        late = Pipelined(warm_up=self.warm_up)
        schedule = Bounded(self.refresh, self.warm_up) if self.refresh else late
        if self.adaptive:
            if self.refresh or self.warm_up:
                told = f"refresh={self.refresh} and warm_up={self.warm_up} have no effect with adaptive=true"
                raise InputError(f"{told}: the loss chooses the fresh steps; use --strategy sylvie-a without them")
            return Adaptive(bits=self.bits, tau=self.tau, switch=True, feedback=self.feedback)
        self._check_tau()
        return Wire(schedule=schedule, codec=LowBit(self.bits), feedback=self.feedback)


@dataclass(frozen=True, kw_only=True)
class SylvieABounded(SylvieA):
    """`sylvie-a` with the paper's bounded staleness: every `refresh`-th step is fresh."""

    refresh: Annotated[int, Range(0, 10**9)] = 10


def compressed(codec: Subsample, layers: int, *, every_layer: bool) -> Wire | Except:
    """Use a codec in all layers, or in all but the last."""
    wire = Wire(codec=codec)
    return wire if every_layer else Except(wire=wire, layer=layers - 1, other=Wire())


@dataclass(frozen=True, kw_only=True)
class Fixed(Published):
    """Send the same share of columns, 1/ratio, in every step; the last layer sends all unless `every_layer` is set."""

    ratio: Annotated[float, Range(1, 1e9)] = 4.0
    every_layer: bool = False

    def sending(self, *, epochs: int, layers: int) -> Wire | Except:
        return compressed(Subsample(self.ratio), layers, every_layer=self.every_layer)


@dataclass(frozen=True, kw_only=True)
class Varco(Published):
    """Send a random subset of columns: 1/c_max of them at first, all of them after 1/slope of the run.

    The last layer sends all columns, as in the authors' code; with every_layer it does not, as in the paper.
    """

    c_max: float = 128.0
    c_min: float = 1.0
    slope: float = 5.0
    schedule: Annotated[str, OneOf("linear", "exponential", "step")] = "linear"
    rescale: bool = False
    every_layer: bool = False

    def sending(self, *, epochs: int, layers: int) -> Wire | Except:
        return compressed(Subsample(self.rate(epochs), rescale=self.rescale), layers, every_layer=self.every_layer)

    def rate(self, epochs: int) -> RateSchedule:
        if self.schedule == "step":
            every = max(1, int(epochs / self.slope / 8))
            return Step(every=every, c_max=self.c_max, c_min=self.c_min)
        kind = Exponential if self.schedule == "exponential" else Linear
        return kind(steps=epochs, slope=self.slope, c_max=self.c_max, c_min=self.c_min)


@dataclass(frozen=True, kw_only=True)
class VarcoSlow(Varco):
    """`varco` in every layer; all columns cross after half of the run. It has the best score for its bytes."""

    slope: float = 2.0
    every_layer: bool = True


@dataclass(frozen=True, kw_only=True)
class BNS(Published):
    """Each halo node crosses in a step with probability `p`, the same nodes in all layers; sums are unbiased.

    A row that crosses counts 1/p times; attention leaves out the edges from other nodes instead. Gradients come back
    only for these rows. p=1 is vanilla; p=0 sends nothing.
    """

    p: Annotated[float, Range(0, 1)] = 0.1

    def sending(self, *, epochs: int, layers: int) -> Wire:
        return Wire(share=self.p)


@dataclass(frozen=True, kw_only=True)
class DelayedTurns(Published):
    """Each step sends one of `r` parts of the halo, rows and gradients; they are read r steps later."""

    r: Annotated[int, Range(1, 10**9)] = 5

    def sending(self, *, epochs: int, layers: int) -> Wire:
        return Wire(schedule=Pipelined(self.r), turns=self.r)


@dataclass(frozen=True, kw_only=True)
class Sancus(Published):
    """A rank sends its rows of a layer only if they changed by `bound` or more since they were last sent.

    Otherwise readers use the rows of the last message. longest: how many steps in a row may be skipped (0: any number).
    Gradients come back in every step; with `gradients`, they are skipped by the same rule.
    """

    bound: Annotated[float, Range(0, 1e9)] = 0.3
    longest: Annotated[int, Range(0, 10**9)] = 10
    gradients: bool = False

    def sending(self, *, epochs: int, layers: int) -> Wire:
        return Wire(drift=Drift(bound=self.bound, longest=self.longest, gradients=self.gradients))


@dataclass(frozen=True, kw_only=True)
class AdaQP(Published):
    """Fresh halo features and gradients with 2, 4 or 8 bits per row, chosen again every `period` epochs.

    lam weighs variance (1) against bytes (0), as in the paper. budget: the average bits per number that a message may
    take, 2 to 8; it replaces lam.
    """

    lam: Annotated[float, Range(0, 1)] = 0.5
    budget: Annotated[float, Range(0, 8)] = 0.0
    period: Annotated[int, Range(1, 10**9)] = 50

    def sending(self, *, epochs: int, layers: int) -> Wire:
        return Wire(codec=MinVariance(lam=self.lam, budget=self.budget, period=self.period))
