"""bf16: rows and wires of half the bytes, float32 weights; an equally good model, bit-identical resume."""

from dataclasses import replace

import pytest
import torch

from fullgraph import nn
from fullgraph.errors import InputError
from fullgraph.recipes import STRATEGIES
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from tests.support import CASES, differing, resumed_epochs, trainer_of

CONFIG = TrainConfig(epochs=4, eval_every=2, checkpoint_every=1, lr=0.01)
SPECS = [
    nn.GraphSAGE(layers=3, hidden=16, norm="layer"),
    nn.GCN(layers=3, hidden=16, norm="batch"),
    nn.GIN(layers=2, hidden=16),
    nn.GAT(layers=2, hidden=16),
    nn.GCNII(layers=3, hidden=16),
    nn.ResGCN(layers=3, hidden=16),
]


def losses(transport, spec, precision, case="directed", strategy="vanilla"):
    config = replace(CONFIG, precision=precision, epochs=30)
    trainer = trainer_of(transport, CASES[case], spec, config, strategy=STRATEGIES.make(strategy))
    trainer.fit([])
    assert {p.dtype for p in trainer.weights.masters} == {torch.float32}
    assert {p.dtype for p in trainer.model.parameters()} == {torch.bfloat16 if precision == "bf16" else torch.float32}
    return [record.loss for record in trainer.records], trainer.records[-1].bytes


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("case", ["directed", "sparse", "multilabel"])
def test_a_model_learns_as_much_in_half_the_bytes(spec, case):
    (full, _), (half, _) = (run_threads(1, losses, spec, precision, case)[0] for precision in ("fp32", "bf16"))
    assert half[0] == pytest.approx(full[0], rel=0.02)
    assert half[-1] == pytest.approx(full[-1], rel=0.15)
    assert half[-1] < half[0]


@pytest.mark.parametrize("strategy", ["vanilla", "pipegcn", "sylvie-a", "varco"])
def test_wires_are_half_as_wide(strategy):
    (full, many), (half, few) = (
        run_threads(2, losses, SPECS[0], precision, "undirected", strategy)[0] for precision in ("fp32", "bf16")
    )
    assert half[-1] == pytest.approx(full[-1], rel=0.2)
    assert few == many if strategy == "sylvie-a" else 2 * few == many  # low bits are as few for any type


@pytest.mark.parametrize("strategy", ["vanilla", "pipegcn", "gnnpipe"])
def test_it_resumes_to_the_bit(strategy):
    recipe = STRATEGIES.make(strategy, **({"cut": "2"} if strategy == "gnnpipe" else {}))
    config = replace(CONFIG, precision="bf16")
    run = (CASES["directed"], nn.GraphSAGE(layers=3, hidden=8), config, None, True, False, None, recipe)
    for (whole, saved), *again in run_threads(2, resumed_epochs, *run):
        for start, (rest, later) in enumerate(again):
            assert rest == whole[start:]
            assert differing(saved[-1], later[-1]) == []


def test_other_types_are_refused():
    with pytest.raises(InputError, match="precision bf16 is for float32"):
        TrainConfig(precision="bf16", dtype="float64")
    with pytest.raises(InputError, match="one of fp32, tf32, bf16"):
        TrainConfig(precision="fp8")
