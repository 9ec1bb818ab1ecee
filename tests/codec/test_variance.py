"""Bits by row: the size law, the optimum, and the facts that both ends read from the wire."""

from itertools import product

import pytest
import torch

from fullgraph.codec import ByRow, MinVariance
from fullgraph.ops.lowbit import row_bytes
from fullgraph.testing import assert_size_law
from fullgraph.transport import Key

KEY = Key("halo/layer1", 4, ends=(0, 1))
WIDTH = 16


def variance(spans, weights, bits):
    return sum(w * s * s / (2**b - 1) ** 2 for s, w, b in zip(spans, weights, bits, strict=True))


def size(bits):
    return sum(row_bytes(WIDTH, b) for b in bits)


def rows(seed, number=6):
    pick = torch.Generator().manual_seed(seed)
    return torch.rand(number, generator=pick) * 10 ** torch.randint(-2, 3, (number,), generator=pick), torch.rand(
        number, generator=pick
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lam", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_bits_by_lam_are_the_optimum(lam, seed):
    """No other of the 3^6 choices has a smaller sum."""
    spans, weights = rows(seed)
    worst, most = variance(spans, weights, [2] * 6), size([8] * 6)

    def cost(bits):
        return lam * float(variance(spans, weights, bits)) / float(worst) + (1 - lam) * size(bits) / most

    best = min(cost(bits) for bits in product((2, 4, 8), repeat=6))
    chosen = MinVariance(lam=lam).chosen(spans, weights, WIDTH).tolist()
    assert cost(chosen) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [2.0, 2.5, 3.0, 4.0, 6.0, 8.0])
def test_bits_by_budget_are_the_optimum_but_for_a_row(budget, seed):
    """The bits fit the budget, and no choice with one row's bytes less has a smaller variance."""
    spans, weights = rows(seed)
    chosen = MinVariance(budget=budget).chosen(spans, weights, WIDTH).tolist()
    limit = 6 * (budget * WIDTH / 8 + 4)
    assert size(chosen) <= limit
    spare = row_bytes(WIDTH, 8) - row_bytes(WIDTH, 4)
    fewer = [bits for bits in product((2, 4, 8), repeat=6) if size(bits) <= limit - spare]
    best = min((float(variance(spans, weights, bits)) for bits in fewer), default=float("inf"))
    assert float(variance(spans, weights, chosen)) <= best * (1 + 1e-6)


def test_rows_without_a_span_take_the_fewest_bits():
    spans = torch.tensor([0.0, 1.0, float("nan"), float("inf"), 0.0])
    assert MinVariance().chosen(spans, None, WIDTH).tolist()[0] == 2
    assert MinVariance(budget=2).chosen(spans, None, WIDTH).tolist() == [2] * 5
    assert MinVariance(budget=8).chosen(spans, None, WIDTH).tolist() == [8] * 5
    assert len(MinVariance().chosen(torch.zeros(0), None, WIDTH)) == 0


@pytest.mark.parametrize("shape", [(9, 16), (9, 3, 5), (1, 7), (0, 16)], ids=str)
def test_the_size_law(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    bits = torch.tensor([2, 8, 4, 4, 2, 8, 1, 8, 2], dtype=torch.uint8)[: shape[0]]
    for codec in (ByRow(bits), MinVariance(), MinVariance(budget=3)):
        back = assert_size_law(codec, x, KEY)
        if len(x):
            assert float((back - x).abs().max()) <= float(x.max() - x.min()) * 1.02


@pytest.mark.parametrize("width", [1, 7, 16])
def test_spans_are_what_both_ends_read_off_the_wire(width):
    x = torch.randn(5, width, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [[1e-3], [1], [10], [1e4], [2]]
    )
    x[4] = 3.0  # one number throughout
    codec = ByRow(torch.tensor([2, 8, 4, 2, 8], dtype=torch.uint8))
    spans = codec.spans(codec.encode(x, KEY), (5, width), KEY)
    true = x.amax(1) - x.amin(1)
    assert float(spans[4]) == 0.0
    assert bool((spans[:4] >= true[:4] * 0.999).all())
    if width > 1:
        assert bool((spans[:4] <= true[:4] * 1.1).all())
