"""Codecs: the size law, the error bound, exactness of Full."""

import pytest
import torch

from fullgraph.codec import CODECS, BFloat16, Full, Half
from fullgraph.testing import assert_size_law
from fullgraph.transport import Key

KEY = Key("halo/layer1", 4)


@pytest.mark.parametrize("codec", [kind() for kind in CODECS.values()], ids=list(CODECS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0, 5), (3, 1), (17, 33), (4, 2, 3)])
def test_both_ends_know_the_size(codec, dtype, shape):
    assert_size_law(codec, torch.randn(shape, dtype=dtype), KEY)


def test_full_is_exact():
    x = torch.randn(50, 7, dtype=torch.float64)
    assert torch.equal(Full().decode(Full().encode(x, KEY), (50, 7), torch.float64, KEY), x)


def test_full_takes_a_slice_of_columns():
    x = torch.randn(6, 8)[:, ::2]
    assert torch.equal(Full().decode(Full().encode(x, KEY), (6, 4), torch.float32, KEY), x)


@pytest.mark.parametrize(("codec", "bits"), [(Half(), 11), (BFloat16(), 8)])
def test_casts_stay_within_half_a_unit(codec, bits):
    x = torch.randn(400, 40)
    y = codec.decode(codec.encode(x, KEY), tuple(x.shape), x.dtype, KEY)
    # half a unit in the last place, relative; the absolute term is half's smallest subnormal step
    assert torch.all((x - y).abs() <= 2.0**-bits * x.abs() + 2.0**-25)


def test_half_saturates_instead_of_overflowing():
    x = torch.tensor([[1e6, -1e6]])
    assert torch.equal(Half().decode(Half().encode(x, KEY), (1, 2), x.dtype, KEY), torch.tensor([[65504.0, -65504.0]]))
