"""The matrix of a campaign, as a value: graphs x models x strategies x ranks x link rates."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from fullgraph.axes import MODELS, STRATEGIES
from fullgraph.device import HOST, DeviceName
from fullgraph.errors import InputError, one_line
from fullgraph.lab.cost.cluster import bits_of
from fullgraph.values import Range, Value
from fullgraph.words import count

if TYPE_CHECKING:
    from fullgraph.nn import ModelSpec
    from fullgraph.recipes import Strategy

LOOPBACK = "loopback"  # ranks are processes on this machine
PEERS = ("PyG CSR", "PyG edge_index")  # replace a strategy
SLOWEST, FASTEST = 1e3, 30e9  # bits per second of a link; the kernel counts bytes in 32 bits


class Group(NamedTuple):
    """One job: strategies differ and everything else is equal, so their figures can be compared."""

    graph: str
    model: str
    ranks: int
    rate: str

    def __str__(self) -> str:
        return f"{self.graph}, {self.model}, {count(self.ranks, 'rank')}, {self.rate}"


class Point(NamedTuple):
    """The place of a cell, in the texts that the user gave."""

    group: Group
    strategy: str


@dataclass(frozen=True, kw_only=True)
class Settings(Value):
    """How every cell is measured."""

    epochs: Annotated[int, Range(1, 10**6)] = 8  # epochs per round; a round is their mean
    rounds: Annotated[int, Range(1, 10**4)] = 3  # rounds per cell; a cell is their median
    score: Annotated[int, Range(0, 10**9)] = 0  # epochs to train for a score; 0: no score
    device: DeviceName = HOST
    all_rows: bool = False  # layers also compute rows that the loss does not read


@dataclass(frozen=True, kw_only=True)
class Matrix(Value):
    """Every combination of these values is a cell. Models and strategies are names with options:

    `gcn:layers=16,hidden=64`, `sylvie-a bits=2`. peers: also measure PyG in one process, on every graph and model.
    """

    graph: tuple[str, ...] = ("demo",)
    model: tuple[str, ...] = ("sage",)
    strategy: tuple[str, ...] = ("vanilla",)
    ranks: tuple[Annotated[int, Range(1, 65535)], ...] = (2,)
    rate: tuple[str, ...] = (LOOPBACK,)
    peers: bool = False

    def groups(self) -> Iterator[Group]:
        """All groups, graph by graph. One rank has no link and is measured once."""
        for graph in dict.fromkeys(self.graph):
            for model in dict.fromkeys(self.model):
                for ranks in dict.fromkeys(self.ranks):
                    for rate in dict.fromkeys(self.rate if ranks > 1 else (LOOPBACK,)):
                        yield Group(graph, model, ranks, rate)

    def points(self) -> Iterator[Point]:
        for group in self.groups():
            for strategy in dict.fromkeys(self.strategy):
                yield Point(group, strategy)
        if self.peers:
            for graph in dict.fromkeys(self.graph):
                for model in dict.fromkeys(self.model):
                    yield from (Point(Group(graph, model, 1, LOOPBACK), peer) for peer in PEERS)

    def check(self) -> None:
        """Refuse bad names, and links that cannot be emulated here, before the first measurement."""
        from fullgraph.data.loaders import check_name
        from fullgraph.lab.bench.hosts import Hosts

        for name in ("graph", "model", "strategy", "ranks", "rate"):
            if not getattr(self, name):
                raise InputError(f"no {name} is given; give one or more with --{name}")
        for graph in self.graph:
            check_name(graph)
        for model in self.model:
            model_of(model)
        for strategy in self.strategy:
            strategy_of(strategy)
        links = [rate for rate in self.rate if bits_per_second(rate) is not None]
        if links and max(self.ranks) > 1:
            Hosts(1)  # raises if emulated hosts are impossible here


def model_of(text: str) -> "ModelSpec":
    """`gcn`, `gcn:layers=16,hidden=64`, `my_model.py:Net` or `my_model.py:Net:width=64`."""
    name, _, options = text.rpartition(":")
    if "=" not in options:
        name, options = text, ""
    model: ModelSpec = MODELS.make(name, **_pairs(options.split(",") if options else [], f"model {text}"))
    return model


def strategy_of(text: str) -> "Strategy":
    """`pipegcn`, or with options between spaces: `sylvie-a bits=2`."""
    name, *options = text.split() or [""]
    strategy: Strategy = STRATEGIES.make(name, **_pairs(options, f"strategy {text}"))
    return strategy


def bits_per_second(rate: str) -> float | None:
    """The bits per second of a link, such as 200mbit; None: loopback."""
    if rate == LOOPBACK:
        return None
    bits = bits_of(rate) or 0.0
    if not SLOWEST <= bits <= FASTEST:
        how = "a number and a unit from 1kbit to 30gbit, such as 200mbit"
        raise InputError(f"rate {one_line(rate, 40)!r}: write {LOOPBACK}, or {how}")
    return bits


def _pairs(options: list[str], what: str) -> dict[str, str]:
    bad = [option for option in options if "=" not in option]
    if bad:
        raise InputError(f"{one_line(what, 100)}: write {one_line(bad[0], 40)!r} as KEY=VALUE")
    return dict(option.split("=", 1) for option in options)
