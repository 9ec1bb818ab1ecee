"""Models of typed graphs: the input of every type, then convolutions with weights by relation."""

from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from fullgraph.graph_types import GraphTypes, RelationFact, TypeFact
from fullgraph.model_options import BasesOptions
from fullgraph.nn.model import Block, Chain, Layer, State, make_norm
from fullgraph.nn.spec import ModelSpec, drawing
from fullgraph.nn.typed_conv import HeteroSAGEConv, RGCNConv, TypedConv
from fullgraph.nn.typed_input import TypedInput
from fullgraph.nn.view import GraphView, TypedView
from fullgraph.own_code import own_code


class TypedGNN(Chain):
    """h_0 = input(x);  h_{l+1} = norm(conv_l(drop(act(h_l)))).  h_0 has no activation, the last layer no norm."""

    def __init__(self, first: TypedInput, convs: list[TypedConv], *, norm: str, dropout: float, seed: int) -> None:
        super().__init__()
        norms = [make_norm(norm, conv.out_width) for conv in convs[:-1]]
        self.input, self.convs, self.norms = first, nn.ModuleList(convs), nn.ModuleList(norms)
        pairs = enumerate(zip(convs, [*norms, None], strict=True))
        self.blocks = (
            _First(first, seed=seed),
            *(Layer(i, conv, norm, relu=i > 0, dropout=dropout, seed=seed) for i, (conv, norm) in pairs),
        )


class _First(Block):
    """The rows of all nodes in one width; the input of the graph layers, which count from 0."""

    def __init__(self, update: TypedInput, *, seed: int) -> None:
        super().__init__(-1, relu=False, dropout=0.0, seed=seed)
        self.update = update

    def forward(self, state: State, view: GraphView) -> State:
        return (self.update(state[0], cast(TypedView, view)),)


@dataclass(frozen=True, kw_only=True)
class TypedModel(ModelSpec):
    """The base of models for typed graphs. `layers` counts graph layers; a map of each type's features comes first."""

    typed: ClassVar[bool] = True
    aggregation: ClassVar[str] = "relations"
    encodes: ClassVar[bool] = True
    weights_do: ClassVar[str] = "make its means weighted ones"

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
            first = TypedInput(types, self.hidden, seed, ids)
            widths = pairwise([*[self.hidden] * self.layers, out_width])
            convs = [self.conv(in_width, out_width, types) for in_width, out_width in widths]
            model = TypedGNN(first, convs, norm=self.norm, dropout=self.dropout, seed=seed)
        return model.to(dtype)

    def chain(self, in_width: int, out_width: int, seed: int) -> Chain:
        return self.build(in_width, out_width, seed=seed)

    @abstractmethod
    def conv(self, in_width: int, out_width: int, types: GraphTypes) -> TypedConv:
        """One graph layer."""


@dataclass(frozen=True, kw_only=True)
class RGCN(BasesOptions, TypedModel):
    """Relational GCN: a matrix per relation, or `bases` matrices that all relations share, and one for a node's own
    row.
    """

    def conv(self, in_width: int, out_width: int, types: GraphTypes) -> TypedConv:
        return RGCNConv(in_width, out_width, types, bases=self.bases)


@dataclass(frozen=True, kw_only=True)
class HeteroSAGE(TypedModel):
    """GraphSAGE for every relation, summed: a matrix per relation, and one per node type for a node's own row."""

    def conv(self, in_width: int, out_width: int, types: GraphTypes) -> TypedConv:
        return HeteroSAGEConv(in_width, out_width, types)
