"""LowBit: the wire format to the byte, the error bound, unbiasedness, and the kernel against the reference."""

import pytest
import torch
from torch import Tensor

from fullgraph.codec import LowBit
from fullgraph.errors import InputError
from fullgraph.testing import assert_size_law
from fullgraph.transport import Key

KEY = Key("halo/layer1", 4)
BITS = (1, 2, 4, 8)
WIDTHS = (1, 7, 8, 9, 33)


def fields(wire: Tensor, rows: int) -> tuple[Tensor, Tensor, list[int]]:
    """(low, step, the codes of each row as one integer), read off the wire byte by byte."""
    lines = [bytes(line) for line in wire.view(rows, -1).tolist()]
    raw = torch.tensor([[int.from_bytes(line[:2], "little"), int.from_bytes(line[2:4], "little")] for line in lines])
    low, step = (raw << 16).to(torch.int32).view(torch.float32).unbind(1)
    return low, step, [int.from_bytes(line[4:], "little") for line in lines]


def odd_rows(width: int) -> Tensor:
    """Ordinary rows, and every row that a formula may stumble over."""
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
    return x


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
def test_a_code_lies_in_its_own_bits(bits, width, kernels):
    """Numbers on the grid have codes that no draw can change: column c at bit b*c, nothing behind the last."""
    top = 2**bits - 1
    codes = torch.randint(0, top + 1, (9, width), generator=torch.Generator().manual_seed(bits))
    codes[:, 0], codes[:, -1] = 0, top
    x = codes * 0.25 - 2.0
    wire = LowBit(bits).encode(x, KEY)
    low, step, packed = fields(wire, 9)
    assert (low.unique().tolist(), step.unique().tolist()) == ([-2.0], [0.25])
    assert packed == [sum(q << bits * c for c, q in enumerate(row)) for row in codes.tolist()]
    assert torch.equal(LowBit(bits).decode(wire, (9, width), x.dtype, KEY), x)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("scale", [1e-37, 1e-6, 1.0, 1e30])
def test_error_is_at_most_a_step_and_nothing_clips(bits, scale, kernels):
    x = torch.randn(300, 33, generator=torch.Generator().manual_seed(0)) * scale
    wire = LowBit(bits).encode(x, KEY)
    y = LowBit(bits).decode(wire, (300, 33), x.dtype, KEY).double()
    low, step, _ = (t.double() if isinstance(t, Tensor) else t for t in fields(wire, 300))
    x = x.double()
    assert torch.all(low <= x.amin(1))
    assert torch.all(low + (2**bits - 1) * step >= x.amax(1) - 1e-6 * step)
    # The parameters are tight as well: bf16 has 8 significant bits.
    least = (x.amax(1) - low) / (2**bits - 1)
    assert torch.all(step <= torch.maximum(least * (1 + 2**-7), torch.tensor(2.0**-126, dtype=torch.float64)))
    assert torch.all((y - x).abs() <= step[:, None] + 1e-6 * x.abs().amax(1, keepdim=True))


@pytest.mark.parametrize("bits", BITS)
def test_unbiased(bits):
    """z-tests over rows and keys. On random keys a right codec fails with probability below 3e-5 per `bits`: 64 columns
    beyond 5 sigma (64 * 5.7e-7, two-sided) and a chi-square beyond 6 of its own sigma; here the keys are fixed."""
    rows, steps = 500, 200
    x = torch.randn(64, generator=torch.Generator().manual_seed(bits)) * 3 + 1
    block = x.expand(rows, -1).contiguous()
    total = torch.zeros(64, dtype=torch.float64)
    for t in range(steps):
        wire = LowBit(bits).encode(block, Key("halo/layer1", t))
        total += LowBit(bits).decode(wire, (rows, 64), torch.float64, KEY).sum(0)
    low, step, _ = fields(LowBit(bits).encode(block[:1], KEY), 1)
    up = ((x.double() - low.double()) / step.double()) % 1
    draws = rows * steps
    sigma = step.double() * (up * (1 - up) / draws).sqrt()
    z = ((total / draws - x) / sigma)[up * (1 - up) * draws > 20]
    assert z.numel() >= 60
    assert z.abs().max() < 5
    # An excess would show draws that depend on each other, a lack draws that are too regular.
    assert abs((z**2).sum() - z.numel()) < 6 * (2 * z.numel()) ** 0.5


def test_draws_of_rows_columns_and_keys_are_independent():
    """Correlations of 1-bit codes at p = 1/2 between neighbours in each direction: below 5 sigma."""
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
    # The receiver's key plays no part.
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
    x = torch.cat([odd_rows(width), torch.randn(2000, width)])  # enough for several chunks when wide
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
