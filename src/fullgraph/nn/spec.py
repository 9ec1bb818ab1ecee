"""Models as values: a frozen description that builds the module once the widths are known."""

import threading
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch

from fullgraph.errors import InputError
from fullgraph.nn.conv import Conv, GATConv, GCNConv, GINConv, SAGEConv
from fullgraph.nn.linear import Linear
from fullgraph.nn.model import GNN

_DRAWING = threading.Lock()
NORMS = ("none", "layer", "batch")


@dataclass(frozen=True, kw_only=True)
class ModelSpec(ABC):
    """`layers` counts all layers, of which the last `linear_layers` are dense."""

    name: ClassVar[str]
    aggregation: ClassVar[str]  # which A the view multiplies by: "gcn", "mean", "sum" or "attention"

    layers: int = 3
    hidden: int = 128
    dropout: float = 0.5
    norm: str = "none"
    linear_layers: int = 0
    residual: bool = False

    def __post_init__(self) -> None:
        _require(self.layers >= 1, f"layers={self.layers}: at least 1")
        _require(self.hidden >= 1, f"hidden={self.hidden}: at least 1")
        _require(0.0 <= self.dropout < 1.0, f"dropout={self.dropout}: at least 0 and below 1")
        _require(self.norm in NORMS, f"norm={self.norm!r}: one of {', '.join(NORMS)}")
        _require(
            0 <= self.linear_layers < self.layers,
            f"linear_layers={self.linear_layers}: between 0 and {self.layers - 1}, one layer must see the graph",
        )

    def build(self, in_width: int, out_width: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> GNN:
        """The module; equal seeds give equal weights on every rank."""
        widths = [in_width, *[self.hidden] * (self.layers - 1), out_width]
        pairs = list(pairwise(widths))
        graph_layers = self.layers - self.linear_layers
        # Layers draw from torch's one generator, which simulated ranks share.
        with _DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            convs = [
                self.conv(i, o, last=layer == self.layers - 1) for layer, (i, o) in enumerate(pairs[:graph_layers])
            ]
            linears = [Linear(i, o) for i, o in pairs[graph_layers:]]
            model = GNN(
                convs, linears, norm=self.norm, dropout=self.dropout, residual=self.residual, seed=seed
            )  # fmt: skip
        return model.to(dtype)

    @abstractmethod
    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        """One graph layer; `last` where its output is the model's."""

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class GCN(ModelSpec):
    """Kipf and Welling's graph convolutional network."""

    name: ClassVar[str] = "gcn"
    aggregation: ClassVar[str] = "gcn"

    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        return GCNConv(in_width, out_width)


@dataclass(frozen=True, kw_only=True)
class GraphSAGE(ModelSpec):
    """GraphSAGE with the mean of all neighbours."""

    name: ClassVar[str] = "sage"
    aggregation: ClassVar[str] = "mean"

    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        return SAGEConv(in_width, out_width)


@dataclass(frozen=True, kw_only=True)
class GIN(ModelSpec):
    """Graph isomorphism network with a learned eps."""

    name: ClassVar[str] = "gin"
    aggregation: ClassVar[str] = "sum"

    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        return GINConv(in_width, out_width)


@dataclass(frozen=True, kw_only=True)
class GAT(ModelSpec):
    """Graph attention network; hidden layers concatenate their heads, the last one averages them."""

    name: ClassVar[str] = "gat"
    aggregation: ClassVar[str] = "attention"

    heads: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            self.heads >= 1 and self.hidden % self.heads == 0, f"heads={self.heads}: must divide hidden={self.hidden}"
        )

    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        return GATConv(in_width, out_width, heads=self.heads, concat=not last)


def _require(good: bool, text: str) -> None:
    if not good:
        raise InputError(text)


MODELS: dict[str, type[ModelSpec]] = {"gcn": GCN, "sage": GraphSAGE, "gin": GIN, "gat": GAT}
