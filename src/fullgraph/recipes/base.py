"""What a strategy is: one choice on every axis, under a name."""

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
    """How a run is laid over ranks, and what its channels do. The fields of a strategy are its options."""

    sends: ClassVar[Crossing] = "mapped"  # what layers may send: rows that they mapped, or ("input") their input

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wires(epochs=100, layers=2)  # bad numbers are refused here, not in the ranks
        self.layout()

    def wires(self, *, epochs: int, layers: int) -> Wires:
        """What the channels of a run of so many epochs and graph layers do: fresh rows, every number as it is."""
        return Wire()

    def layout(self) -> Placement:
        """The placement, with the options that are its own."""
        return Partitioned(sends=self.sends)

    def partitioner(self) -> Partitioner | None:
        """The only one that makes sense with it; None: whichever the run asks for."""
        return None

    def devices_of(self, rank: int) -> tuple[str, ...]:
        """Those that a rank uses, the one of its rows first; empty: the run's."""
        return ()

    @property
    def name(self) -> str:
        return STRATEGIES.label(self)


@dataclass(frozen=True, kw_only=True)
class Published(Strategy):
    """A system whose equations have a layer's input cross. narrow: mapped rows cross where they are narrower."""

    narrow: bool = False

    def layout(self) -> Placement:
        return Partitioned(sends="narrow" if self.narrow else "input")


@dataclass(frozen=True, kw_only=True)
class Given(Strategy):
    """Wires and a placement as they are, for one's own loop, tests and benchmarks; no file can hold them."""

    wire: Wires = Wire()
    placement: Placement = Partitioned()

    def wires(self, *, epochs: int, layers: int) -> Wires:
        return self.wire

    def layout(self) -> Placement:
        return self.placement


def check_strategy(strategy: Strategy) -> None:
    """Refuse a user's own strategy whose methods return something else than they have to."""
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
    """What the channels of a run of so many epochs and graph layers do."""
    with own_code(strategy):
        wires = strategy.wires(epochs=epochs, layers=layers)
        of_layers = [wires.at(layer) for layer in range(layers)] if hasattr(wires, "graded") else None
    if isinstance(wires, type) or of_layers is None or not all(hasattr(wire, "build") for wire in of_layers):
        raise unfit(strategy.wires, f"returned {told(wires)}: return a Wire, or one for each layer (Except)")
    return wires
