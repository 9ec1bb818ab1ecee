"""The baselines every other strategy is measured against."""

from fullgraph.codec import CODECS
from fullgraph.errors import InputError
from fullgraph.exchange import Wire
from fullgraph.recipes.base import Recipe


def none() -> Recipe:
    """No communication: arcs between parts are dropped in training; evaluation is exact."""
    return Recipe(name="none", isolated=True)


def vanilla(codec: str = "full") -> Recipe:
    """Exact training: fresh halos every step; `codec` full, half or bf16."""
    if codec not in CODECS:
        raise InputError(f"codec {codec!r} is unknown; known: {', '.join(CODECS)}")
    return Recipe(name="vanilla", options={"codec": codec}, wire=Wire(codec=CODECS[codec]()))
