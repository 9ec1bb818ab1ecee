"""A layer's plan: what it sends, and what is precomputed of its input."""

from dataclasses import dataclass
from typing import Literal

Sends = Literal["nothing", "input", "mapped"]
Known = Literal["", "aggregate", "halo"]
Lives = Literal["memory", "stores"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The widths of a convolution, which decide what it sends."""

    in_width: int
    mapped_width: int  # columns of its rows after its dense map
    attends: bool = False  # True: it weights single rows, and therefore maps them before it sums them


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """The rows that one layer sends and computes; equal on all ranks."""

    layer: int
    sends: Sends
    known: Known = ""  # the precomputed part of its input: "aggregate", or "halo" (input rows of the halo)
    width: int = 0  # columns that cross
    rows: int = 0  # rows that it computes, summed over ranks
    parts: int = 1  # it is computed in so many parts of a rank's rows, one after the other
    lives: Lives = "memory"  # its rows: in memory, or in stores that may be files

    @property
    def maps_first(self) -> bool:
        """Whether the dense map comes before the sum over neighbours."""
        return self.sends == "mapped" or self.known == "halo"

    def __str__(self) -> str:
        if self.known:
            return f"layer {self.layer}: {_KNOWN[self.known]} known ahead, sends nothing, {self.rows:,} rows"
        return f"layer {self.layer}: sends {self.sends}, {self.width} columns, {self.rows:,} rows"


_KNOWN = {"aggregate": "aggregated input", "halo": "input of the halo"}
