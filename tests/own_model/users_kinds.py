"""The users' models by kind, and the outcome of each: equal to one process of plain PyG, or refused with the fix.

`python -m tests.own_model.users_kinds` prints the table of docs/own_models.md.
"""

import copy
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fullgraph.axes import MODELS
from fullgraph.partition import facts_of

NAMES = ("models", "propagation", "hops", "papers", "layers", "edges", "modules", "rows", "draws")
FILES = [Path(__file__).with_name(f"users_{name}.py") for name in NAMES]
FILE = FILES[0]


@dataclass(frozen=True)
class Case:
    """How a script calls one of the models, and its outcome over ranks."""

    name: str
    call: object = field(default=lambda model, data: model(data.x, data.edge_index))
    logits: object = field(default=lambda out: out)
    refused: str = ""  # words of the refusal
    draws: bool = False  # PyG draws other numbers: only ranks are compared with each other
    options: dict = field(default_factory=dict)

    def spec(self):
        return MODELS.make(f"{self.file}:{self.name}", **self.options)

    @property
    def file(self):
        """The file that defines the model."""
        return next(file for file in FILES if re.search(rf"^(class|def) {self.name}\b", file.read_text(), re.MULTILINE))

    def built(self, graph):
        torch.manual_seed(0)
        return self.spec().build(6, 4, dtype=torch.float64, facts=facts_of(graph))


def of_x(model, data):
    return model(data.x)


def of_arcs(model, data):
    return model(data.edge_index)


def of_data(model, data):
    return model(copy.copy(data))


def weighted(model, data):
    return model(data.x, data.edge_index, data.edge_weight)


def by_name_weighted(model, data):
    return model(data.x, data.edge_index, edge_weight=data.edge_weight)


def featured(model, data):
    return model(data.x, data.edge_index, data.edge_attr)


def with_field(*names):
    return lambda model, data: model(data.x, data.edge_index, *(getattr(data, name) for name in names))


labelled = with_field("y", "train_mask")


def first(out):
    return out[0]


def with_labels(model, data):
    return model(data.x, data.y, data.edge_index, data.train_mask, data.node_id)


SMALL = {"hidden_channels": 8, "num_layers": 2}
KINDS = {  # what users write, and how each of them ends
    "PyG layers in sequence": [
        Case("GCN"), Case("GCNWeighted", weighted), Case("GCNBatchNorm"), Case("Sage"), Case("SageMax"),
        Case("GAT"), Case("GATv2Edges", featured), Case("Transformer"), Case("GIN"), Case("GINE", featured),
        Case("ARMA"), Case("TAG"), Case("PNA"), Case("EdgeConv"), Case("Normalised"), Case("Gated"), Case("ResGated"),
        Case("GEN"),
        Case("EdgeNetwork", featured), Case("PyGs", by_name_weighted), Case("MLP", of_x),
    ],
    "lazy widths, `adj_t` as a name": [Case("SageLazy")],
    "jumping knowledge, residuals, GCN2, APPNP, SGC (cached)": [
        Case("Jumping"), Case("JumpingLSTM"), Case("Residual"), Case("APPNP"), Case("SGC"), Case("GCNII"),
    ],
    "norms and means over all nodes, a virtual node": [Case("Normed"), Case("PairNormed"), Case("VirtualNode")],
    "your own layer; attention written out": [Case("Tutorial"), Case("ByHand")],
    "`forward(data)`, `forward(batch)`": [Case("TakesData", of_data), Case("TakesBatch", of_data)],
    "several outputs: a tuple, a dictionary, a dataclass": [
        Case("WithHidden", logits=first), Case("AsDict", logits=lambda out: out["logits"]),
        Case("AsDataclass", logits=lambda out: out.out),
    ],
    "the model's own loss among its outputs": [Case("OwnLoss", logits=first, refused="a loss of its own")],
    "fields of the graph: `pe`, kinds of nodes, relations": [
        Case("Positions", with_field("pe")), Case("TypesOfNodesAndEdges", with_field("node_kind", "etype")),
        Case("Relational", with_field("etype")),
    ],
    "`nn.Embedding` over all nodes: its `weight`, `arange(N)`, `node_id`": [
        Case("EmbeddedById", with_field("node_id")), Case("Embedded", of_arcs), Case("EmbeddedByArange", of_arcs),
    ],
    "weights and buffers with a row per node": [Case("BesideFeatures"), Case("Historic")],
    "LINKX: a linear map of the adjacency's rows": [Case("LINKX", weighted)],
    "`dropout_edge`": [Case("DropEdge", draws=True), Case("DropEdgeWeighted", weighted, draws=True)],
    "`dropout_edge(force_undirected=True)`": [Case("DropBothWays", draws=True)],
    "`flow=\"target_to_source\"`": [Case("TargetToSource")],
    "`flip(0)`, `edge_index[[1, 0]]`, a stack of both rows": [
        Case("BothWays"), Case("BothWaysByIndex"),
        Case("BothWaysByStack"), Case("FlippedWithFeatures", featured),
    ],
    "Dir-GNN": [Case("DirGNN")],
    "ChebConv": [Case("Cheb")],
    "sums and extremes by the sources of edges": [Case("SumsBySource"), Case("ExtremesBySource")],
    "`to_undirected` inside of forward": [Case("Undirected", refused="before training")],
    "UniMP: labels of training nodes as inputs; `MaskLabel`": [
        Case("UniMP", with_labels), Case("Masked", with_labels, draws=True),
    ],
    "`MaskLabel.ratio_mask`, draws for a number of chosen nodes": [
        Case("MaskedByCount", with_labels, refused="torch.rand(x.size(0))[mask]"),
    ],
    "`adj_t @ x`, written for a SparseTensor": [
        Case("TransposedProduct", refused="torch.sparse_coo_tensor(edge_index.flip(0)"),
    ],
    "`torch.sparse.mm` with the graph": [
        Case("SparseMM", weighted), Case("SparseNormed"),
    ],
    "constructors with `*args, **kwargs`, functions that make a model": [
        Case("StarArgs", options=SMALL), Case("Options", options=SMALL), Case("make_net"),
    ],
    "frozen parts: `no_grad`, `requires_grad_(False)`, `detach`": [
        Case("FrozenNoGrad"), Case("FrozenWeights"), Case("Detached"),
    ],
    "MixHop, GPRGNN, DAGNN, BernNet, AirGNN, ACM-GNN; H2GCN, FAGCN": [
        Case("MixHop"), Case("GPRGNN", of_data), Case("DAGNN", of_data), Case("BernNet"), Case("AirGNN"), Case("ACM"),
        Case("H2GCN"), Case("FAGCN"), Case("FAConvs"),
    ],
    "the product of two adjacency matrices": [Case("H2GCNBySparse", refused="multiply rows twice, A @ (A @ x)")],
    "normalised edges or hops that are kept (`cached`, an attribute), SIGN, PMLP": [
        Case("CachedNorm"), Case("CachedConvs", weighted), Case("SIGN", with_field("pe")), Case("SIGNWithin"),
        Case("PMLPs"),
    ],
    "label propagation, correct and smooth": [
        Case("LabelsSpread", labelled), Case("LabelReuse", labelled), Case("CorrectScaled", labelled),
    ],
    "GRAND, `dropout_node`, LightGCN": [
        Case("GRAND", draws=True), Case("DropNode", draws=True), Case("LightGCN", of_arcs),
    ],
    "`DeepGCNLayer` (res+, dense, with checkpoints), RevGNN, a GRU over layers, DNA": [
        Case("DeeperGCN", featured), Case("DeeperCheckpointed", featured), Case("DeeperDense"), Case("RevGNN"),
        Case("RevGNNMasked", draws=True), Case("GRUOverDepth"), Case("DNA"),
    ],
    "linear attention over all nodes (SGFormer, DIFFormer), a gated read-out": [
        Case("SGFormerByHand"), Case("DIFFormer"), Case("AttentionReadOut"),
    ],
    "`GPSConv`, Polynormer, `nn.MultiheadAttention` over nodes": [
        Case("GPS", refused="attention between all nodes"), Case("Polynormer", refused="attention between all nodes"),
        Case("DenseAttention", refused="mixes rows of nodes"),
    ],
    "EGC, ClusterGCN, LE, FiLM, MF, FeaSt, GMM, PointNet, CG, PDN, RGAT, SuperGAT, Signed, Hypergraph": [
        Case("Rational"), Case("Mesh", with_field("edge_attr", "pe")), Case("Crystal", featured),
        Case("RelationalAttention", with_field("etype", "edge_attr")), Case("SuperGATs"), Case("Signed", featured),
        Case("Hyper"), Case("GPSLocal"),
    ],
    "`Sequential`, PyG's basic models with norms and jumping knowledge": [
        Case("Sequenced", weighted), Case("BasicVariants"),
    ],
    "poolings of nodes, neighbours by distance, a random order of nodes": [
        Case("UNet", refused="a pooling of all nodes"), Case("SortPooled", refused="by their position"),
        Case("Nearest", refused="compares rows of nodes with each other"),
        Case("DGICorrupted", refused="torch.randperm gives an order of nodes"),
        Case("NegativeByHand", refused="torch.randint draws positions of nodes"),
    ],
    "`message` with `x_i`, `update`, `edge_update`, `aggregate`, `message_and_aggregate`": [
        Case("Updated"), Case("EdgeUpdated"), Case("Aggregated"), Case("Fused"),
    ],
    "lists of aggregations, Softmax, PowerMean, median, quantile, DeepSets, degree scalers": [
        Case("SeveralAggregations"), Case("Scaled"), Case("OtherAggregations"), Case("Multiplied"),
    ],
    "`(x, x)` with `size`, attention weights as output, `MetaLayer`": [
        Case("BipartiteArguments"), Case("WithAttentionWeights"), Case("MetaLayered", featured),
    ],
    "MessageNorm, DiffGroupNorm, GraphSizeNorm, MeanSubtractionNorm, LayerNorm": [Case("Norms")],
    "`InstanceNorm`": [Case("InstanceNormed", refused="a norm over all nodes")],
    "weights of edges from an MLP or a likeness, self loops removed and added, degrees as features": [
        Case("EdgeScored", featured), Case("EdgesByLikeness"), Case("Loops", featured), Case("DegreesAsFeatures"),
    ],
    "`subgraph` of a mask; `contains_self_loops`, `homophily`": [
        Case("Subgraphs", with_field("node_kind")), Case("AsksTheGraph"), Case("Homophily", with_field("y")),
    ],
    "`subgraph(relabel_nodes=True)`": [
        Case("SubgraphRelabelled", with_field("node_kind"), refused="give it a mask of nodes alone"),
    ],
    "`k_hop_subgraph`, `to_dense_adj`, `sort_edge_index`, `coalesce`, `unique`, `is_undirected`, `negative_sampling`": [
        Case("KHop", refused="searches the whole graph"), Case("DenseAdjacency", refused="an entry for each pair of"),
        Case("Sorted", refused="before training"), Case("Coalesced", refused="before training"),
        Case("UniqueEdges", refused="unique_dim is not known"), Case("Negatives", refused="Python's random or NumPy's"),
        Case("AsksWhetherUndirected", refused="before training"),
    ],
    "`spmm`, a matrix as CSR": [Case("SparseCSR")],
    "a matrix in the place of `edge_index`": [
        Case("SparseInLayer", refused="give edge_index to layers"),
        Case("MatrixInLayer", refused="give edge_index to layers"),
    ],
    "`ModuleDict`, `ParameterList`, tied weights, weight and spectral norms, lazy modules": [
        Case("Containers"), Case("Tied"), Case("Parametrized"), Case("ParametrizedOldWay"), Case("LazyAll"),
        Case("Wrapped"),
    ],
    "hooks of layers that keep or change outputs": [Case("Hooked"), Case("HookedChange")],
    "`torch.utils.checkpoint`, autocast, `torch.compile` of a layer": [
        Case("Checkpointed"), Case("CheckpointedRows"), Case("Autocast"), Case("Compiled"),
    ],
    "`torch.jit.script` of a layer": [Case("Scripted", refused="is TorchScript")],
    "`self.training`, named tuples, frozen dataclasses, lists; arguments that a graph lacks": [
        Case("ByTraining"), Case("Exported"), Case("Structured", logits=first),
        Case("PlainNamedTuple", logits=lambda out: out.pred), Case("FrozenDataclass", logits=lambda out: out.logits),
        Case("Heads", logits=first), Case("ManyOptionals", weighted),
    ],
    "an LSTM, a Transformer or a convolution over each node's layers, hops or time steps": [
        Case("LSTMOverLayers"), Case("AttentionOverHops"), Case("ConvOverHops"), Case("Temporal"),
        Case("TemporalConvs"),
    ],
    "OGB's virtual node, `global_max_pool`, `AttentionalAggregation`, `Set2Set`, DGI's summary": [
        Case("PooledVirtualNode"), Case("Pooled"), Case("SetToSet"), Case("PooledByKind", with_field("node_kind")),
        Case("DGI"),
    ],
    "prototypes of classes, experts, bilinear scores, complex numbers, masked rows, slow copies of a layer": [
        Case("Prototypes", labelled), Case("MixtureOfExperts"), Case("Bilinear"), Case("MagNet"),
        Case("MaskedTraining", with_field("train_mask")), Case("Splits"), Case("RunningStatistics"),
        Case("RegularisedByEntropy"), Case("Counted"), Case("Teacher"),
    ],
    "`rand`, `randn`, `bernoulli`, `normal_`, `uniform_`, `randint`, Gumbel softmax, `Categorical`": [
        Case("RandomFeatures", draws=True), Case("Variational", draws=True), Case("VariationalByNormal", draws=True),
        Case("GumbelEdges", draws=True), Case("Bernoulli", draws=True), Case("Noise", draws=True),
        Case("DropMessages", draws=True), Case("Sampled", draws=True),
    ],
    "columns, layers or rows masked at random (`mask_feature`)": [
        Case("FeatureMask", draws=True), Case("Augmented", draws=True), Case("AugmentedRows", draws=True),
        Case("StochasticDepth", draws=True), Case("Shuffled", draws=True),
    ],
    "values through NumPy, gradients inside of forward": [
        Case("OnCPU", refused="leave torch"), Case("Saliency", refused="computes gradients of rows"),
    ],
}  # fmt: skip
CASES = [case for cases in KINDS.values() for case in cases]


def table():
    """The table of docs/own_models.md; `test_users_models.py` tries every line of it."""
    lines = ["| what you write | tried as | on many ranks |", "|---|---|---|"]
    for kind, cases in KINDS.items():
        found = {f'refused: "{case.refused}"' if case.refused else "equal" for case in cases}
        lines.append(f"| {kind} | {', '.join(case.name for case in cases)} | {'; '.join(sorted(found))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
