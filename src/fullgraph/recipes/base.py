"""A recipe: one choice on every axis, under a name."""

from dataclasses import dataclass, field
from typing import Any

from fullgraph.exchange import Wire, Wires
from fullgraph.placement import ByRows, Partitioned


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A strategy as a value: how work lies over ranks, what their channels do, and the options it was made with."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    placement: type[ByRows] = Partitioned
    layout: dict[str, Any] = field(default_factory=dict)  # the placement's own fields
    partitioner: str = ""  # the only one that makes sense with it; empty: whichever the run asks for
    partitioner_options: dict[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()  # every rank's; empty: the run's
    wire: Wires = field(default_factory=Wire)
    narrow_first: bool = True  # may a layer map its rows before they are sent?
    isolated: bool = False  # train without the arcs between parts

    def wires(self, *, epochs: int, layers: int) -> Wires:
        """What the channels of a run of so many epochs and graph layers do; most recipes do the same in all."""
        return self.wire

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}
