"""The outcome of each of the users' typed models: equal to one process of plain PyG, or refused with the fix."""

import copy
import inspect
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.axes import STRATEGIES
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement import Partitioned
from fullgraph.testing import run_threads
from tests.own_typed import typed_models

STEPS, RATE = 3, 0.05


def users_graph(featureless=False, one_width=False, sparse=False):
    """Directed relations, one of them empty, another one with weights; `venue` is on one rank alone.

    sparse: a fifth of the features is not zero.
    """
    rng = np.random.default_rng(5)
    sizes = {"author": 31, "paper": 44, "venue": 6}
    role = rng.integers(0, 3, sizes["paper"])
    masks = {f"{name}_mask": role == part for part, name in enumerate(("train", "val", "test"))}
    widths = {kind: 6 if one_width else 5 + len(kind) for kind in sizes}
    x = {kind: {"x": rng.standard_normal((size, widths[kind]))} for kind, size in sizes.items()}
    for one in x.values() if sparse else ():
        one["x"] *= np.random.default_rng(6).random(one["x"].shape) < 0.2
    if featureless:
        x["venue"] = {"num_nodes": sizes["venue"]}
    x["paper"] |= {"y": rng.integers(0, 4, sizes["paper"]), **masks}
    relations = {
        ("author", "writes", "paper"): 90, ("paper", "written_by", "author"): 90, ("paper", "cites", "paper"): 60,
        ("author", "knows", "author"): 40, ("venue", "publishes", "paper"): 44, ("paper", "appears", "venue"): 44,
        ("author", "never", "paper"): 0,
    }  # fmt: skip
    edges = {
        (a, name, b): {"edge_index": np.stack([rng.integers(0, sizes[a], count), rng.integers(0, sizes[b], count)])}
        for (a, name, b), count in relations.items()
    }
    edges["author", "knows", "author"]["edge_weight"] = rng.uniform(0.2, 2, 40)
    edges["author", "writes", "paper"]["edge_attr"] = rng.standard_normal((90, 3))
    edges["paper", "cites", "paper"]["edge_attr"] = rng.standard_normal((60, 2))
    return fg.TypedGraph(x, edges, name="users")


def users_data(graph):
    """The same graph as a `HeteroData` in float64."""
    data = graph.to_pyg()
    for kind, nodes in graph.nodes.items():
        if nodes.x is not None:
            data[kind].x = torch.tensor(nodes.x, dtype=torch.float64)
        data[kind].node_id = torch.arange(nodes.num_nodes)
    for relation, edges in graph.edges.items():
        for name in ("edge_weight", "edge_attr"):
            if getattr(edges, name) is not None:
                data[relation][name] = torch.tensor(getattr(edges, name)).double()
    return data


def part_of(graph, parts):
    """The owner of each node; every venue is on the last rank."""
    owner = np.random.default_rng(1).integers(0, parts, graph.num_nodes).astype(np.int32)
    for kind, low, high in graph.ranges():
        if kind == "venue":
            owner[low:high] = parts - 1
    return Assignment(owner, parts, "given", 0)


def shard_of(transport, graph):
    part = cut_parts(graph.union, part_of(graph, transport.size), transport.rank)
    return Partitioned(dtype=torch.float64).rows_alone(part, transport)


def by_dicts(model, data):
    return model(data.x_dict, data.edge_index_dict)


def by_union(*names):
    """A call over the nodes of all types, numbered as `to_homogeneous` does it."""

    def call(model, data):
        data = data.to_homogeneous(add_edge_type=True) if hasattr(data, "to_homogeneous") else data
        out = model(data.x, data.edge_index, *(getattr(data, name) for name in names))
        return out[data.node_type == 1]

    return call


def of_data(model, data):
    return model(data)


def weighted(model, data):
    return model(data.x_dict, data.edge_index_dict, data.edge_weight_dict)


def featured(model, data):
    return model(data.x_dict, data.edge_index_dict, data.edge_attr_dict)


def with_ids(model, data):
    ids = {kind: data[kind].node_id for kind in data.metadata()[0]}
    return model(data.x_dict, data.edge_index_dict, ids)


@dataclass(frozen=True)
class Case:
    """A model, and how a script calls it."""

    make: object  # the name of a function or class of typed_models.py, or another one
    call: object = by_dicts
    refused: str = ""
    draws: bool = False  # PyG draws other numbers: only ranks are compared with each other
    options: dict = field(default_factory=dict)
    graph: dict = field(default_factory=dict)
    label: str = ""

    @property
    def name(self):
        return self.label or self.make


def built(case):
    """The graph, its HeteroData, and the model in float64, with the arguments that a run passes."""
    graph = users_graph(**case.graph)
    data = users_data(graph)
    make = getattr(typed_models, case.make) if isinstance(case.make, str) else case.make
    by_type = "one_width" not in case.graph
    known = {
        "metadata": data.metadata(), "out_channels": 4, "num_relations": len(graph.edges), "num_node_types": 3,
        "num_edge_types": len(graph.edges), "hidden": 8,
        "num_nodes_dict": {kind: nodes.num_nodes for kind, nodes in graph.nodes.items()},
        "in_channels": {kind: nodes.num_features for kind, nodes in graph.nodes.items()} if by_type else 6,
    }  # fmt: skip
    taken = inspect.signature(make).parameters
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model = make(**{name: value for name, value in known.items() if name in taken}, **case.options)
        if not case.refused:
            with torch.no_grad():
                case.call(model, data)  # gives lazy layers their widths
    finally:
        torch.set_default_dtype(before)
    return graph, data, model


ONE, TWO = by_union("edge_type"), by_union("node_type", "edge_type")
UNION, BARE = {"one_width": True}, {"featureless": True}
KINDS = {  # what users write, and how each of them ends
    "`to_hetero` of SAGE, GAT (mean), GATv2 (max)": [Case("hetero_sage"), Case("hetero_gat"), Case("hetero_gatv2")],
    "`to_hetero_with_bases`": [Case("hetero_bases")],
    "`HeteroConv` of GCN, SAGE, GAT, GATv2 and GraphConv, batch norm": [Case("Mixed"), Case("ManyReaders")],
    "edge weights and edge features by relation": [Case("Weighted", weighted), Case("Featured", featured)],
    "`HGTConv`, `HANConv`": [Case("HGT"), Case("HAN"), Case("HANDropout", draws=True)],
    "`forward(data)` of a `HeteroData`": [Case("TakesData", of_data)],
    "your own layer per relation in an `nn.ModuleDict`": [Case("ByHand")],
    "`RGCNConv` (bases, blocks), `FastRGCNConv`, `RGATConv` with `edge_type`": [
        Case("RGCN", ONE, graph=UNION), Case("rgcn_bases", ONE, graph=UNION), Case("rgcn_blocks", ONE, graph=UNION),
        Case("fast_rgcn", ONE, graph=UNION), Case("rgat", ONE, graph=UNION),
    ],
    "`HEATConv`, `HeteroLinear` with `node_type`": [
        Case("HEAT", TWO, graph=UNION), Case("ByNodeType", TWO, graph=UNION)
    ],
    "`nn.Embedding` over the nodes of a type without features": [
        Case("OwnRows", graph=BARE), Case("OwnRows", with_ids, options={"read": "node_id"}, graph=BARE, label="by id"),
        Case("OwnRows", options={"read": "arange"}, graph=BARE, label="by arange"),
    ],
    "nodes of all types in one tensor, with offsets": [
        Case("Offsets", refused="typed_models.py:"),
    ],
    "edges chosen by their place": [Case("FirstEdges", refused="taken by their position")],
    "a model of one type": [Case("SAGE", refused="name the arguments x_dict and edge_index_dict")],
}  # fmt: skip
CASES = [case for cases in KINDS.values() for case in cases if not case.draws]
NAMED = {case.name: case for cases in KINDS.values() for case in cases}


def table():
    """The table of docs/typed.md."""
    lines = ["| what the model uses | over ranks |", "|---|---|"]
    for kind, cases in KINDS.items():
        lines.append(f"| {kind} | {'refused, with the line' if cases[0].refused else 'equal'} |")
    return "\n".join(lines) + "\n"


def logits_of(out, kind="paper"):
    return out[kind] if isinstance(out, dict) else out


def steps(model, data, call, optimizer, loss_of, sync=lambda: None):
    """Losses, and the logits of training and evaluation, over some steps."""
    seen = []
    for _ in range(STEPS):
        model.train()
        out = logits_of(call(model, data))
        loss = loss_of(out)
        optimizer.zero_grad()
        loss.backward()
        sync()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            seen.append((loss.detach(), out.detach(), logits_of(call(model, data))))
    return seen


def in_one_process(model, data, call):
    paper = data["paper"]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def loss_of(out):
        return F.cross_entropy(out[paper.train_mask], paper.y[paper.train_mask])

    found = steps(model, data, call, optimizer, loss_of)
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found, grads, model.state_dict()


def over_ranks(model, graph, ranks, call, strategy="vanilla", check=True, **options):
    def body(transport):
        shard = shard_of(transport, graph)
        own = fg.distribute(
            copy.deepcopy(model), shard, STRATEGIES.make(strategy), check=check, epochs=STEPS, **options
        )
        optimizer = torch.optim.SGD(own.parameters(), lr=RATE)
        paper = shard["paper"]

        def loss_of(out):
            rows = F.cross_entropy(out[paper.train_mask], paper.y[paper.train_mask], reduction="none")
            return fg.mean_loss(rows, shard)

        found = steps(own, shard, call, optimizer, loss_of, lambda: fg.sync_gradients(own))
        grads = own.tables.whole({n: p.grad for n, p in own.named_parameters() if p.grad is not None})
        return paper.node_id, found, grads, own.state_dict()

    seen = run_threads(ranks, body)
    total = []
    for step in range(STEPS):
        logits = []
        for place in (1, 2):
            rows = [(ids, found[step][place]) for ids, found, _, _ in seen]
            out = rows[0][1].new_empty(sum(len(ids) for ids, _ in rows), *rows[0][1].shape[1:])
            for ids, values in rows:
                out[ids] = values
            logits.append(out)
        total.append((sum(found[step][0] for _, found, _, _ in seen), *logits))
    return total, seen[0][2], seen[0][3]


def far_apart(one, other):
    """The largest difference of losses, logits, gradients and weights."""
    worst = 0.0
    for mine, theirs in zip(one[0], other[0], strict=True):
        for a, b in zip(mine, theirs, strict=True):
            worst = max(worst, float((a - b).abs().max()))
    for mine, theirs in zip(one[1:], other[1:], strict=True):
        assert mine.keys() == theirs.keys()
        for name, a in mine.items():
            if a.numel():
                worst = max(worst, float((a.double() - theirs[name].double()).abs().max()))
    return worst


def crossings(model, graph, call):
    """How often a rank of two sends rows with gradients in a step."""

    def body(transport):
        shard = shard_of(transport, graph)
        own = fg.distribute(copy.deepcopy(model), shard, check=False)
        logits_of(call(own.train(), shard)).sum().backward()
        fg.sync_gradients(own)
        return sum(not name.startswith("constant") for name in own.train_view._channels)

    return run_threads(2, body)[0]


if __name__ == "__main__":
    print(table())
