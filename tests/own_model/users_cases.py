"""Users' models in one process of plain PyG and on ranks, as `fullgraph train` runs them."""

import copy

import numpy as np
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.copied import copied
from fullgraph.partition import cut_parts, partition
from fullgraph.placement import Partitioned
from fullgraph.testing import run_threads

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
    whole = spec.distributed(copied(model), shard, fg.recipes.vanilla(), epochs=9, seed=0)
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
