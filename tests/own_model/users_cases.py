"""The outcome of each of the users' models: equal to one process of plain PyG, or refused with the fix.

`python -m tests.own_model.users_cases` prints the table of docs/own_models.md.
"""

import copy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.axes import MODELS
from fullgraph.partition import cut_parts, facts_of, partition
from fullgraph.placement import Partitioned
from fullgraph.testing import run_threads

FILE = Path(__file__).with_name("users_models.py")
NODES, ARCS, STEPS, RATE = 70, 400, 3, 0.05


def users_graph():
    """A directed graph with duplicates and self loops, weights and features of edges, and fields of both kinds."""
    rng = np.random.default_rng(3)
    edges = rng.integers(0, NODES, (2, ARCS))
    role = rng.integers(0, 3, NODES)
    fields = {
        "pe": rng.standard_normal((NODES, 2)),
        "node_kind": rng.integers(0, 4, NODES),
        "etype": rng.integers(0, 5, ARCS),
    }
    return fg.Graph(
        edges, rng.standard_normal((NODES, 6)), rng.integers(0, 4, NODES), tuple(role == part for part in range(3)),
        edge_weight=rng.uniform(0.2, 2, ARCS), edge_attr=rng.standard_normal((ARCS, 3)), fields=fields,
    )  # fmt: skip


def users_data(graph):
    """The same graph as a `Data` in float64, with additions that a script makes."""
    data = graph.to_pyg()
    data.x, data.y = torch.from_numpy(graph.x.copy()), data.y.long()
    data.node_id = torch.arange(data.num_nodes)
    return data


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
        return MODELS.make(f"{FILE}:{self.name}", **self.options)

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
        Case("MaskedByCount", with_labels, refused="torch.rand(x.size(0)), which draws by node"),
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
}  # fmt: skip
CASES = [case for cases in KINDS.values() for case in cases]


def trained(model, run, steps=STEPS):
    """Losses, outputs and gradients of gradient descent; `run` gives (loss, logits, gradients by name)."""
    seen = {"losses": [], "outputs": [], "grads": []}
    for _ in range(steps):
        loss, logits, grads = run(model)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in grads:
                    weight.sub_(RATE * grads[name])
        seen["losses"].append(loss.detach())
        seen["outputs"].append(logits.detach())
        seen["grads"].append(grads)
    return seen


def in_one_process(case, graph):
    """Plain PyG on all rows."""
    data = users_data(graph)

    def run(model):
        model.train()
        model.zero_grad()
        logits = case.logits(case.call(model, data))
        loss = F.cross_entropy(logits[data.train_mask], data.y[data.train_mask])
        loss.backward()
        return loss, logits, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    model = case.built(graph)
    seen = trained(model, run)
    seen["state"] = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        seen["outputs"].append(case.logits(case.call(model.eval(), data)))
    return seen


def on_rank(transport, case, graph, model):
    """The same over simulated ranks, as `fullgraph train` runs it."""
    part = cut_parts(graph, partition(graph, transport.size, method="random", seed=0), transport.rank)
    shard = Partitioned(dtype=torch.float64, precompute=False).place(part, transport, fg.Wire(), "sum")
    spec = case.spec()
    whole = spec.distributed(copy.deepcopy(model), shard, fg.recipes.vanilla(), epochs=9, seed=0)
    shard = whole.shard

    def run(model):
        model.train()
        model.zero_grad()
        shard.clock.tick()
        logits = model(shard.train.x, shard.train)
        rows = shard.train_mask
        loss = fg.mean_loss(F.cross_entropy(logits[rows], shard.y[rows], reduction="none"), shard)
        loss.backward()
        model._grad_sync(model.parameters(), shard.clock.step)
        grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return loss, fg.gather_rows(logits, shard), grads

    seen = trained(whole, run)
    seen["grads"] = [whole.tables.whole(grads) for grads in seen["grads"]]
    seen["state"] = whole.state_dict()
    with torch.no_grad():
        whole.eval()
        shard.eval_clock.tick()
        seen["outputs"].append(fg.gather_rows(whole(shard.full.x, shard.full), shard))
    return seen


def over_ranks(case, graph, ranks):
    model = case.built(graph)  # draws from a generator that all threads share
    seen = run_threads(ranks, lambda transport: on_rank(transport, case, graph, model))
    return seen[0] | {"losses": [sum(losses) for losses in zip(*(one["losses"] for one in seen), strict=True)]}


def far_apart(got, want):
    """The largest difference of losses, outputs and gradients."""
    found = []
    for name in ("losses", "outputs"):
        found += [float((a - b).abs().max()) for a, b in zip(got[name], want[name], strict=True)]
    assert got["state"].keys() == want["state"].keys()
    found += [float((a - want["state"][name]).abs().max()) for name, a in got["state"].items() if a.numel()]
    for a, b in zip(got["grads"], want["grads"], strict=True):
        for name in a.keys() | b.keys():
            zero = torch.zeros_like(a[name] if name in a else b[name])
            found.append(float((a.get(name, zero) - b.get(name, zero)).abs().max()))
    return max(found)


def table():
    """The table of docs/own_models.md; `test_users_models.py` tries every line of it."""
    lines = ["| what you write | tried as | on many ranks |", "|---|---|---|"]
    for kind, cases in KINDS.items():
        found = {f'refused: "{case.refused}"' if case.refused else "equal" for case in cases}
        lines.append(f"| {kind} | {', '.join(case.name for case in cases)} | {'; '.join(sorted(found))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
