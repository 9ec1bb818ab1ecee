"""Layers of relations on our kernels: equal to PyG in one process, without PyG's own code; live rows by type."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric", reason="PyG is an extra")

import torch_geometric.nn as pyg
from torch_geometric.nn import HeteroConv, to_hetero

import fullgraph as fg
from fullgraph.own_model.chunked.layer import ChunkedCall
from fullgraph.own_model.typed.live import LiveRelation
from fullgraph.partition import Assignment
from fullgraph.testing import run_processes, run_threads
from tests.own_model.test_live import EXACT, WIRES, compare, near, trace
from tests.own_typed import typed_cases as users
from tests.own_typed.typed_models import HGT, RGCN

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")
HIDDEN = 8
WRITES, CITES, KNOWS = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("author", "knows", "author")
BOTH = (WRITES, ("paper", "written_by", "author"), ("venue", "publishes", "paper"), ("author", "never", "paper"))


class Relations(nn.Module):
    """Two layers of a HeteroConv after a map of each type to one width."""

    def __init__(self, conv, out_channels, relations, attr=False):
        super().__init__()
        self.lin = pyg.HeteroDictLinear(-1, HIDDEN, types=["author", "paper", "venue"])
        self.convs = nn.ModuleList(
            HeteroConv({relation: conv(HIDDEN) for relation in relations}, aggr="sum") for _ in range(2)
        )
        self.head, self.attr = nn.Linear(HIDDEN, out_channels), attr

    def forward(self, x_dict, edge_index_dict, edge_attr_dict):
        x_dict = self.lin(x_dict)
        more = {"edge_attr_dict": edge_attr_dict} if self.attr else {}
        for conv in self.convs:
            x_dict = {**x_dict, **{kind: x.tanh() for kind, x in conv(x_dict, edge_index_dict, **more).items()}}
        return self.head(x_dict["paper"])


def mlp(width):
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.LayerNorm(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))


def of(kind, relations=BOTH, attr=False, **options):
    def conv(width):
        return kind((width, width), HIDDEN, **options)

    return partial(Relations, conv, relations=relations, attr=attr)


def one(kind, *args, **options):
    """A layer between nodes of one type."""
    return partial(Relations, lambda width: kind(width, *args, **options), relations=(CITES, KNOWS))


GATES = {"attr": True, "edge_dim": 3, "relations": (WRITES,)}
LAYERS = {
    "sage mean": of(pyg.SAGEConv),
    "sage max": of(pyg.SAGEConv, (*BOTH, CITES), aggr="max", project=True, normalize=True),
    "sage many": of(pyg.SAGEConv, aggr=["mean", "std", "max"]),
    "graph": of(pyg.GraphConv, (*BOTH, KNOWS)),
    "graph mean": of(pyg.GraphConv, aggr="mean"),
    "gin": partial(Relations, lambda width: pyg.GINConv(mlp(width), train_eps=True), relations=BOTH),
    "gine": partial(
        Relations, lambda width: pyg.GINEConv(mlp(width), edge_dim=3), relations=(WRITES,), attr=True
    ),
    "gat": of(pyg.GATConv, heads=2, concat=False, add_self_loops=False),
    "gat shared": partial(
        Relations, lambda width: pyg.GATConv(width, HIDDEN, add_self_loops=False), relations=BOTH
    ),
    "gat loops": one(pyg.GATConv, HIDDEN),
    "gatv2": of(pyg.GATv2Conv, heads=2, concat=False, add_self_loops=False, residual=True),
    "gatv2 edges": of(pyg.GATv2Conv, add_self_loops=False, **GATES),
    "gatv2 loops": one(pyg.GATv2Conv, HIDDEN, share_weights=True),
    "transformer": of(pyg.TransformerConv, beta=True),
    "transformer edges": of(pyg.TransformerConv, **GATES),
    "res gated": of(pyg.ResGatedGraphConv),
    "res gated edges": of(pyg.ResGatedGraphConv, **GATES),
    "gcn": one(pyg.GCNConv, HIDDEN),
    "agnn": one(pyg.AGNNConv),
}  # fmt: skip
QUICK = ("sage mean", "sage max", "gat shared", "gatv2 edges", "gcn")


def attributed(model, data):
    return model(data.x_dict, data.edge_index_dict, data.edge_attr_dict)


def some(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.sweep) for name in names]


@pytest.mark.parametrize("name", some(LAYERS))
def test_kernels_are_pygs_layers(name, monkeypatch):
    graph, data, model = users.built(users.Case(LAYERS[name], attributed))
    want = users.in_one_process(copy.deepcopy(model), data, attributed)
    monkeypatch.setattr(ChunkedCall, "__call__", lambda *_, **__: pytest.fail("PyG's own code ran"))
    for ranks in (1, 3):
        assert users.far_apart(users.over_ranks(model, graph, ranks, attributed, check=False), want) < 1e-12


def union(kind, **options):
    return partial(RGCN, conv=kind, **options)


UNION = {
    "rgcn": union(pyg.RGCNConv),
    "rgcn bases": union(pyg.RGCNConv, num_bases=3, root_weight=False),
    "rgcn blocks": union(pyg.RGCNConv, num_blocks=2, bias=False),
    "rgcn sum": union(pyg.RGCNConv, aggr="add"),
    "fast rgcn": union(pyg.FastRGCNConv, num_bases=2),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", UNION)
def test_relations_over_the_union(name, sparse, monkeypatch):
    case = users.Case(UNION[name], users.ONE, graph={"one_width": True, "sparse": sparse})
    graph, data, model = users.built(case)
    want = users.in_one_process(copy.deepcopy(model), data, case.call)
    monkeypatch.setattr(ChunkedCall, "__call__", lambda *_, **__: pytest.fail("PyG's own code ran"))
    for ranks in (1, 3):
        assert users.far_apart(users.over_ranks(model, graph, ranks, case.call, check=False), want) < 1e-12


# Live rows


def few(parts):
    """A graph with few edges and few training nodes, and the owner of each node."""
    rng = np.random.default_rng(3)
    sizes = {"author": 60, "paper": 90, "venue": 12}
    masks = {"train_mask": np.isin(np.arange(90), (3, 17, 41)), "val_mask": np.arange(90) % 7 == 1}
    masks["test_mask"] = ~(masks["train_mask"] | masks["val_mask"])
    nodes = {kind: {"x": rng.standard_normal((size, 4 + len(kind)))} for kind, size in sizes.items()}
    nodes["venue"] = {"num_nodes": 12}
    nodes["paper"] |= {"y": rng.integers(0, 4, 90), **masks}
    counts = {WRITES: 60, CITES: 40, KNOWS: 30, ("paper", "written_by", "author"): 50}
    counts |= {("venue", "publishes", "paper"): 40, ("paper", "appears", "venue"): 40}
    edges = {
        (a, name, b): {"edge_index": np.stack([rng.integers(0, sizes[a], count), rng.integers(0, sizes[b], count)])}
        for (a, name, b), count in counts.items()
    }
    edges[KNOWS]["edge_weight"] = rng.uniform(0.2, 2, 30)
    graph = fg.TypedGraph(nodes, edges, name="few").union
    return graph, Assignment(rng.integers(0, parts, graph.num_nodes).astype(np.int32), parts, "case", 0)


class Plain(nn.Module):
    """Two layers that a user wrote for one type, copied for each relation."""

    layer = partial(pyg.SAGEConv, (-1, -1))

    def __init__(self, out_channels):
        super().__init__()
        self.convs = nn.ModuleList(type(self).layer(width) for width in (8, 8, out_channels))

    def forward(self, x, edge_index):
        for number, conv in enumerate(self.convs):
            x = conv(x.relu() if number else x, edge_index)
        return x


class GATv2(Plain):
    layer = partial(pyg.GATv2Conv, (-1, -1), add_self_loops=False, dropout=0.3)


def sage(metadata, out_channels):
    return to_hetero(Plain(out_channels), metadata)


def gatv2(metadata, out_channels):
    return to_hetero(GATv2(out_channels), metadata, aggr="max")


class OverUnion(RGCN):
    """R-GCN over the nodes of all types."""

    def __init__(self, in_channels, out_channels, num_relations):
        super().__init__(in_channels, out_channels, num_relations, num_bases=2)


def hgt(metadata, out_channels):
    return HGT(8, out_channels, metadata)


class Mixed(nn.Module):
    """HeteroConv of layers with and without a kernel, and one layer of two relations twice."""

    def __init__(self, metadata, out_channels):
        super().__init__()
        self.lin = pyg.HeteroDictLinear(-1, 8, types=metadata[0])
        relations = {CITES: pyg.GCNConv(8, 8), KNOWS: pyg.GraphConv(8, 8)}
        self.first = HeteroConv(relations | {WRITES: pyg.GATConv((8, 8), 8, add_self_loops=False, dropout=0.2)})
        self.again = HeteroConv({WRITES: pyg.SAGEConv(8, 8), ("paper", "written_by", "author"): pyg.SAGEConv(8, 8)})
        self.head = nn.Linear(8, out_channels)

    def forward(self, x_dict, edge_index_dict, edge_weight_dict):
        x_dict = self.lin(x_dict)
        x_dict = x_dict | self.first(x_dict, edge_index_dict)
        for _ in range(2):
            x_dict = x_dict | self.again({kind: x.tanh() for kind, x in x_dict.items()}, edge_index_dict)
        return self.head(x_dict["paper"])


class InTurn(nn.Module):
    """A user's own dictionary of layers, each of which reads the output of the one before."""

    def __init__(self, out_channels):
        super().__init__()
        self.lin = pyg.HeteroDictLinear(-1, 8, types=["author", "paper", "venue"])
        names = [WRITES, ("paper", "written_by", "author"), CITES]
        self.convs = nn.ModuleDict({"__".join(name): pyg.SAGEConv((8, 8), 8) for name in names})
        self.head = nn.Linear(8, out_channels)

    def forward(self, x_dict, edge_index_dict):
        x_dict = self.lin(x_dict)
        for name in [("paper", "written_by", "author"), WRITES, CITES, WRITES]:
            pair = x_dict[name[0]], x_dict[name[2]]
            x_dict[name[2]] = self.convs["__".join(name)](pair, edge_index_dict[name]).tanh()
        return self.head(x_dict["paper"])


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("net", [sage, gatv2, Mixed, InTurn, hgt, OverUnion])
def test_live_rows_give_losses_and_gradients_of_all_rows(net, ranks):
    found = compare(net, ranks, graph=few)
    assert sum(rank["rows"][-1] for rank in found) <= 3 + 3 * ranks
    assert len(found[0]["rows"]) == {sage: 3, gatv2: 3, InTurn: 4}.get(net, len(found[0]["rows"]))


@pytest.mark.parametrize("wire", ["pipegcn", "varco-slow", "half", "none"])
def test_late_and_narrow_wires(wire):
    compare(sage, 3, WIRES[wire], graph=few)


def test_real_processes():
    compare(sage, 2, graph=few, run=run_processes)


def test_layers_compute_only_rows_that_the_loss_reads(monkeypatch):
    """The last layers compute training papers and a row of each other type, the ones before them what those read."""
    union = few(1)[0]
    starts = union.types.starts
    counted = near(union, 2, also=(starts[0], starts[2]))  # an author and a venue
    computed = []
    spread = LiveRelation.spread
    monkeypatch.setattr(LiveRelation, "spread", lambda part, out: computed.append(part) or spread(part, out))
    run_threads(1, partial(trace, graph=few, model=sage, strategy=EXACT))
    low, high = starts[1], starts[2]  # of papers
    last = [part for part in computed if part.relation == CITES][-3:]
    for part, hop in zip(last, (2, 1, 0), strict=True):
        rows = part.ends[1].picked.computed_t
        assert torch.equal(rows, torch.from_numpy(np.flatnonzero(counted[hop][low:high])))
