"""The state of an optimizer, written and read again."""

import pytest
import torch
from torch import nn

from fullgraph.train.optimizer import load_state, state_tensors


def stepped(kind=torch.optim.Adam, dtype=torch.float32, shape=(3, 2)):
    weight = nn.Parameter(torch.ones(shape, dtype=dtype))
    optimizer = kind([weight])
    weight.sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.ASGD, torch.optim.Adagrad])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_comes_back_as_it_was(kind, dtype):
    optimizer, other = stepped(kind, dtype), stepped(kind, dtype)
    kept = {name: value.clone() for name, value in state_tensors(optimizer).items()}
    load_state(other, kept)
    other.step()
    optimizer.step()
    for name, value in state_tensors(optimizer).items():
        again = state_tensors(other)[name]
        assert again.dtype == value.dtype, name
        assert torch.equal(again, value), name


@pytest.mark.parametrize("shape", [(3, 2), (1,), ()])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_state_of_a_type_that_torch_never_keeps_is_refused(dtype, shape):
    optimizer = stepped(shape=shape)
    kept = state_tensors(optimizer)
    with pytest.raises(ValueError, match="never keeps"):
        load_state(optimizer, {**kept, "0.exp_avg": kept["0.exp_avg"].to(dtype)})
