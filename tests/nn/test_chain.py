"""A model is a chain of blocks: the properties that a pipeline needs."""

import copy
from itertools import chain

import pytest
import torch

from fullgraph import nn
from fullgraph.train.config import TrainConfig
from fullgraph.transport import SingleRank
from tests.support import CASES, trainer_of

SPECS = {
    "gcn": nn.GCN(layers=4, hidden=8, norm="layer", linear_layers=2, residual=True),
    "sage": nn.GraphSAGE(layers=3, hidden=8, norm="batch"),
    "gcnii": nn.GCNII(layers=3, hidden=8, norm="layer"),
    "resgcn": nn.ResGCN(layers=3, hidden=8),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_blocks_share_out_the_weights(spec):
    """Each weight has one name and one block, in a copy too."""
    for model in (built := spec.build(5, 3), copy.deepcopy(built)):
        owned = list(chain.from_iterable(block.parameters() for block in model.blocks))
        assert len(owned) == len(set(owned))
        assert set(owned) == set(model.parameters())
        assert not any("block" in name for name in model.state_dict())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_chain_may_be_cut_anywhere(spec):
    """Only the state passes from one stage to the next; dropout follows the model's mode."""
    trainer = trainer_of(SingleRank(), CASES["sparse"], spec, TrainConfig(dtype="float64"))
    model, x, view = trainer.model, trainer.shard.full.x, trainer.shard.full.view

    def staged(cut):
        state = (x,)
        for block in model.blocks[:cut]:
            state = block(state, view)
        state = tuple(rows if rows is x else rows.detach().clone() for rows in state)
        for block in model.blocks[cut:]:
            state = block(state, view)
        return state[0]

    cuts = range(len(model.blocks) + 1)
    trained, scored = ([model.train(mode)(x, view), *map(staged, cuts)] for mode in (True, False))
    for whole, *halves in (trained, scored):
        assert all(torch.equal(whole, logits) for logits in halves)
    assert not torch.equal(trained[0], scored[0])
