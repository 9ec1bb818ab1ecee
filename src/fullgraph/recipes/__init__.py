"""The published systems, each a choice on every axis."""

import inspect
from collections.abc import Callable
from typing import Any

from fullgraph.errors import InputError, one_line
from fullgraph.recipes.base import Recipe
from fullgraph.recipes.baselines import none, vanilla
from fullgraph.recipes.free import free
from fullgraph.recipes.gnnpipe import gnnpipe, gnnpipe_hybrid
from fullgraph.recipes.mixgcn import mixgcn
from fullgraph.recipes.pipegcn import pipegcn, pipegcn_f, pipegcn_g, pipegcn_gf
from fullgraph.recipes.sylvie import sylvie_a, sylvie_s
from fullgraph.recipes.varco import fixed, varco
from fullgraph.values import read_option

STRATEGIES: dict[str, Callable[..., Recipe]] = {
    "vanilla": vanilla,
    "none": none,
    "pipegcn": pipegcn,
    "pipegcn-f": pipegcn_f,
    "pipegcn-g": pipegcn_g,
    "pipegcn-gf": pipegcn_gf,
    "sylvie-s": sylvie_s,
    "sylvie-a": sylvie_a,
    "varco": varco,
    "fixed": fixed,
    "mixgcn": mixgcn,
    "gnnpipe": gnnpipe,
    "gnnpipe-hybrid": gnnpipe_hybrid,
    "free": free,
}


def make(name: str = "", **options: Any) -> Recipe:
    """The recipe of that name; options are of the type of their default, or texts that are read as it."""
    if not isinstance(name, str) or name not in STRATEGIES:
        raise InputError(f"strategy {name!r} is unknown; known: {', '.join(STRATEGIES)}")
    known = options_of(name)
    unknown = [key for key in options if key not in known]
    if unknown:
        listed = ", ".join(f"{key}={value}" for key, value in known.items()) or "none"
        raise InputError(f"strategy {name!r} has no option {one_line(', '.join(unknown), 60)}; known: {listed}")
    return STRATEGIES[name](**{key: read_option(type(known[key]), key, value) for key, value in options.items()})


def options_of(name: str) -> dict[str, Any]:
    """Option names and their defaults."""
    return {key: p.default for key, p in inspect.signature(STRATEGIES[name]).parameters.items()}


__all__ = [
    "STRATEGIES",
    "Recipe",
    "fixed",
    "free",
    "gnnpipe",
    "gnnpipe_hybrid",
    "make",
    "mixgcn",
    "none",
    "options_of",
    "pipegcn",
    "sylvie_a",
    "sylvie_s",
    "vanilla",
    "varco",
]
