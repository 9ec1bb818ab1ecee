"""The options of our models: name, default, range and help. Imports no torch, so that `--help` starts fast."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.values import Help, OneOf, Range, Value

NORMS = OneOf("none", "layer", "batch")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Value):
    """The options of every model."""

    layers: Annotated[int, Range(1, 10_000), Help("number of layers")] = 3
    hidden: Annotated[int, Range(1, 1_000_000), Help("width of the rows between two layers")] = 128
    dropout: Annotated[float, Range(0, 1, below=True), Help("share of the numbers between layers that become zero")] = (
        0.5
    )
    norm: Annotated[str, NORMS, Help("norm of the rows between layers", default="layer; gcnii: none")] = "layer"


@dataclass(frozen=True, kw_only=True)
class StackOptions(ModelOptions):
    """The options of models whose last layers may be dense."""

    linear_layers: Annotated[int, Range(0, 10_000), Help("number of dense layers at the end")] = 0
    residual: Annotated[bool, Help("add each hidden layer's input to its output")] = False
    input_dropout: Annotated[bool, Help("apply dropout to input features, too")] = False


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(Value):
    """The options of attention models."""

    heads: Annotated[int, Range(1, 1_000_000), Help("attention heads (gat, rgat, hgt)")] = 4


@dataclass(frozen=True, kw_only=True)
class GCNIIOptions(ModelOptions):
    """The options of GCNII; without a norm by default, as in its paper."""

    alpha: Annotated[float, Range(0, 1), Help("share of the encoder's rows in every layer's input (gcnii)")] = 0.1
    lam: Annotated[float, Range(0, 1e6), Help("lambda: influence of a layer's weights (gcnii)")] = 0.5
    norm: Annotated[str, NORMS] = "none"


@dataclass(frozen=True, kw_only=True)
class TypedOptions(ModelOptions):
    """The options of models of typed graphs."""

    embedding_dropout: Annotated[
        float, Range(0, 1, below=True), Help("share of the numbers of learned rows that is dropped (typed graphs)")
    ] = 0.0
    scale_types: Annotated[
        bool, Help("divide features by the mean length of their type's rows, where it is above 1 (typed graphs)")
    ] = True


@dataclass(frozen=True, kw_only=True)
class BasesOptions(Value):
    """The options of models with a matrix per relation."""

    bases: Annotated[
        int, Range(0, 1_000_000), Help("matrices whose sums are the relations'; 0: one per relation (rgcn)")
    ] = 0
    blocks: Annotated[int, Range(1, 1_000_000), Help("blocks on the diagonal of a relation's matrix (rgcn)")] = 1


KINDS = (StackOptions, AttentionOptions, GCNIIOptions, TypedOptions, BasesOptions)
