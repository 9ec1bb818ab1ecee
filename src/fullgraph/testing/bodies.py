"""Bodies that every transport runs: a few steps of training, traced."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgraph.data import Graph
from fullgraph.exchange import Wire
from fullgraph.nn import ModelSpec
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement import Partitioned
from fullgraph.report import Meter
from fullgraph.train.config import TrainConfig
from fullgraph.train.evaluate import evaluate, logits_of
from fullgraph.train.task import task_of
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Key, Transport

Trace = dict[str, Any]


def train_trace(
    transport: Transport,
    case: Callable[[int], tuple[Graph, Assignment]],
    spec: ModelSpec,
    steps: int = 5,
    wire: Wire | None = None,
    inductive: bool = False,
    precompute: bool = True,
    device: str = "cpu",
    lr: float = 0.05,
    narrow_first: bool = True,
    isolated: bool = False,
) -> Trace:
    """Losses, all weight gradients of every step, final logits by global id, and scores."""
    graph, assignment = case(transport.size)
    part = cut_parts(graph, assignment, transport.rank)
    placement = Partitioned(
        inductive=inductive,
        precompute=precompute,
        narrow_first=narrow_first,
        isolated=isolated,
        dtype=torch.float64,
        device=torch.device(device),
    )
    shard = placement.place(part, transport, wire or Wire(), spec.aggregation)
    model = spec.build(graph.num_features, graph.num_classes, seed=3, dtype=torch.float64).to(device)
    task = task_of(multilabel=graph.multilabel, classes=graph.num_classes)
    trainer = Trainer(model, shard, task, TrainConfig(epochs=steps, lr=lr), Meter())
    losses, grads = [], []
    trainer.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = None
        loss, _ = trainer.train_step()
        losses.append(transport.all_reduce(Key("trace", step), loss.cpu().clone()).wait())
        shard.clock.losses.append(float(losses[-1]))
        grads.append({name: p.grad.cpu().clone() for name, p in model.named_parameters() if p.grad is not None})
    return {
        "losses": torch.stack(losses),
        "grads": grads,
        "ids": shard.full.ids.cpu(),
        "logits": logits_of(model, shard).cpu(),
        "scores": evaluate(model, shard, task),
    }


def whole_logits(traces: list[Trace], num_nodes: int) -> Tensor:
    """Every node's logits in the graph's own order."""
    out = torch.full((num_nodes, traces[0]["logits"].shape[1]), float("nan"), dtype=torch.float64)
    for trace in traces:
        out[trace["ids"]] = trace["logits"]
    return out


def assert_same(traces: list[Trace], losses: Tensor, grads: list[dict[str, Tensor]], tolerance: float = 1e-10) -> None:
    """Every rank's losses and gradients of every step equal an oracle's, on whole tensors."""
    for trace in traces:
        torch.testing.assert_close(trace["losses"], losses, rtol=tolerance, atol=tolerance)
        for got, want in zip(trace["grads"], grads, strict=True):
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
