"""LowBit: the wire format byte by byte, the error bound, unbiasedness, and the kernel against the reference."""

import math

import pytest
import torch
from torch import Tensor

from fullgraph.codec import LowBit
from fullgraph.errors import InputError
from fullgraph.ops import reference
from fullgraph.testing import assert_size_law
from fullgraph.transport import Key

KEY = Key("halo/layer1", 4)
BITS = (1, 2, 4, 8)
WIDTHS = (1, 7, 8, 9, 33)


def fields(wire: Tensor, rows: int, bits: int) -> tuple[Tensor, Tensor, list[int]]:
    """(low, step, the codes of each row as one integer), read from the wire digit by digit; float64."""
    lines = [bytes(line) for line in wire.view(rows, -1).tolist()]
    grids = [_grid(f"{int.from_bytes(line[:4], 'little'):032b}", bits) for line in lines]
    low, step = torch.tensor(grids, dtype=torch.float64).view(rows, 2).unbind(1)
    return low, step, [int.from_bytes(line[4:], "little") for line in lines]


def _grid(word: str, bits: int) -> tuple[float, float]:
    """The low and the step of a word in binary digits."""
    size = (8, 5, 3, 1)[int(word[8:10], 2)]
    power, multiple, fraction = (int(digits, 2) for digits in (word[:8], word[10:-size], word[-size:]))
    assert 0 < power < 255, "a row of one value has no grid"
    multiple -= int(word[10]) << 22 - size  # the sign
    return (
        math.ldexp(multiple, power - 127 + round(math.log2(2**bits - 1)) - size),
        math.ldexp(2**size + fraction, power - 127 - size),
    )


def odd_rows(width: int) -> Tensor:
    """Ordinary rows, and rows that may break a formula."""
    x = torch.randn(24, width, generator=torch.Generator().manual_seed(width))
    inf, nan = float("inf"), float("nan")
    x[1], x[2], x[3] = 0.0, -0.0, 1.1
    x[4, 0], x[5, 0], x[6, 0] = inf, -inf, nan
    x[7, -1] = -torch.tensor(nan)
    x[8], x[9] = inf, nan
    x[10] *= 1e-44  # subnormal
    x[11] *= 2e38  # a range beyond float32
    x[12] = 3.4e38
    x[12, 0] = 3.3e38
    x[13] = -x[13].abs() * 1e-30
    x[14] += 1e6
    x[15, 0] = 1e30
    x[16] = torch.where(torch.arange(width) % 2 == 0, 0.0, -0.0)
    x[17:19] = x[17:19] * 0.02 + torch.tensor([[100.3], [-100.3]])
    x[19:21] += torch.tensor([[1e4], [-1e5]])
    x[21] = 1e37 + x[21] * 1e31
    x[22] = 1e-37 + x[22] * 1e-41
    return x


def rows_of_any_size(rows: int, width: int) -> Tensor:
    """Rows whose offset and span have any exponents, including subnormal ones; the last quarter has random bits."""
    draw = torch.Generator().manual_seed(width)
    exponent = torch.randint(-140, 122, (rows, 1), generator=draw)
    nearer = torch.randint(-4, 24, (rows, 1), generator=draw)
    offset, unit = torch.randn(rows, 1, generator=draw), torch.rand(rows, width, generator=draw)
    x = offset.double() * 2.0**exponent + unit.double() * 2.0 ** (exponent - nearer)
    patterns = torch.randint(-(2**31), 2**31, (rows // 4, width), generator=draw).int()
    x = x.float()
    x[-len(patterns) :] = patterns.view(torch.float32)
    return x


def expected_error(x: Tensor, low: Tensor, step: Tensor) -> float:
    """The mean of (x' - x)^2 over draws: a number f steps above its code's has f (1 - f) step^2."""
    part = (x.double() - low[:, None]) / step[:, None] % 1
    return float((part * (1 - part) * step[:, None] ** 2).mean())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (3, 2, 5), (6,), *((5, w) for w in WIDTHS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_size_is_packed_codes_and_four_bytes_a_row(bits, shape, dtype):
    x = torch.randn(shape, dtype=dtype)
    assert_size_law(LowBit(bits), x, KEY)
    width = x[0].numel() if shape[0] else 5
    assert LowBit(bits).nbytes(shape, dtype, KEY) == shape[0] * (-(-bits * width // 8) + 4)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("offset", [-2.0, 100.0])
def test_a_code_lies_in_its_own_bits(bits, width, offset, kernels):
    """Numbers on the grid have codes that no draw can change: column c at bit b*c, and zeros after the last one."""
    top = 2**bits - 1
    codes = torch.randint(0, top + 1, (9, width), generator=torch.Generator().manual_seed(bits))
    codes[:, 0], codes[:, -1] = 0, top
    x = codes * 0.25 + offset
    wire = LowBit(bits).encode(x, KEY)
    low, step, packed = fields(wire, 9, bits)
    assert (low.unique().tolist(), step.unique().tolist()) == ([offset], [0.25])
    assert packed == [sum(q << bits * c for c, q in enumerate(row)) for row in codes.tolist()]
    assert torch.equal(LowBit(bits).decode(wire, (9, width), x.dtype, KEY), x)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("scale", [1e-37, 1e-6, 1.0, 1e30])
def test_error_is_at_most_a_step_and_nothing_clips(bits, scale, kernels):
    x = torch.randn(300, 33, generator=torch.Generator().manual_seed(0)) * scale
    wire = LowBit(bits).encode(x, KEY)
    y = LowBit(bits).decode(wire, (300, 33), x.dtype, KEY).double()
    low, step, _ = fields(wire, 300, bits)
    x = x.double()
    assert torch.all(low <= x.amin(1))
    assert torch.all(low + (2**bits - 1) * step >= x.amax(1) - 1e-6 * step)
    assert torch.all((y - x).abs() <= step[:, None] + 1e-6 * x.abs().amax(1, keepdim=True))


@pytest.mark.parametrize("bits", BITS)
def test_the_grid_covers_rows_of_any_size_and_no_more_than_it_must(bits, kernels):
    """Rounding low and step widens the grid by at most 3 / 2^size; beyond 2^18 spans it is as fine as the low's
    digits.
    """
    top = 2**bits - 1
    x = rows_of_any_size(2000, 9)
    wire = LowBit(bits).encode(x, KEY)
    wanted = torch.zeros_like(wire.view(2000, -1))
    reference.lowbit_encode(x, KEY.seed, bits, wanted)
    assert torch.equal(wire, wanted.view(-1))
    y = LowBit(bits).decode(wire, tuple(x.shape), x.dtype, KEY)
    span = x.amax(1).double() - x.amin(1).double()
    plain = y.isfinite().all(1) & (span > 0)
    assert plain[:1500].sum() > 1200
    assert torch.equal(y.isnan().any(1), y.isnan().all(1))
    assert torch.all(y[span < 2.0**126].isfinite() | (x[span < 2.0**126].abs() > 2.0**127))
    low, step, _ = fields(wire.view(2000, -1)[plain], int(plain.sum()), bits)
    x, y, span = x[plain].double(), y[plain].double(), span[plain]
    rounding = 2.0**-23 * x.abs().amax(1)  # of float32, in which both ends compute
    assert torch.all(low <= x.amin(1))
    assert torch.all(low + top * step >= x.amax(1) - 1e-6 * top * step)
    assert torch.all((y - x).abs() <= (step + rounding)[:, None])
    distance = x.amin(1).abs()
    wider = torch.tensor([1 + 3 / 2**size for size in (8, 5, 3, 0)], dtype=torch.float64)
    widest = span * wider[torch.bucketize(distance / span, torch.tensor([2.0**4, 2.0**10, 2.0**14]).double())]
    widest = torch.where(distance < 2.0**18 * span, widest, distance * 2.0**-15)
    assert torch.all(step <= (widest / top).clamp(min=2.0**-124))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("centre", "spread"), [(100.35, 0.1), (-100.35, 0.1), (10_000.5, 1.0), (-10_000.5, 1.0), (None, 0.05)], ids=str
)
def test_rows_far_from_zero_are_rounded_as_well_as_rows_at_zero(bits, centre, spread):
    """Raw features, and rows of attention: a large number per row, with small differences around it."""
    draw = torch.Generator().manual_seed(bits)
    at_zero = torch.rand(4000, 64, generator=draw) * spread
    centres = torch.randn(4000, 1, generator=draw) * 3 if centre is None else torch.full((4000, 1), centre)
    far = at_zero + (centres - spread / 2)
    errors = []
    for x in (far, at_zero):
        y = LowBit(bits).decode(LowBit(bits).encode(x, KEY), tuple(x.shape), x.dtype, KEY)
        errors.append((y.double() - x.double()).square().mean())
    assert errors[0] < 1.3 * errors[1]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", ["normal", "positive", "uniform", "of any scale", "barely negative"])
def test_rows_around_zero_are_rounded_as_well_as_by_bf16_parameters(bits, kind):
    draw = torch.Generator().manual_seed(bits)
    x = torch.randn(2000, 64, generator=draw)
    x = {
        "normal": x,
        "positive": x.relu(),
        "uniform": torch.rand(2000, 64, generator=draw) - 0.5,
        "of any scale": x * torch.randn(2000, 1, generator=draw).exp(),
        "barely negative": x.abs() - 0.01,
    }[kind]
    low, step, _ = fields(LowBit(bits).encode(x, KEY), 2000, bits)
    low_16 = bf16_below(x.amin(1))
    step_16 = -bf16_below((low_16 - x.amax(1)) / (2**bits - 1))
    assert expected_error(x, low, step) < 1.03 * expected_error(x, low_16.double(), step_16.double())


def bf16_below(x: Tensor) -> Tensor:
    cut = (x.view(torch.int32) & ~0xFFFF).view(torch.float32)
    return torch.where(cut > x, (cut.view(torch.int32) + 0x10000).view(torch.float32), cut)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("centre", "spread"), [(1, 3), (100, 0.1), (-100, 0.1)])
def test_unbiased(bits, centre, spread):
    """z-tests over rows and keys. On random keys a right codec fails with probability below 3e-5 per `bits`: 64 columns
    beyond 5 sigma (64 * 5.7e-7, two-sided) and a chi-square beyond 6 of its own sigma; here the keys are fixed."""
    rows, steps = 500, 200
    x = torch.randn(64, generator=torch.Generator().manual_seed(bits)) * spread + centre
    block = x.expand(rows, -1).contiguous()
    total = torch.zeros(64, dtype=torch.float64)
    for t in range(steps):
        wire = LowBit(bits).encode(block, Key("halo/layer1", t))
        total += LowBit(bits).decode(wire, (rows, 64), torch.float64, KEY).sum(0)
    low, step, _ = fields(LowBit(bits).encode(block[:1], KEY), 1, bits)
    up = ((x.double() - low) / step) % 1
    draws = rows * steps
    sigma = step * (up * (1 - up) / draws).sqrt()
    z = ((total / draws - x) / sigma)[up * (1 - up) * draws > 20]
    assert z.numel() >= 60
    assert z.abs().max() < 5
    # An excess would show draws that depend on each other, a lack draws that are too regular.
    assert abs((z**2).sum() - z.numel()) < 6 * (2 * z.numel()) ** 0.5


def test_draws_of_rows_columns_and_keys_are_independent():
    """Correlations of 1-bit codes at p = 1/2 between neighbours in each direction are below 5 sigma."""
    x = torch.full((1000, 66), 0.5)
    x[:, 0], x[:, 1] = 0.0, 1.0
    keys = [Key("a", 4), Key("a", 5), Key("a", 4, "backward"), Key("b", 4), Key("a", 4, chunk=1)]
    first, *others = (LowBit(1).decode(LowBit(1).encode(x, k), (1000, 66), x.dtype, k)[:, 2:] * 2 - 1 for k in keys)
    pairs = [(first[1:], first[:-1]), (first[:, 1:], first[:, :-1]), *((first, other) for other in others)]
    for a, b in pairs:
        assert abs((a * b).mean()) < 5 / a.numel() ** 0.5


@pytest.mark.parametrize("field", [{"step": 5}, {"way": "backward"}, {"channel": "halo/layer2"}, {"chunk": 1}])
def test_bytes_are_a_function_of_the_key(field, kernels):
    x = torch.randn(20, 33, generator=torch.Generator().manual_seed(0))
    other = Key(**{"channel": KEY.channel, "step": KEY.step} | field)
    wire = LowBit().encode(x, KEY)
    assert torch.equal(wire, LowBit().encode(x.clone(), KEY))
    assert not torch.equal(wire, LowBit().encode(x, other))
    # The receiver's key has no effect.
    assert torch.equal(*(LowBit().decode(wire, (20, 33), x.dtype, k) for k in (KEY, other)))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_constant_row_is_exact_in_every_bit(bits, width, kernels):
    patterns = torch.randint(-(2**31), 2**31, (500,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    values = patterns.view(torch.float32)
    special = torch.tensor([0.0, -0.0, 1.1, 1e-45, float("inf"), -float("inf"), 3.4028235e38])
    x = torch.cat([values[~values.isnan()], special])[:, None].expand(-1, width)
    y = LowBit(bits).decode(LowBit(bits).encode(x, KEY), tuple(x.shape), x.dtype, KEY)
    assert torch.equal(y.view(torch.int32), x.contiguous().view(torch.int32))


@pytest.mark.parametrize("bits", BITS)
def test_rows_that_are_not_finite_show_it_and_spare_the_others(bits, kernels):
    x = odd_rows(33)
    y = LowBit(bits).decode(LowBit(bits).encode(x, KEY), tuple(x.shape), x.dtype, KEY)
    bad = [4, 5, 6, 7, 9, 11]
    assert y[bad].isnan().all()
    assert y[8].isposinf().all()
    good = [i for i in range(24) if i not in [*bad, 8, 12]]
    assert y[good].isfinite().all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", [*WIDTHS, 200])
@pytest.mark.parametrize("threads", [1, 2])
def test_kernel_and_reference_agree_to_the_bit(bits, width, threads, monkeypatch, set_threads):
    set_threads(threads)
    x = torch.cat([odd_rows(width), rows_of_any_size(2000, width)])  # enough for several chunks when wide
    wires, decoded = {}, {}
    for kind in ("numba", "torch"):
        monkeypatch.setenv("FULLGRAPH_KERNELS", kind)
        wires[kind] = LowBit(bits).encode(x, KEY)
    assert torch.equal(wires["numba"], wires["torch"])
    for kind in ("numba", "torch"):
        monkeypatch.setenv("FULLGRAPH_KERNELS", kind)
        decoded[kind] = LowBit(bits).decode(wires["numba"], tuple(x.shape), x.dtype, KEY).view(torch.int32)
    assert torch.equal(decoded["numba"], decoded["torch"])


def test_takes_slices_and_doubles_and_leaves():
    x = torch.randn(6, 40, dtype=torch.float64)[:, ::2].requires_grad_()
    wire = LowBit(4).encode(x, KEY)
    assert torch.equal(wire, LowBit(4).encode(x.detach().float().contiguous(), KEY))
    assert not wire.requires_grad


@pytest.mark.parametrize("bits", [0, 3, 16, 32])
def test_other_bits_are_refused(bits):
    with pytest.raises(InputError, match="choose one of 1, 2, 4, 8"):
        LowBit(bits)
