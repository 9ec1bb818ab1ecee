"""Strategies: one choice on every axis, under a name."""

from dataclasses import dataclass
from typing import ClassVar

from fullgraph.axes import STRATEGIES
from fullgraph.exchange import Wire, Wires
from fullgraph.own_code import is_ours, own_code, told, unfit
from fullgraph.partition import Partitioner
from fullgraph.placement import Crossing, Partitioned, Placement
from fullgraph.values import Value


@dataclass(frozen=True, kw_only=True)
class Strategy(Value):
    """How a run is placed on ranks, and how its channels send. The fields of a strategy are its options."""

    sends: ClassVar[Crossing] = "mapped"  # what layers may send: mapped rows, or ("input") their input

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wires(epochs=100, layers=2)  # refuses bad numbers here instead of in the ranks
        self.layout()

    def wires(self, *, epochs: int, layers: int) -> Wires:
        """How the channels of a run of `epochs` and `layers` send; by default fresh rows in full precision."""
        return Wire()

    def layout(self) -> Placement:
        """The placement, with its options."""
        return Partitioned(sends=self.sends)

    def partitioner(self) -> Partitioner | None:
        """The only partitioner that fits this strategy; None: the run's own choice."""
        return None

    def devices_of(self, rank: int) -> tuple[str, ...]:
        """Devices that a rank uses, the device of its rows first; empty: the run's devices."""
        return ()

    @property
    def name(self) -> str:
        return STRATEGIES.label(self)


@dataclass(frozen=True, kw_only=True)
class Published(Strategy):
    """A system whose equations send a layer's input. narrow: send the mapped rows instead if they are narrower.

    cover: send sums of rows where that takes fewer messages, as `vanilla` does. by_host: see `vanilla`.
    """

    narrow: bool = False
    cover: bool = False
    by_host: bool = False

    def layout(self) -> Placement:
        sends: Crossing = "narrow" if self.narrow else "input"
        return Partitioned(sends=sends, cover=self.cover, by_host=self.by_host)


@dataclass(frozen=True, kw_only=True)
class Given(Strategy):
    """Explicit wires and placement, for a user's own loop, tests and benchmarks; cannot be written to a file."""

    wire: Wires = Wire()
    placement: Placement = Partitioned()

    def wires(self, *, epochs: int, layers: int) -> Wires:
        return self.wire

    def layout(self) -> Placement:
        return self.placement


def check_strategy(strategy: Strategy) -> None:
    """Refuse a user's own strategy if one of its methods returns a wrong type."""
    if is_ours(strategy):
        return
    with own_code(strategy):
        layout, partitioner, devices = strategy.layout(), strategy.partitioner(), strategy.devices_of(0)
    wires_of(strategy, epochs=100, layers=2)
    if hasattr(strategy, "narrow_first"):
        raise unfit(strategy, 'has narrow_first, which this version does not read: write sends = "input" for False')
    if not isinstance(layout, Placement):
        raise unfit(strategy.layout, f"returned {told(layout)}: return a placement, such as Partitioned()")
    if partitioner is not None and not hasattr(partitioner, "assign"):
        raise unfit(strategy.partitioner, f"returned {told(partitioner)}: return a partitioner, or None")
    if not isinstance(devices, tuple) or not all(isinstance(device, str) for device in devices):
        raise unfit(strategy.devices_of, f"returned {told(devices)}: return a tuple of devices' names, or ()")


def wires_of(strategy: Strategy, *, epochs: int, layers: int) -> Wires:
    """How the channels of a run of `epochs` and `layers` send; checked if the strategy is a user's."""
    with own_code(strategy):
        wires = strategy.wires(epochs=epochs, layers=layers)
        of_layers = [wires.at(layer) for layer in range(layers)] if hasattr(wires, "graded") else None
    if isinstance(wires, type) or of_layers is None or not all(hasattr(wire, "build") for wire in of_layers):
        raise unfit(strategy.wires, f"returned {told(wires)}: return a Wire, or one for each layer (Except)")
    return wires
