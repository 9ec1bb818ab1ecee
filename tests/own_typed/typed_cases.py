"""The outcome of each of the users' typed models: equal to one process of plain PyG, or refused with the fix."""

import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.axes import STRATEGIES
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement import Partitioned
from fullgraph.testing import run_threads

STEPS, RATE = 3, 0.05


def users_graph(featureless=False, one_width=False):
    """Directed relations, one of them empty, another one with weights; `venue` is on one rank alone."""
    rng = np.random.default_rng(5)
    sizes = {"author": 31, "paper": 44, "venue": 6}
    role = rng.integers(0, 3, sizes["paper"])
    masks = {f"{name}_mask": role == part for part, name in enumerate(("train", "val", "test"))}
    widths = {kind: 6 if one_width else 5 + len(kind) for kind in sizes}
    x = {kind: {"x": rng.standard_normal((size, widths[kind]))} for kind, size in sizes.items()}
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


@dataclass(frozen=True)
class Case:
    """A model, and how a script calls it."""

    make: object
    call: object = by_dicts
    refused: str = ""
    options: dict = field(default_factory=dict)

    @property
    def name(self):
        return self.make.__name__


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


def over_ranks(model, graph, ranks, call, strategy="vanilla", check=True):
    def body(transport):
        shard = shard_of(transport, graph)
        own = fg.distribute(copy.deepcopy(model), shard, STRATEGIES.make(strategy), check=check, epochs=STEPS)
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
