"""Bodies that every transport runs: a few steps of training, traced."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Wire, Wires
from fullgraph.exchange.lateness import relative
from fullgraph.nn import ModelSpec
from fullgraph.partition import cut_parts
from fullgraph.placement import Partitioned, Placement
from fullgraph.recipes import Given, Strategy
from fullgraph.report import EpochRecord
from fullgraph.report.record import FIELDS
from fullgraph.run import Run, build_trainer
from fullgraph.testing import anew
from fullgraph.train.checkpoint import Scalars, restore_trainer, shared_tensors, state_of
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import Trainer, evaluate, logits_of
from fullgraph.transport import Key, OrderChecking, Transport
from fullgraph.values import read_value
from tests.support.cases import Case

Trace = dict[str, Any]
Saved = tuple[dict[str, Tensor], str]  # of a checkpoint: its tensors, and the rest as JSON
Epochs = tuple[list[float], list[Saved]]  # losses; checkpoints, the first from before the first epoch


def trainer_of(
    transport: Transport,
    case: Case,
    spec: ModelSpec,
    config: TrainConfig,
    wire: Wires | None = None,
    narrow_first: bool = True,
    isolated: bool = False,
    placement: Callable[..., Placement] = Partitioned,
    strategy: Strategy | None = None,
) -> Trainer:
    """Build a rank's trainer as a run does, without files; from a strategy, or from its parts.

    Layers compute all rows, unless the placement says otherwise.
    """
    if strategy is None:
        strategy = Given(
            wire=wire or Wire(), placement=placement(sends="mapped" if narrow_first else "input", isolated=isolated)
        )
    part = cut_parts(*case(transport.size), transport.rank)
    run = Run(model=spec, strategy=strategy, train=replace(config, all_rows=True))
    return build_trainer(run, part, transport)


def train_trace(
    transport: Transport,
    case: Case,
    spec: ModelSpec,
    steps: int = 5,
    wire: Wires | None = None,
    inductive: bool = False,
    precompute: bool = True,
    device: str = "cpu",
    lr: float = 0.05,
    narrow_first: bool = True,
    isolated: bool = False,
    placement: Callable[..., Placement] = Partitioned,
    strategy: Strategy | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Trace:
    """Losses, all weight gradients of every step, final logits by global id, scores, and the state of channels.

    options: further fields of TrainConfig.
    """
    config = TrainConfig(
        epochs=steps, lr=lr, seed=3, dtype="float64", device=device, inductive=inductive, precompute=precompute,
        **options,
    )  # fmt: skip
    trainer = trainer_of(transport, case, spec, config, wire, narrow_first, isolated, placement, strategy)
    model, shard = trainer.model, trainer.shard
    losses, grads = [], []
    trainer.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = None
        loss, _ = trainer.train_step()
        losses.append(transport.all_reduce(Key("trace", step), loss.cpu().clone()).wait())
        moved = torch.tensor(shard.clock.drift.take(), dtype=torch.float64)
        moved = transport.all_reduce(Key("trace of rows", step), moved).wait()
        shard.clock.note(float(losses[-1]), relative(*moved.tolist()))
        grads.append({name: p.grad.cpu().clone() for name, p in model.named_parameters() if p.grad is not None})
    return {
        "losses": torch.stack(losses),
        "grads": grads,
        "ids": shard.full.ids.cpu(),
        "logits": logits_of(model, shard).cpu(),
        "scores": evaluate(model, shard, trainer.task),
        "drifts": list(shard.clock.drifts),
        "state": {name: value.cpu().clone() for name, value in shard.state().items()},
    }


def saved_epochs(
    transport: Transport,
    case: Case,
    spec: ModelSpec,
    config: TrainConfig,
    wire: Wires | None = None,
    narrow_first: bool = True,
    isolated: bool = False,
    placement: Callable[..., Placement] = Partitioned,
    strategy: Strategy | None = None,
    start: Saved | None = None,
) -> Epochs:
    """Train to the end, from this rank's checkpoint if there is one: losses, and the checkpoints before and after."""
    trainer = trainer_of(transport, case, spec, config, wire, narrow_first, isolated, placement, strategy)
    keep = _filed if start is None else _copied
    if start is not None:
        tensors, scalars = start
        names = sorted(_copied(tensors).items(), reverse=True)  # a file keeps names, not their order
        restore_trainer(trainer, dict(names), read_value(Scalars, json.loads(scalars), "a checkpoint"))
    losses, saved = [], [_saved(trainer, keep)]

    def watch(trainer: Trainer, record: EpochRecord) -> None:
        losses.append(record.loss)
        if trainer.epoch % config.checkpoint_every == 0:
            saved.append(_saved(trainer, keep))

    trainer.fit([watch])
    return losses, saved


def resumed_epochs(transport: OrderChecking, *run: Any) -> list[Epochs]:
    """The whole run of saved_epochs, and runs resumed after each of its epochs but the last."""
    losses, saved = whole = anew(transport, saved_epochs, *run)
    starts = saved[: len(losses)]
    return [whole, *(anew(transport, partial(saved_epochs, start=start), *run) for start in starts)]


def _saved(trainer: Trainer, keep: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Saved:
    """Every tensor of the run's state, where tensors of one rank are named after it; and its numbers."""
    rank = trainer.shard.transport.rank
    of_rank = {f"rank{rank}.{name}": value for name, value in trainer.shard.state().items()}
    return keep(shared_tensors(trainer) | of_rank), json.dumps(asdict(state_of(trainer)))


def _filed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The contents of a checkpoint's file."""
    from safetensors.torch import load, save

    return load(save(tensors))


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A cheaper copy: a resumed run's tensors are compared, and never resumed from."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def differing(one: Saved, other: Saved) -> list[str]:
    """Names of tensors that differ between two checkpoints, except seconds and scores."""
    a, b = ({**tensors, **json.loads(scalars)} for tensors, scalars in (one, other))
    kept = [FIELDS.index(name) for name in ("epoch", "loss", "lr", "bytes", "grad_bytes")]
    a["history"], b["history"] = a["history"][:, kept], b["history"][:, kept]
    return [name for name in sorted(a.keys() | b.keys()) if not _same(a.get(name), b.get(name))]


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


def whole_logits(traces: list[Trace], num_nodes: int) -> Tensor:
    """Every node's logits in the graph's own order."""
    out = torch.full((num_nodes, traces[0]["logits"].shape[1]), float("nan"), dtype=torch.float64)
    for trace in traces:
        out[trace["ids"]] = trace["logits"]
    return out


def assert_same(traces: list[Trace], losses: Tensor, grads: list[dict[str, Tensor]], tolerance: float = 1e-10) -> None:
    """Assert that every rank's losses and gradients of every step equal an oracle's, on whole tensors."""
    for trace in traces:
        torch.testing.assert_close(trace["losses"], losses, rtol=tolerance, atol=tolerance)
        for got, want in zip(trace["grads"], grads, strict=True):
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
