"""Models of typed graphs: the input of every type, then layers with weights by relation."""

from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.graph_types import GraphTypes, RelationFact, TypeFact
from fullgraph.model_options import AttentionOptions, BasesOptions, TypedOptions
from fullgraph.nn.linear import Linear
from fullgraph.nn.model import Block, Chain, Layer, State, make_norm
from fullgraph.nn.spec import ModelSpec, drawing
from fullgraph.nn.typed_attention import HGTConv, RGATConv
from fullgraph.nn.typed_conv import HeteroSAGEConv, RGCNConv, TypedConv
from fullgraph.nn.typed_input import TypedInput
from fullgraph.nn.view import GraphView, TypedView
from fullgraph.own_code import own_code


class TypedGNN(Chain):
    """h_0 = input(x);  h_{l+1} = norm(update_l(drop(act(h_l)))).  h_0 has no activation, the last layer no norm.

    Updates are convolutions, and perhaps a dense map at the end.
    """

    def __init__(
        self, first: TypedInput, updates: list[TypedConv | Linear], *, relu: bool, norm: str, dropout: float, seed: int
    ) -> None:
        super().__init__()
        convs = [update for update in updates if isinstance(update, TypedConv)]
        linears = [update for update in updates if isinstance(update, Linear)]
        norms = [make_norm(norm, conv.out_width) for conv in convs[: len(updates) - 1]]
        self.input, self.convs, self.norms = first, nn.ModuleList(convs), nn.ModuleList(norms)
        self.linears = nn.ModuleList(linears)
        pairs = enumerate(zip(updates, [*norms, None], strict=True))
        self.blocks = (
            _First(first, seed=seed),
            *(Layer(i, update, norm, relu=relu and i > 0, dropout=dropout, seed=seed) for i, (update, norm) in pairs),
        )


class _First(Block):
    """The rows of all nodes in one width; the input of the graph layers, which count from 0."""

    def __init__(self, update: TypedInput, *, seed: int) -> None:
        super().__init__(-1, relu=False, dropout=0.0, seed=seed)
        self.update = update

    def forward(self, state: State, view: GraphView) -> State:
        return (self.update(state[0], cast(TypedView, view)),)


@dataclass(frozen=True, kw_only=True)
class TypedModel(TypedOptions, ModelSpec):
    """The base of models for typed graphs. `layers` counts graph layers; a map of each type's features comes first."""

    typed: ClassVar[bool] = True
    aggregation: ClassVar[str] = "relations"
    encodes: ClassVar[bool] = True
    weights_do: ClassVar[str] = "make its means weighted ones"
    relu: ClassVar[bool] = True  # between the layers

    @property
    def hops(self) -> tuple[int | None, ...]:
        *others, _ = super().hops
        return *others, 0  # nothing normalises the logits

    def build(
        self, in_width: int, out_width: int, *, seed: int = 0, dtype: torch.dtype = torch.float32,
        types: GraphTypes | None = None, ids: Tensor | None = None,
    ) -> Chain:  # fmt: skip
        """The module for a graph of these types (by default one type and one relation).

        ids: of the rows of this rank, for which it holds learned rows; None: of all nodes.
        """
        types = types or GraphTypes(
            (TypeFact("node", 1, in_width),), (RelationFact("node", "edge", "node", 0),), "node"
        )
        with drawing(seed), own_code(self):
            first = TypedInput(types, self.hidden, seed, ids, dropout=self.embedding_dropout, scale=self.scale_types)
            updates, relu = self.updates(out_width, types), self.relu
            model = TypedGNN(first, updates, relu=relu, norm=self.norm, dropout=self.dropout, seed=seed)
        return model.to(dtype)

    def updates(self, out_width: int, types: GraphTypes) -> list[TypedConv | Linear]:
        """The model's layers after its input."""
        widths = list(pairwise([*[self.hidden] * self.layers, out_width]))
        return [self.conv(*pair, types, last=layer == self.layers) for layer, pair in enumerate(widths, start=1)]

    def chain(self, in_width: int, out_width: int, seed: int) -> Chain:
        return self.build(in_width, out_width, seed=seed)

    @abstractmethod
    def conv(self, in_width: int, out_width: int, types: GraphTypes, *, last: bool) -> TypedConv:
        """One graph layer; `last`: its output is the model's."""


@dataclass(frozen=True, kw_only=True)
class RGCN(BasesOptions, TypedModel):
    """Relational GCN: a matrix per relation, or `bases` matrices that all relations share, and one for a node's own
    row.

    blocks: a relation's matrix has this many blocks on its diagonal, and zeros beside them. The last layer has whole
    matrices if its width is not a multiple of `blocks`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks > 1 and self.bases:
            raise InputError(f"bases={self.bases} and blocks={self.blocks}: give one of them")
        if self.hidden % self.blocks:
            raise InputError(f"blocks={self.blocks}: must divide hidden={self.hidden}")

    def conv(self, in_width: int, out_width: int, types: GraphTypes, *, last: bool) -> TypedConv:
        blocks = 1 if out_width % self.blocks else self.blocks
        return RGCNConv(in_width, out_width, types, bases=self.bases, blocks=blocks)


@dataclass(frozen=True, kw_only=True)
class HeteroSAGE(TypedModel):
    """GraphSAGE for every relation, summed: a matrix per relation, and one per node type for a node's own row."""

    def conv(self, in_width: int, out_width: int, types: GraphTypes, *, last: bool) -> TypedConv:
        return HeteroSAGEConv(in_width, out_width, types)


@dataclass(frozen=True, kw_only=True)
class TypedAttention(AttentionOptions, TypedModel):
    """The base of models that attend to edges by relation. No edge weights."""

    aggregation: ClassVar[str] = "relation attention"
    weights_do: ClassVar[str] = "are not used: attention finds its own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise InputError(f"heads={self.heads}: must divide hidden={self.hidden}")


@dataclass(frozen=True, kw_only=True)
class RGAT(TypedAttention):
    """Graph attention for every relation, summed; hidden layers concatenate their heads, the last one averages them."""

    def conv(self, in_width: int, out_width: int, types: GraphTypes, *, last: bool) -> TypedConv:
        return RGATConv(in_width, out_width, types, heads=self.heads, concat=not last)


@dataclass(frozen=True, kw_only=True)
class HGT(TypedAttention):
    """Heterogeneous graph transformer, with a dense map at the end. `layers` counts graph layers."""

    relu: ClassVar[bool] = False

    @property
    def hops(self) -> tuple[int | None, ...]:
        return super(TypedModel, self).hops  # the last graph layer's rows are normalised, too

    def updates(self, out_width: int, types: GraphTypes) -> list[TypedConv | Linear]:
        return [*super().updates(self.hidden, types), Linear(self.hidden, out_width)]

    def conv(self, in_width: int, out_width: int, types: GraphTypes, *, last: bool) -> TypedConv:
        return HGTConv(in_width, types, heads=self.heads)
