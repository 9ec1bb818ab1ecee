"""PipeGCN: last step's halo features and gradients, while today's travel (arXiv:2203.10428)."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.errors import InputError
from fullgraph.exchange import Pipelined, Smooth, Wire
from fullgraph.recipes.base import Published
from fullgraph.values import OneOf

GAMMA = 0.95


def averaging(smooth: str, gamma: float, correct: bool) -> Smooth | None:
    """Of features, gradients or both: f, g or gf; "" is none."""
    if not smooth and (gamma != GAMMA or correct):
        raise InputError(f"gamma={gamma:g} and correct={str(correct).lower()} are for averages; add -o smooth=gf")
    return Smooth(gamma=gamma, features="f" in smooth, gradients="g" in smooth, correct=correct) if smooth else None


@dataclass(frozen=True, kw_only=True)
class PipeGCN(Published):
    """Halo features and gradients one step old; `smooth` f, g or gf averages them. `warm_up`: fresh steps at first."""

    smooth: Annotated[str, OneOf("", "f", "g", "gf")] = ""
    gamma: float = GAMMA
    lag: int = 1
    warm_up: int = 0
    correct: bool = False

    def wires(self, *, epochs: int, layers: int) -> Wire:
        smooth = averaging(self.smooth, self.gamma, self.correct)
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
    """PipeGCN with both smoothed."""

    smooth: Annotated[str, OneOf("gf")] = "gf"
