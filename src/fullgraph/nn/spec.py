"""Models as values: a frozen description that builds the module when the widths are known."""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import torch

from fullgraph.axes import MODELS
from fullgraph.errors import InputError
from fullgraph.model_options import AttentionOptions, GCNIIOptions, ModelOptions, StackOptions
from fullgraph.nn.conv import Conv, GATConv, GCN2Conv, GCNConv, GINConv, SAGEConv
from fullgraph.nn.deep import InitialResidual, PreActivation
from fullgraph.nn.linear import Linear
from fullgraph.nn.model import GNN, Chain
from fullgraph.own_code import is_ours, own_code, told, unfit

AGGREGATIONS = ("gcn", "mean", "sum", "attention", "relations", "relation attention")
_DRAWING = threading.Lock()


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draw weights from the seed. torch has one generator and one default type for all threads: one draws at a time."""
    with _DRAWING, torch.random.fork_rng(devices=[]):
        default = torch.get_default_dtype()  # read while no thread draws
        torch.manual_seed(seed)
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


@dataclass(frozen=True, kw_only=True)
class ModelSpec(ModelOptions, ABC):
    """The base of all models: `layers` of `hidden` features, dropout between them, a norm."""

    typed: ClassVar[bool] = False  # True: for typed graphs (typed.py)
    aggregation: ClassVar[str]  # the A that the view multiplies by: one of AGGREGATIONS
    encodes: ClassVar[bool] = False  # a dense encoder comes first, so that input aggregation cannot be precomputed
    weights_do: ClassVar[str] = ""  # what edge weights change, if that may surprise

    @property
    def graph_layers(self) -> int:
        """How many layers see the graph."""
        return self.layers

    @property
    def hops(self) -> tuple[int | None, ...]:
        """For each graph layer, the distance in hops from a training node within which its output is read; None:
        everywhere.

        A batch norm reads all rows of its input.
        """
        return tuple(None if self.norm == "batch" else hop for hop in reversed(range(self.graph_layers)))

    def build(self, in_width: int, out_width: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Chain:
        """The module; equal seeds give equal weights on every rank."""
        with drawing(seed), own_code(self):
            model = self.chain(in_width, out_width, seed)
        return model.to(dtype)

    def outline(self, in_width: int, out_width: int) -> Chain:
        """The module on the meta device, which takes no memory: its layers and their sizes."""
        with torch.device("meta"):
            return self.build(in_width, out_width)

    @abstractmethod
    def chain(self, in_width: int, out_width: int, seed: int) -> Chain:
        """The module, with weights from torch's generator; `seed` is the seed of its dropout."""

    @property
    def name(self) -> str:
        return MODELS.label(self)


def check_spec(spec: ModelSpec) -> None:
    """Refuse a user's own model description that lacks a property."""
    if is_ours(spec) or hasattr(spec, "distributed"):  # a module written for PyG has no description
        return
    with own_code(spec):
        sizes = {name: getattr(spec, name) for name in ("layers", "hidden", "graph_layers")}
        aggregation, hops = spec.aggregation, spec.hops
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise unfit(spec, f"has {name} = {size!r}: give a whole number, 1 or more")
    if aggregation not in AGGREGATIONS:
        raise unfit(spec, f"has aggregation = {aggregation!r}: give one of {', '.join(AGGREGATIONS)}")
    if not isinstance(hops, tuple) or not all(hop is None or isinstance(hop, int) for hop in hops):
        raise unfit(spec, f"has hops = {hops!r}: give a tuple with a whole number, or None, for each layer; or ()")


@dataclass(frozen=True, kw_only=True)
class Stack(StackOptions, ModelSpec):
    """`layers` counts all layers, of which the last `linear_layers` are dense."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linear_layers >= self.layers:
            most = self.layers - 1
            raise InputError(f"linear_layers={self.linear_layers}: at most {most}, for one layer must see the graph")

    @property
    def graph_layers(self) -> int:
        return self.layers - self.linear_layers

    @property
    def hops(self) -> tuple[int | None, ...]:
        *others, last = super().hops
        return *others, last if self.linear_layers else 0  # nothing normalises the logits

    def chain(self, in_width: int, out_width: int, seed: int) -> GNN:
        pairs = list(pairwise([in_width, *[self.hidden] * (self.layers - 1), out_width]))
        convs = [
            self.conv(i, o, last=layer == self.layers - 1) for layer, (i, o) in enumerate(pairs[: self.graph_layers])
        ]
        for conv, (_, width) in zip(convs, pairs, strict=False):
            if not isinstance(conv, Conv):
                raise unfit(self.conv, f"returned {told(conv)}: return a fullgraph.nn.Conv")
            if getattr(conv, "out_width", None) != width:
                raise unfit(conv, f"has no out_width of {width}: call super().__init__(in_width, out_width)")
        linears = [Linear(i, o) for i, o in pairs[self.graph_layers :]]
        return GNN(
            convs, linears, norm=self.norm, dropout=self.dropout, input_dropout=self.input_dropout,
            residual=self.residual, seed=seed,
        )  # fmt: skip

    @abstractmethod
    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        """One graph layer; last: whether its output is the model's output."""


@dataclass(frozen=True, kw_only=True)
class GCN(Stack):
    """Kipf and Welling's graph convolutional network."""

    aggregation: ClassVar[str] = "gcn"

    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        return GCNConv(in_width, out_width)


@dataclass(frozen=True, kw_only=True)
class GraphSAGE(Stack):
    """GraphSAGE with the mean of all neighbours, weighted if edges have weights."""

    aggregation: ClassVar[str] = "mean"
    weights_do: ClassVar[str] = "make its mean a weighted one"

    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        return SAGEConv(in_width, out_width)


@dataclass(frozen=True, kw_only=True)
class Usual(GraphSAGE):
    """The model of a run that names none: GraphSAGE, unless the task has another default.

    given: the options that the user chose.
    """

    given: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "sage"

    def settled(self, name: str, options: Mapping[str, Any]) -> ModelSpec:
        """The model of that name, with the task's options except where the user chose others."""
        model: ModelSpec = MODELS.make(name, **{**options, **{field: getattr(self, field) for field in self.given}})
        return model


@dataclass(frozen=True, kw_only=True)
class GIN(Stack):
    """Graph isomorphism network with a learned eps; its sum is weighted if edges have weights."""

    aggregation: ClassVar[str] = "sum"
    weights_do: ClassVar[str] = "make its sum a weighted one"

    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        return GINConv(in_width, out_width, inner=self.hidden)


@dataclass(frozen=True, kw_only=True)
class GAT(AttentionOptions, Stack):
    """Graph attention network; hidden layers concatenate their heads, the last one averages them. No edge weights."""

    aggregation: ClassVar[str] = "attention"
    weights_do: ClassVar[str] = "are not used: attention finds its own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise InputError(f"heads={self.heads}: must divide hidden={self.hidden}")

    def conv(self, in_width: int, out_width: int, *, last: bool) -> Conv:
        return GATConv(in_width, out_width, heads=self.heads, concat=not last)


@dataclass(frozen=True, kw_only=True)
class GCNII(GCNIIOptions, ModelSpec):
    """GCN with initial residual and identity mapping  (Chen et al., arXiv:2007.02133):  beta_l = log(lam / l + 1).

    `layers` counts convolutions, as in the paper; a dense encoder and decoder are added.
    """

    aggregation: ClassVar[str] = "gcn"
    encodes: ClassVar[bool] = True

    def chain(self, in_width: int, out_width: int, seed: int) -> Chain:
        encoder, decoder = Linear(in_width, self.hidden), Linear(self.hidden, out_width)
        betas = [math.log(self.lam / layer + 1) for layer in range(1, self.layers + 1)]
        convs = [GCN2Conv(self.hidden, alpha=self.alpha, beta=beta) for beta in betas]
        return InitialResidual(encoder, convs, decoder, norm=self.norm, dropout=self.dropout, seed=seed)


@dataclass(frozen=True, kw_only=True)
class ResGCN(ModelSpec):
    """ResGCN+ of DeeperGCN with GCN's aggregation: norm, activation, convolution, sum  (Li et al., arXiv:2006.07739).

    `layers` counts convolutions, as in the paper; a dense encoder and decoder are added.
    """

    aggregation: ClassVar[str] = "gcn"
    encodes: ClassVar[bool] = True

    def chain(self, in_width: int, out_width: int, seed: int) -> Chain:
        encoder, decoder = Linear(in_width, self.hidden), Linear(self.hidden, out_width)
        convs = [GCNConv(self.hidden, self.hidden) for _ in range(self.layers)]
        return PreActivation(encoder, convs, decoder, norm=self.norm, dropout=self.dropout, seed=seed)


AnyModel = Annotated[ModelSpec, MODELS]
