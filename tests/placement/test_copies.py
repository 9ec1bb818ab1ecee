"""Rows that several ranks hold: gradients, losses and scores count each of them once.

The placement here is outside the package, as a 1.5D grid would be: it names the ranks that hold every row once, and no
other code has to know them.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fullgraph import nn
from fullgraph.exchange import Wires
from fullgraph.partition import Assignment, Part, cut_parts
from fullgraph.placement import Partitioned, Shard
from fullgraph.recipes.base import Given
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Mesh, SubTransport, Transport
from tests.support import random_graph

COPIES, PARTS, NODES = 2, 3, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied(Partitioned):
    """Every row on `COPIES` ranks, all of which compute it."""

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        mesh = Mesh(copy=COPIES, row=transport.size // COPIES)
        owners = SubTransport(transport, mesh.along("row", transport.rank))
        return replace(Partitioned.place(self, part, owners, wire, aggregation), transport=transport)


def trained(transport: Transport, placement: Partitioned, spec: nn.ModelSpec) -> tuple[list[float], list[float], dict]:
    """Losses, validation scores and weights of five epochs."""
    graph = random_graph(nodes=NODES, arcs=200)
    assignment = Assignment(part=torch.arange(NODES).remainder(PARTS).int().numpy(), parts=PARTS, method="", seed=0)
    run = Run(model=spec, strategy=Given(placement=placement), train=TrainConfig(epochs=5, dtype="float64", lr=0.05))
    trainer = build_trainer(run, cut_parts(graph, assignment, transport.rank % PARTS), transport)
    trainer.fit([])
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return [record.loss for record in trainer.records], [record.val for record in trainer.records], weights


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_copies_of_rows_count_once(norm: str) -> None:
    spec = nn.GraphSAGE(layers=2, hidden=8, dropout=0.3, input_dropout=True, norm=norm)
    once = run_threads(PARTS, trained, Partitioned(), spec)[0]
    for losses, scores, weights in run_threads(COPIES * PARTS, trained, Copied(), spec):
        assert losses == pytest.approx(once[0], abs=1e-12)
        assert scores == once[1]
        assert all(_same(weights[name], value) for name, value in once[2].items())


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-12)
