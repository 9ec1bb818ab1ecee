"""Blocks that run forward twice: bit-identical losses, gradients and channels, the same messages, less memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fullgraph import nn
from fullgraph.codec import LowBit, Subsample
from fullgraph.errors import InputError
from fullgraph.exchange import Bounded, Pipelined, Smooth, Wire
from fullgraph.placement import Mixture, Partitioned, Placement
from fullgraph.preparing import check_placement
from fullgraph.run import Run
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import SingleRank, Transport
from tests.support import CASES, trainer_of

SPECS = {
    "gcn": nn.GCN(layers=4, hidden=16, dropout=0.5, input_dropout=True, norm="layer", linear_layers=1, residual=True),
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True, norm="batch"),
    "gin": nn.GIN(layers=3, hidden=16, dropout=0.3, input_dropout=True, norm="batch", residual=True),
    "gat": nn.GAT(layers=3, hidden=16, heads=2, dropout=0.5, input_dropout=True),
    "gcnii": nn.GCNII(layers=3, hidden=8, dropout=0.3, norm="batch"),
    "resgcn": nn.ResGCN(layers=3, hidden=8, dropout=0.3),
}
WIRES = {
    "fresh": Wire(),
    "late": Wire(schedule=Pipelined(), smooth=Smooth(features=True, gradients=True)),
    "late, 2 bits": Wire(schedule=Pipelined(), codec=LowBit(2)),
    "bounded, corrected": Wire(schedule=Bounded(refresh=2), codec=Subsample(4), feedback=True),
}
PLACEMENTS: dict[str, Callable[..., Placement]] = {"partitioned": Partitioned, "mixture": partial(Mixture, blocks=2)}


def steps(
    transport: Transport,
    spec: nn.ModelSpec,
    wire: Wire,
    placement: Callable[..., Placement],
    twice: bool,
    **options: Any,
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Losses and gradients of four steps; then weights, running statistics and the state of channels."""
    config = TrainConfig(lr=0.05, seed=3, dtype="float64", checkpoint_layers=twice, **options)
    trainer = trainer_of(transport, CASES["directed"], spec, config, wire, placement=placement)
    found: list[Tensor] = []
    trainer.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    for _ in range(4):
        for parameter in trainer.model.parameters():
            parameter.grad = None
        loss, tally = trainer.train_step()
        trainer.shard.clock.losses.append(float(loss))
        found += [loss.cpu(), torch.tensor(tally.halo_bytes)]
        found += [p.grad.cpu().clone() for p in trainer.model.parameters() if p.grad is not None]
    state = {**trainer.model.state_dict(), **trainer.shard.state()}
    return found, {name: value.cpu().clone() for name, value in state.items()}


def assert_same_bits(once: list[Any], again: list[Any]) -> None:
    for (found, state), (other, other_state) in zip(once, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, other, strict=True))
        assert state.keys() == other_state.keys()
        assert [name for name in state if not torch.equal(state[name], other_state[name])] == []


@pytest.mark.sweep
@pytest.mark.parametrize(("placement", "ranks"), [("partitioned", 1), ("partitioned", 3), ("mixture", 2)])
@pytest.mark.parametrize("model", SPECS)
def test_every_model(model: str, placement: str, ranks: int) -> None:
    run = (ranks, steps, SPECS[model], Wire(), PLACEMENTS[placement])
    assert_same_bits(run_threads(*run, False), run_threads(*run, True))


@pytest.mark.sweep
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_every_wire(model: str, wire: str, placement: str) -> None:
    run = (3, steps, SPECS[model], WIRES[wire], PLACEMENTS[placement])
    assert_same_bits(run_threads(*run, False), run_threads(*run, True))


@pytest.mark.gpu
@pytest.mark.parametrize("model", SPECS)
def test_gpu_has_the_same_bits(model: str) -> None:
    run = (SPECS[model], Wire(), Partitioned)
    assert_same_bits(
        [steps(SingleRank(), *run, False, device="cuda")], [steps(SingleRank(), *run, True, device="cuda")]
    )


def kept(spec: nn.ModelSpec, twice: bool) -> int:
    """How many numbers a forward pass keeps for the backward pass, without its input, weights and result."""
    config = TrainConfig(dtype="float64", checkpoint_layers=twice)
    trainer = trainer_of(SingleRank(), CASES["undirected"], spec, config)
    rows, saved = trainer.shard.train, {}
    trainer.shard.clock.tick()

    def keep(t: Tensor) -> Tensor:
        saved[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        logits = trainer.model.train()(rows.x, rows.view)
    assert logits.requires_grad
    for t in (rows.x, rows.view.known.aggregated, logits, *trainer.model.parameters()):
        saved.pop(t.untyped_storage().data_ptr(), None)
    return sum(t.numel() for t in saved.values() if t.is_floating_point())


def test_less_is_kept() -> None:
    """Of 5 hidden layers, only the inner rows of the last block are kept."""
    spec = nn.GraphSAGE(layers=6, hidden=16, dropout=0.5, input_dropout=True, norm="layer")
    assert kept(spec, True) * 4 < kept(spec, False)


def test_a_pipeline_refuses() -> None:
    config = Run(parts=2, model=SPECS["gcn"], strategy="gnnpipe", train=TrainConfig(checkpoint_layers=True))
    with pytest.raises(InputError, match="checkpoint-layers"):
        check_placement(config)
