"""Numbers of rows in a user's model count the rows of all ranks; slices, hooks and late functions are seen."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.testing import run_threads

pytest.importorskip("torch_geometric", reason="PyG is an extra")

from torch_geometric import utils

from tests.own_model.mixing import HIDDEN, Base, between
from tests.own_model.test_mixing import in_one_process, made, on_ranks

COUNTS = {
    "integer division": lambda h, x, e: h * (1 + len(x) // 30),
    "a branch": lambda h, x, e: h * 2 if len(x) > 30 else h,
    "a loop": lambda h, x, e: h * 0.9 ** len([1 for _ in range(len(x) // 20)]),
    "in a tensor": lambda h, x, e: h * torch.tensor([len(x), 1.0]).log().sum(),
    "in full": lambda h, x, e: h / torch.full((1,), float(len(x))),
    "times a float": lambda h, x, e: h * len(x) * 0.003,
    "a power": lambda h, x, e: h * len(x) ** (1 / 3) + h * math.sqrt(x.size(0)),
    "of edges": lambda h, x, e: h * (e.size(1) / len(x)) + h * len(e[0]) * 0.0007,
    "to numpy": lambda h, x, e: h * np.log(x.shape[0]) * np.sqrt(len(x)),
    "bits": lambda h, x, e: h * (x.size(0) >> 2) + (x.size(0) & 7),
    "entries of rows": lambda h, x, e: h.view(h.numel() // HIDDEN, HIDDEN) * (h.numel() // 7),
    "a range": lambda h, x, e: h * len(range(x.size(0))) / 100,
    "a text": lambda h, x, e: h * float(f"{x.size(0)}") / 100 + h * float(str(x.size(0))) / 100,
    "equal to a constant": lambda h, x, e: h * (x.size(0) == 40) - (x.size(0) == 20) * h - (len(x) == 14) * h,
    "chosen rows": lambda h, x, e: h * len((x[:, 0] > 0).nonzero()) / 40 + len(h[x[:, 0] > 0]) / 40,
    "a branch that one rank alone would take": lambda h, x, e: rows_of_the_largest(h, x),
    "sizes": lambda h, x, e: h + torch.zeros(len(x), HIDDEN, dtype=h.dtype) + h.new_ones(x.size(0), 1),
    "a size of degrees": lambda h, x, e: h * utils.degree(e[1], len(x)).to(h.dtype)[:, None] / 5,
    "columns cut": lambda h, x, e: torch.cat([h[:, :3], h[: len(x), 3:], h[0:][:, :0], h[...][:, None, 1:3][:, 0]], 1)[
        :, :8
    ],
}


def rows_of_the_largest(h, x):
    index = (x[:, 0] == x[:, 0].max()).nonzero().flatten()
    return h - h[index].mean(0) if len(index) > 0 else h


@pytest.mark.parametrize("name", COUNTS)
def test_a_number_of_rows_is_that_of_all_ranks(name):
    model = made(between(lambda self, h, x, e: COUNTS[name](h, x, e)))
    _, logits, _ = in_one_process(model)
    for ranks in (1, 3):
        _, rows, _ = run_threads(ranks, on_ranks, model)[0]
        torch.testing.assert_close(rows, logits, rtol=1e-6, atol=1e-6)


SLICES = {
    "rows and all columns": lambda h, x, e: h - h[:500, :].mean(0),
    "rows of one column": lambda h, x, e: h - h[:500, 0].mean(),
    "with an ellipsis": lambda h, x, e: h - h[:500, ...].mean(0),
    "behind a new dimension": lambda h, x, e: h - h[None][:, :500].mean((0, 1)),
    "from behind": lambda h, x, e: h[-500:],
    "edges": lambda h, x, e: h + h[e[:, :5000][1]].mean(0),
    "as many as edges": lambda h, x, e: h[: e.size(1)],
    "written": lambda h, x, e: written(h, slice(500)),
    "columns of rows written": lambda h, x, e: written(h, (slice(500), slice(1, 3))),
}


def written(h, key):
    h = h.clone()
    h[key] = 0.5
    return h


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_that_is_longer_than_the_rows_is_seen(name):
    model = made(between(lambda self, h, x, e: SLICES[name](h, x, e)))
    with pytest.raises(fg.InputError, match="are taken by their position"):
        run_threads(3, on_ranks, model)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0)


def late(change):
    return between(lambda self, h, x, e: change(h) if self.calls > 2 else h)


def hooked(h):
    if h.requires_grad:
        h.register_hook(lambda grad: grad - grad.mean(0))
    return h


class HookedWeight(Base):
    def made(self):
        self.first.lin_l.weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))


class ClippedWeight(Base):
    def made(self):
        self.scale = nn.Parameter(torch.ones(1))
        self.scale.register_post_accumulate_grad_hook(lambda p: p.grad.clamp_(-1e-3, 1e-3))


UNSEEN = {
    "a late function": (late(Halved.apply), "the autograd function Halved begins in a later step"),
    "a late function in the place of a call": (
        between(lambda self, h, x, e: Halved.apply(h) if self.calls > 3 else h.view_as(h)),
        "the autograd function Halved begins in a later step",
    ),
    "a late function before a layer of PyG's": (
        between(lambda self, h, x, e: Halved.apply(h) if self.calls > 3 else h),
        "the autograd function Halved begins in a later step",
    ),
    "a late hook": (late(hooked), r"test_counts.py:\d+: a hook of a tensor mixes gradients of different rows"),
    "an int": (between(lambda self, h, x, e: h * int(x.size(0)) * 0.003), "a plain number of the rows of one rank"),
    "the largest position": (between(lambda self, h, x, e: h * (e.max() + 1)), "largest position on one rank"),
    "bytes": (between(lambda self, h, x, e: h * h.nbytes), "counts the rows of one rank"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_the_self_check_cannot_see_is_refused(name):
    kind, text = UNSEEN[name]
    with pytest.raises(fg.InputError, match=text):
        run_threads(3, on_ranks, made(kind))


@pytest.mark.parametrize("kind", [HookedWeight, ClippedWeight])
def test_hooks_of_weights_are_refused(kind):
    from tests.own_model.nets import case_graph, shard_of

    def body(transport):
        torch.manual_seed(3)
        fg.distribute(kind(), shard_of(transport, case_graph()))

    with pytest.raises(
        fg.InputError, match=r"the hook of the weight .*: a hook of a weight would see one rank's share"
    ):
        run_threads(2, body)


ACTIVATIONS = [
    "relu",
    "relu6",
    "elu",
    "selu",
    "celu",
    "gelu",
    "silu",
    "mish",
    "leaky_relu",
    "softplus",
    "softsign",
    "tanhshrink",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "hardshrink",
    "softshrink",
    "logsigmoid",
    "sigmoid",
    "tanh",
    "glu",
]


def activated(self, h, x, e):
    """All of them in turn, so that no version of torch has one that is not known to work row by row."""
    for name in ACTIVATIONS:
        h = h + 0.1 * getattr(F, name)(torch.cat([h, h], 1) if name == "glu" else h)
    return F.prelu(h, torch.linspace(0, 1, HIDDEN, dtype=h.dtype))


def test_activations_are_row_by_row():
    model = made(between(activated))
    _, logits, _ = in_one_process(model)
    torch.testing.assert_close(run_threads(3, on_ranks, model)[0][1], logits, rtol=1e-9, atol=1e-9)
