"""Subsample: the same columns on both ends and in both directions, new every step; tables of the rate schedules."""

import pytest
import torch

from fullgraph.codec import Constant, Exponential, Full, Linear, Step, Subsample
from fullgraph.errors import InputError
from fullgraph.testing import assert_size_law
from fullgraph.transport import Key

KEY = Key("halo/layer1", 4)
BACK = Key("halo/layer1", 4, "backward")


@pytest.mark.parametrize("rate", [1, 1.5, 2, 7, 128, Linear(steps=10)])
@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (3, 1), (17, 33), (4, 2, 3)])
@pytest.mark.parametrize("rescale", [False, True])
def test_both_ends_know_the_size(rate, shape, rescale):
    assert_size_law(Subsample(rate, rescale), torch.randn(shape), KEY)


@pytest.mark.parametrize(
    ("width", "rate", "kept"), [(256, 128, 2), (256, 3, 85), (100, 128, 1), (7, 1, 7), (7, 1.01, 6)]
)
def test_keeps_the_share_that_the_rate_says(width, rate, kept):
    x = torch.randn(5, width)
    assert Subsample(rate).nbytes((5, width), x.dtype, KEY) == 5 * kept * 4
    y = assert_size_law(Subsample(rate), x, KEY)
    columns = Subsample(rate).columns(width, KEY)
    assert columns.unique().numel() == kept
    elsewhere = torch.ones(width, dtype=torch.bool).index_fill(0, columns, False)
    assert torch.equal(y[:, columns], x[:, columns])
    assert not y[:, elsewhere].any()


def test_rescaling_multiplies_what_is_kept():
    x = torch.randn(5, 12)
    assert torch.allclose(
        assert_size_law(Subsample(4, rescale=True), x, KEY), assert_size_law(Subsample(4), x, KEY) * 4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rate_one_is_full(dtype):
    x = torch.randn(9, 4, 3, dtype=dtype)
    wire = Subsample(1, rescale=True).encode(x, KEY)
    assert torch.equal(wire, Full().encode(x, KEY))
    assert torch.equal(Subsample(1, rescale=True).decode(wire, (9, 4, 3), dtype, KEY), x)


@pytest.mark.parametrize("rescale", [False, True])
def test_the_backward_pass_is_the_transpose(rescale):
    """<C x, y> = <x, C y> with C of the forward key on the left and of the backward key on the right."""
    codec = Subsample(3, rescale)
    x, y = torch.randn(2, 6, 20, dtype=torch.float64)
    assert torch.equal(codec.columns(20, KEY), codec.columns(20, BACK))
    left = (assert_size_law(codec, x, KEY) * y).sum()
    assert torch.allclose(left, (x * assert_size_law(codec, y, BACK)).sum())


def test_columns_are_new_every_step_and_channel_and_the_same_in_a_rerun():
    codec = Subsample(8)
    steps = [tuple(codec.columns(256, Key("halo/layer1", t)).tolist()) for t in range(50)]
    assert len(set(steps)) == 50
    assert steps == [tuple(Subsample(8).columns(256, Key("halo/layer1", t)).tolist()) for t in range(50)]
    assert tuple(codec.columns(256, Key("halo/layer2", 0)).tolist()) != steps[0]


def test_every_column_has_the_same_chance():
    """2000 steps, k/d = 1/4: each of 32 counts within 5 sigma; a right codec fails with probability below 2e-5."""
    counts = torch.zeros(32)
    for t in range(2000):
        counts[Subsample(4).columns(32, Key("halo/layer1", t))] += 1
    assert ((counts - 500).abs() < 5 * (2000 * 0.25 * 0.75) ** 0.5).all()


def test_the_step_of_the_key_sets_the_rate():
    codec = Subsample(Linear(steps=101))
    assert [codec.num_columns(256, t) for t in (0, 10, 20, 100)] == [2, 3, 256, 256]
    assert codec.nbytes((3, 256), torch.float32, Key("c", 10)) == 3 * 3 * 4


def test_linear_is_varcos():
    """T = 101, slope 5: from 128 down by 6.35 per step, at 1 from step 20 on."""
    rate = Linear(steps=101)
    assert [rate.at(t) for t in (0, 1, 10, 20, 50, 100)] == pytest.approx([128, 121.65, 64.5, 1, 1, 1])
    assert [Linear(steps=11, slope=1, c_max=21, c_min=1).at(t) for t in (0, 5, 10)] == pytest.approx([21, 11, 1])
    assert Linear(steps=1).at(0) == 128


def test_exponential_and_step_tables():
    exponential = Exponential(steps=101, slope=5)
    assert [exponential.at(t) for t in (0, 10, 20, 100)] == pytest.approx([128, 128**0.5, 1, 1])
    assert [Step(every=10).at(t) for t in (0, 9, 10, 25, 10**6)] == [128, 128, 64, 32, 1]
    assert Constant(4).at(7) == 4


@pytest.mark.parametrize("rate", [Linear(steps=40), Exponential(steps=40, c_min=2), Step(every=3), Constant(2)])
def test_rates_fall_and_stay_in_their_bounds(rate):
    table = [rate.at(t) for t in range(60)]
    assert table == sorted(table, reverse=True)
    assert min(table) >= 1
    assert max(table) <= 128


@pytest.mark.parametrize(
    "make",
    [
        lambda: Subsample(0.5),
        lambda: Constant(float("nan")),
        lambda: Linear(steps=0),
        lambda: Linear(steps=5, c_min=0.5),
        lambda: Exponential(steps=5, c_max=2, c_min=4),
        lambda: Step(every=5, factor=1),
    ],
)
def test_rates_that_make_no_sense_are_refused(make):
    with pytest.raises(InputError):
        make()
