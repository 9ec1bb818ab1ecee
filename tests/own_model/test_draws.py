"""Functions of torch that draw: from uniform numbers k they give the distribution, shape and dtype that torch gives."""

import pytest
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.own_model.rows.draws import BITS, DRAWS, drawn, gumbel_softmax, middle

MANY = 200_000
CHANCES = torch.tensor([0.0, 0.2, 0.5, 0.0, 0.3])
CASES = [
    (torch.rand, (MANY,), {}),
    (torch.rand, (), {"size": (MANY, 1), "dtype": torch.float64}),
    (torch.randn, ((MANY, 2),), {}),
    (torch.randint, (7, (MANY,)), {}),
    (torch.randint, (-3, 4, (MANY,)), {"dtype": torch.float32}),
    (torch.randint, (), {"high": 5, "size": (MANY,)}),
    (torch.randperm, (MANY,), {}),
    (torch.rand_like, (torch.ones(MANY, dtype=torch.float64),), {}),
    (torch.randn_like, (torch.ones(MANY, dtype=torch.int32),), {"dtype": torch.float32}),
    (torch.normal, (2.0, 3.0), {"size": (MANY,)}),
    (torch.normal, (torch.full((MANY,), 2.0), 0.5), {}),
    (torch.normal, (torch.zeros(MANY), torch.full((MANY,), 2.0)), {}),
    (Tensor.uniform_, (torch.ones(MANY),), {}),
    (Tensor.uniform_, (torch.ones(MANY), -2.0, 5.0), {}),
    (Tensor.uniform_, (torch.ones(MANY),), {"from": 1.0, "to": 2.0}),
    (Tensor.normal_, (torch.ones(MANY), 1.0), {"std": 0.1}),
    (Tensor.bernoulli_, (torch.ones(MANY), 0.3), {}),
    (Tensor.bernoulli_, (torch.ones(MANY),), {"p": torch.full((MANY,), 0.9)}),
    (Tensor.exponential_, (torch.ones(MANY), 4.0), {}),
    (torch.bernoulli, (torch.full((MANY,), 0.25),), {}),
    (Tensor.bernoulli, (torch.full((MANY,), 0.75),), {}),
    (torch.multinomial, (CHANCES.repeat(MANY, 1), 1), {}),
    (Tensor.multinomial, (CHANCES, MANY), {"replacement": True}),
]


def numbers(x):
    return torch.randint(0, 2**BITS, x.shape)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}{len(case[1])}{[*case[2]]}")
def test_as_torchs(case):
    func, args, kwargs = case
    torch.manual_seed(2)
    want = func(*(x.clone() if isinstance(x, Tensor) else x for x in args), **kwargs)
    got = drawn(func, args, kwargs, torch.empty, numbers)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    a, b = (x.double().flatten().sort().values for x in (got, want))
    spread = 6 * float(b.std()) * (2 / MANY) ** 0.5
    assert abs(a.mean() - b.mean()) < spread + 1e-9
    classes = b.unique()
    if len(classes) <= 10:
        torch.testing.assert_close(*((one[:, None] == classes).double().mean(0) for one in (a, b)), rtol=0, atol=0.01)
        assert set(a.unique().tolist()) == set(classes.tolist())
    else:
        some = slice(MANY // 50, -MANY // 50, MANY // 100)  # quantiles
        torch.testing.assert_close(a[some], b[some], rtol=0.1, atol=20 * spread)


def test_every_function_is_tried():
    assert {func for func, _, _ in CASES} == set(DRAWS)


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax_as_torchs(hard):
    logits = torch.log(torch.tensor([0.1, 0.2, 0.7])).repeat(MANY, 1).requires_grad_()
    found = [function(logits, 0.7, hard=hard) for function in (gumbel_softmax, torch.nn.functional.gumbel_softmax)]
    torch.testing.assert_close(*(one.mean(0) for one in found), rtol=0.02, atol=0.005)
    grads = [torch.autograd.grad((one * torch.arange(3.0)).sum(), logits)[0].mean(0) for one in found]
    torch.testing.assert_close(*grads, rtol=0.05, atol=0.005)


def test_the_self_checks_numbers_are_the_same_everywhere():
    one, other = (drawn(torch.randn, (size, 2), {}, torch.empty, middle) for size in (3, 5))
    torch.testing.assert_close(one, other[:3])


@pytest.mark.parametrize("kwargs", [{"generator": torch.Generator()}, {"out": torch.ones(3)}])
def test_other_arguments_are_refused(kwargs):
    with pytest.raises(InputError, match="draw without a generator"):
        drawn(torch.rand, (3,), kwargs, torch.empty, numbers)
