"""Typed convolutions equal those of PyG with the same weights."""

import pytest
import torch

from fullgraph import nn
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from tests.support import trainer_of
from tests.typed.oracle import CASES, SIZES, typed_graph

pyg = pytest.importorskip("torch_geometric.nn", reason="PyG is an extra")
WIDTH = 8


def hidden() -> torch.Tensor:
    """Rows of all nodes."""
    return torch.randn(sum(SIZES.values()), WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def ours(spec):
    """The first convolution of a model, and its output for all nodes on one rank."""

    def body(transport):
        trainer = trainer_of(transport, CASES["scattered"], spec, TrainConfig(dtype="float64", epochs=1))
        full, conv = trainer.shard.full, trainer.model.convs[0]
        trainer.shard.eval_clock.tick()
        with torch.no_grad():
            return conv, conv(hidden(), full.view, 0)

    ((conv, out),) = run_threads(1, body)
    return conv, out


def edges():
    """Edges of the union, and their relations."""
    union = typed_graph().union
    return torch.tensor(union.edge_index).long(), torch.tensor(union.fields.edges["edge_type"]).long()


def by_type(rows):
    return {kind: rows[low:high] for kind, low, high in typed_graph().ranges()}


@torch.no_grad()
@pytest.mark.parametrize("bases", [0, 3])
def test_rgcn(bases):
    conv, out = ours(nn.RGCN(hidden=WIDTH, bases=bases))
    theirs = pyg.RGCNConv(WIDTH, WIDTH, conv.shares.shape[0] if bases else len(conv.weight), bases or None).double()
    theirs.weight.copy_(conv.weight.transpose(1, 2))
    theirs.root.copy_(conv.lin.weight.T)
    theirs.bias.copy_(conv.lin.bias)
    if bases:
        theirs.comp.copy_(conv.shares)
    torch.testing.assert_close(out, theirs(hidden(), *edges()), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_rgcn_with_blocks():
    conv, out = ours(nn.RGCN(hidden=WIDTH, blocks=4))
    theirs = pyg.RGCNConv(WIDTH, WIDTH, len(conv.weight), num_blocks=4).double()
    theirs.weight.copy_(conv.weight.transpose(2, 3))
    theirs.root.copy_(conv.lin.weight.T)
    theirs.bias.copy_(conv.lin.bias)
    torch.testing.assert_close(out, theirs(hidden(), *edges()), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_hetero_sage():
    """HeteroConv of SAGEConv: the maps of the row itself, of all relations into a type, add up to ours."""
    conv, out = ours(nn.HeteroSAGE(hidden=WIDTH))
    x, graph = by_type(hidden()), typed_graph()
    layers = {name: pyg.SAGEConv((WIDTH, WIDTH), WIDTH).double() for name in graph.edges}
    for r, (relation, layer) in enumerate(layers.items()):
        layer.lin_l.weight.copy_(conv.weight[r])
        first = next(name for name in graph.edges if name[2] == relation[2]) == relation
        own = list(graph.nodes).index(relation[2])
        layer.lin_l.bias.copy_(conv.lin.bias[own] * first)
        layer.lin_r.weight.copy_(conv.lin.weight[own] * first)
    ends = {name: torch.tensor(own.edge_index).long() for name, own in graph.edges.items()}
    with pytest.warns(UserWarning, match="do not get updated"):  # nobody and venue: no relation ends there
        both = pyg.HeteroConv(layers, aggr="sum")
    wanted = both(x, ends)
    assert wanted.keys() == {"paper", "author", "topic"}
    for kind, rows in wanted.items():
        torch.testing.assert_close(by_type(out)[kind], rows, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_rgat():
    conv, out = ours(nn.RGAT(hidden=WIDTH, heads=2))
    x, graph = by_type(hidden()), typed_graph()
    wanted = {kind: x[kind] @ W.T + b for kind, W, b in zip(x, conv.lin.weight, conv.lin.bias, strict=True)}
    for r, ((source, _, target), own) in enumerate(graph.edges.items()):
        theirs = pyg.GATConv((WIDTH, WIDTH), WIDTH // 2, heads=2, add_self_loops=False, bias=False).double()
        for lin in (theirs.lin_src, theirs.lin_dst):
            lin.weight.copy_(conv.weight[r])
        theirs.att_src.copy_(conv.att_src[r])
        theirs.att_dst.copy_(conv.att_dst[r])
        ends = torch.tensor(own.edge_index).long()
        wanted[target] = wanted[target] + theirs((x[source], x[target]), ends)
    torch.testing.assert_close(out, torch.cat(list(wanted.values())), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_hgt():
    conv, out = ours(nn.HGT(hidden=WIDTH, heads=2))
    x, graph, heads = by_type(hidden()), typed_graph(), 2
    theirs = pyg.HGTConv(WIDTH, WIDTH, (list(graph.nodes), list(graph.edges)), heads=heads).double()
    for t, kind in enumerate(graph.nodes):
        of_kind, linears = theirs.kqv_lin.lins[kind], (conv.key, conv.query, conv.value)
        of_kind.weight.copy_(torch.cat([lin.weight[t] for lin in linears]))
        of_kind.bias.copy_(torch.cat([lin.bias[t] for lin in linears]))
        theirs.out_lin.lins[kind].weight.copy_(conv.out.weight[t])
        theirs.out_lin.lins[kind].bias.copy_(conv.out.bias[t])
        theirs.skip[kind].copy_(conv.gate[t])
    for r, relation in enumerate(graph.edges):
        theirs.p_rel["__".join(relation)].copy_(conv.prior[r])
        for h in range(heads):
            theirs.k_rel.weight[h * len(graph.edges) + r].copy_(conv.of_key[r, h].T)
            theirs.v_rel.weight[h * len(graph.edges) + r].copy_(conv.of_value[r, h].T)
    ends = {name: torch.tensor(own.edge_index).long() for name, own in graph.edges.items()}
    wanted = theirs(x, ends)
    for kind, rows in by_type(out).items():
        if len(rows) and wanted.get(kind) is not None:
            torch.testing.assert_close(rows, wanted[kind], rtol=1e-10, atol=1e-10)
    assert wanted["paper"] is not None
