"""PipeGCN: last step's halo features and gradients, while today's travel (arXiv:2203.10428)."""

from dataclasses import replace

from fullgraph.errors import InputError
from fullgraph.exchange import Pipelined, Smooth, Wire
from fullgraph.recipes.base import Recipe

SMOOTH = ("", "f", "g", "gf")


def pipegcn(
    smooth: str = "", gamma: float = 0.95, lag: int = 1, warm_up: str = "zeros", correct: bool = False
) -> Recipe:
    """Halo features and gradients one step old; `smooth` f, g or gf averages them."""
    options = {"smooth": smooth, "gamma": gamma, "lag": lag, "warm_up": warm_up, "correct": correct}
    wire = Wire(schedule=Pipelined(lag, warm_up), smooth=averaging(smooth, gamma, correct))
    return Recipe(name="pipegcn", options=options, wire=wire, narrow_first=False)


def averaging(smooth: str, gamma: float, correct: bool) -> Smooth | None:
    """Of features, gradients or both: f, g or gf; "" is none."""
    if smooth not in SMOOTH:
        raise InputError(f"smooth {smooth!r} is unknown; known: f, g, gf, or leave it out")
    return Smooth(gamma=gamma, features="f" in smooth, gradients="g" in smooth, correct=correct) if smooth else None


def pipegcn_f(gamma: float = 0.95) -> Recipe:
    """PipeGCN with smoothed halo features."""
    return _named("pipegcn-f", "f", gamma)


def pipegcn_g(gamma: float = 0.95) -> Recipe:
    """PipeGCN with smoothed halo gradients."""
    return _named("pipegcn-g", "g", gamma)


def pipegcn_gf(gamma: float = 0.95) -> Recipe:
    """PipeGCN with both smoothed."""
    return _named("pipegcn-gf", "gf", gamma)


def _named(name: str, smooth: str, gamma: float) -> Recipe:
    return replace(pipegcn(smooth, gamma), name=name, options={"gamma": gamma})
