"""Weights follow from the seed alone."""

import torch

from fullgraph import nn


def test_weights_do_not_depend_on_torchs_default_type():
    spec = nn.GraphSAGE(layers=2, hidden=4)
    once = spec.build(3, 2, seed=1, dtype=torch.float64).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        again = spec.build(3, 2, seed=1, dtype=torch.float64).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(value, again[name]) for name, value in once.items())
