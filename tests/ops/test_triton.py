"""The Triton kernels at sizes with pieces of long rows, several slices, and programs with several rows.

Interpreted here; test_cuda.py tests the compiled ones.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fullgraph.codec import LowBit
from fullgraph.errors import InputError
from fullgraph.ops import Adjacency, Structure, add_rows, attend
from fullgraph.ops.kernels import backend, fused_backend
from fullgraph.ops.lowbit import row_bytes
from fullgraph.ops.triton_plan import Plan, padded_width, plan_arcs, plan_product
from fullgraph.transport import Key

triton = pytest.importorskip("triton", reason="Triton is not installed")
tl = pytest.importorskip("triton.language")

from fullgraph.ops.kernels_cuda import spmm_as  # noqa: E402
from fullgraph.ops.triton_base import arcs_of  # noqa: E402

MakeStructure = Callable[..., Structure]
Dense = Callable[..., Tensor]


@triton.jit
def store_arcs_of(indptr, places, out) -> None:  # type: ignore[no-untyped-def]
    start, count = arcs_of(0, tl.program_id(0), indptr, places, 1, 1000)
    tl.store(out, start)
    tl.store(out + 1, count)


@pytest.fixture
def hubs() -> Structure:
    """Rows with no arc, one, a few, and several pieces of 8 (the last piece is whole, or has one arc)."""
    degree = torch.tensor([0, 3, 24, 0, 0, 1, 17, 8, 9, 2, 0])
    indptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
    return Structure(indptr, torch.randint(0, 6, (int(indptr[-1]),)), 6)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullgraph.ops.triton_plan.chunk_size", lambda degree: 8)
    monkeypatch.setattr("fullgraph.ops.triton_plan.rows_each", lambda degree: 3)


@pytest.mark.usefixtures("interpreted")
class TestPieces:
    @pytest.mark.parametrize("plan", [Plan(4, 2, 1, 1, 8), Plan(8, 4, 2, 4, 3), Plan(16, 16, 1, 2, 100, pad=False)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_any_plan_gives_the_product(self, hubs: Structure, dense: Dense, plan: Plan, dtype: torch.dtype) -> None:
        finer = torch.promote_types(dtype, torch.float32)
        weight, row, col = (torch.randn(n, dtype=finer) for n in (hubs.num_arcs, 11, 6))
        x, base = torch.randn(6, 13).to(dtype), torch.randn(11, 13).to(dtype)
        wanted = row[:, None].double() * (dense(hubs, weight.double()) @ (col[:, None].double() * x.double()))
        for add in (False, True):
            out = base.clone()
            spmm_as(plan, Adjacency(hubs, weight, row, col), x, out, add)
            tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 0.02}[dtype]
            torch.testing.assert_close(out.double(), wanted + base.double() * add, atol=tolerance, rtol=tolerance)

    @pytest.mark.usefixtures("small_pieces")
    def test_attention(self, hubs: Structure, monkeypatch: pytest.MonkeyPatch) -> None:
        leaves = [
            torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((11, 2), (6, 2), (6, 2, 5))
        ]
        grad = torch.randn(11, 2, 5, dtype=torch.float64)

        def both() -> list[Tensor]:
            y = attend(hubs, *leaves)
            return [y, *torch.autograd.grad(y, leaves, grad)]

        fused = both()
        monkeypatch.setenv("FULLGRAPH_KERNELS", "torch")
        for ours, wanted in zip(fused, both(), strict=True):
            torch.testing.assert_close(ours, wanted, atol=1e-12, rtol=1e-12)

    @pytest.mark.usefixtures("small_pieces")
    def test_the_kernels_with_a_number_per_arc(self, hubs: Structure, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two = (
            torch.randn(hubs.num_arcs, 3, dtype=torch.float64),
            torch.randn(hubs.num_arcs, 3, dtype=torch.float64),
        )
        rows, cols = torch.randn(11, 3, 4, dtype=torch.float64), torch.randn(6, 3, 4, dtype=torch.float64)
        row, col, ids = rows[:, :, 0].contiguous(), cols[:, :, 0].contiguous(), torch.randperm(11)

        def all_of_them() -> list[Tensor]:
            k = backend(one)
            return [
                k.spmm_heads(hubs.T, hubs.perm, one, rows),
                k.arc_dot(hubs, rows, cols),
                k.arc_add(hubs, row, col),
                k.arc_sum(hubs, None, one),
                k.arc_sum(hubs.T, hubs.perm, one),
                k.softmax(hubs, one),
                k.softmax_grad(hubs, one, two),
                k.dropout_arcs(hubs, ids, one[:, 0].contiguous(), 5, 0.4),
            ]

        ours = all_of_them()
        monkeypatch.setenv("FULLGRAPH_KERNELS", "torch")
        for result, wanted in zip(ours, all_of_them(), strict=True):
            torch.testing.assert_close(result, wanted, atol=1e-12, rtol=1e-12)

    def test_row_pointers_past_int32(self) -> None:
        """Only the programs' own arithmetic: the arcs themselves would not fit into memory."""
        indptr, out = torch.tensor([2**33, 2**33 + 2**32 + 5]), torch.zeros(2, dtype=torch.int64)
        store_arcs_of[(1,)](indptr, torch.tensor([4_294_967], dtype=torch.int32), out)
        assert out.tolist() == [2**33 + 4_294_967_000, 301]


def odd_rows(width: int) -> Tensor:
    """Ordinary rows, and rows that may break a formula."""
    x = torch.randn(14, width)
    inf, nan = float("inf"), float("nan")
    x[1], x[2], x[3], x[4] = 0.0, -0.0, 1.1, inf
    x[5, 0], x[6, 0], x[7, -1] = inf, nan, -inf
    x[8] *= 1e-44  # subnormal
    x[9] *= 2e38  # a range beyond float32
    x[10] = -x[10].abs() * 1e-30
    x[11] += 1e6
    x[12:] = x[12:] * 0.02 + torch.tensor([[100.3], [-1e4]])
    return x


def encoded(x: Tensor, bits: int) -> Tensor:
    wire = torch.zeros(len(x), row_bytes(x.shape[1], bits), dtype=torch.uint8)
    backend(x).lowbit_encode(x, 9, bits, wire)
    return wire


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [1, 7, 8, 33])
class TestLowBitRows:
    def test_encoding_gives_the_bytes_of_the_others(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, bits: int, width: int
    ) -> None:
        x, wires = odd_rows(width), []
        for kind in ("torch", "numba", "triton"):
            monkeypatch.setenv("FULLGRAPH_KERNELS", kind)
            if kind == "triton":
                request.getfixturevalue("interpreted")
            wires.append(encoded(x, bits))
        assert all(torch.equal(wire, wires[0]) for wire in wires)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_decoding_gives_the_rows_of_the_others(
        self,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
        bits: int,
        width: int,
        dtype: torch.dtype,
    ) -> None:
        results = []
        monkeypatch.setenv("FULLGRAPH_KERNELS", "torch")
        wire = encoded(odd_rows(width), bits)
        for kind in ("torch", "triton"):
            monkeypatch.setenv("FULLGRAPH_KERNELS", kind)
            if kind == "triton":
                request.getfixturevalue("interpreted")
            results.append(torch.full((14, width), 7.0, dtype=dtype))
            backend(results[-1]).lowbit_decode(wire, bits, results[-1])
        cut = 2**-6 if dtype == torch.bfloat16 else 0  # where the GPU rounds to nearest, the interpreter does not
        torch.testing.assert_close(*results, atol=cut, rtol=cut, equal_nan=True)


@pytest.mark.usefixtures("interpreted")
def test_no_rows_and_no_columns() -> None:
    x, codec, key = torch.randn(4, 3), LowBit(2), Key("none", 0)
    for rows, sent in ((x[:0], []), (x[:, :0], [0] * 16)):
        wire = codec.encode(rows, key)
        assert wire.tolist() == sent
        assert codec.decode(wire, tuple(rows.shape), x.dtype, key).shape == rows.shape
    out = x.clone()
    add_rows(out, torch.empty(0, dtype=torch.int64), x[:0])
    add_rows(out[:, :0], torch.arange(4), x[:, :0])
    assert torch.equal(out, x)


def test_kernels_for_a_gpu_need_one_or_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULLGRAPH_KERNELS", "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(InputError, match="TRITON_INTERPRET=1"):
        backend(torch.ones(2))
    monkeypatch.delenv("FULLGRAPH_KERNELS")
    assert fused_backend(torch.ones(2)) is None


class TestPlans:
    @pytest.mark.parametrize("itemsize", [2, 4, 8])
    @pytest.mark.parametrize("width", [1, 2, 41, 64, 100, 128, 256, 602, 1024, 5000])
    @pytest.mark.parametrize(
        "shape", [(10, 10, 30), (232_965, 232_965, 114_615_892), (111_000_000, 111_000_000, 3 * 10**9)]
    )
    def test_sizes_that_triton_takes(self, shape: tuple[int, int, int], width: int, itemsize: int) -> None:
        for plan in (plan_product(*shape, width, itemsize), plan_arcs(*shape, width)):
            for size in (plan.columns, plan.arcs, plan.warps, plan.rows, plan.chunk):
                assert size > 0
                assert size & (size - 1) == 0
            assert plan.arcs * plan.columns <= 8192 * plan.warps  # numbers in registers
        assert plan_arcs(*shape, width).columns >= width
        assert padded_width(width, itemsize, 100) * itemsize <= 1.25 * width * itemsize

    def test_a_cached_slice_is_a_line_and_another_two(self) -> None:
        reddit, products = (232_965, 232_965, 114_615_892), (2_449_029, 2_449_029, 123_718_280)
        assert plan_product(*reddit, 256, 4).columns * 4 == 128
        assert plan_product(*products, 128, 4).columns * 4 == 256
        assert plan_product(*reddit, 256, 4).rows == 1
        assert plan_product(*products, 128, 4).rows > 1


COMPILE = """
import sys
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

class NoDevice:
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device=None: 0
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)

compiled, run = set(), JITFunction.run

def only_compile(self, *args, grid, warmup, **options):
    kernel = run(self, *args, grid=grid, warmup=True, **options)
    compiled.add(self._fn_name.split(".")[-1])
    return kernel

driver.set_active(NoDevice())
JITFunction.run = only_compile

import torch
import fullgraph.ops.triton_plan as plans
from fullgraph.ops import Adjacency, Structure, kernels_cuda as k

plans.chunk_size = lambda degree: 8
indptr = torch.tensor([0, 0, 3, 30, 31])
s = Structure(indptr, torch.zeros(31), 5)
for dtype in (torch.float32, torch.bfloat16):
    real = lambda *shape: torch.randn(*shape).to(dtype)
    k.spmm(Adjacency(s, torch.randn(31), torch.randn(4), torch.randn(5)), real(5, 41), real(4, 41), True)
    done = k.attend(s, real(4, 2), real(5, 2), real(5, 2, 16), 0.2, True)
    k.attend_grad(s, real(4, 2), real(5, 2), real(5, 2, 16), 0.2, done, real(4, 2, 16))
real = torch.randn
k.spmm_heads(s.T, s.perm, real(31, 2), real(4, 2, 16))
k.arc_sum(s, None, real(31, 2))
k.arc_dot(s, real(4, 2, 16), real(5, 2, 16))
k.arc_add(s, real(4, 2), real(5, 2))
k.softmax_grad(s, k.softmax(s, real(31, 2)), real(31, 2))
k.dropout(real(4, 41), torch.arange(4), 5, 0.5, True)
k.relu_dropout_grad(real(4, 41), real(4, 41), 0.5)
k.dropout_arcs(s, torch.arange(4), real(31), 5, 0.5)
k.add_rows(real(4, 41), torch.arange(2), real(2, 41))
wire = torch.zeros(4, 10, dtype=torch.uint8)
k.layer_norm(real(4, 41), real(41), real(41), 1e-5)
k.layer_norm_grad(real(4, 41), real(4, 41), real(41), 1e-5)
k.lowbit_encode(real(4, 41), 5, 1, wire)
k.lowbit_decode(wire, 1, real(4, 41))
print(*sorted(compiled))
"""
KERNELS = (
    "add_pieces add_rows arc_dot arc_map attend attend_grad decode dropout dropout_arcs encode layer_norm "
    "layer_norm_grad merge_attended merge_sums prepare_grad product relu_dropout_grad softmax_sums"
)


@pytest.mark.timeout(300)
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    """The interpreter accepts programs that the compiler refuses."""
    environ = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environ.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(KERNELS.split())
