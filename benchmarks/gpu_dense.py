"""Dense products of the sizes an epoch has: our kernels in several precisions and tilings beside torch's float32.

PYTHONPATH=src python benchmarks/gpu_dense.py [--scale 1.0]
"""

import argparse
import contextlib
import itertools

import torch
import triton
from gpu_common import Bench
from torch import Tensor

from fullgraph.ops import triton_dense
from fullgraph.ops.hashing import mixed_key, signed, threshold
from fullgraph.ops.kernels_cuda import _scale_bits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--compile", default="", help="I/N: only compile every N-th kernel, for the next call to find")
args = parser.parse_args()
bench = Bench("gpu_dense", "cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(232_965, 602, 256), (232_965, 256, 256), (2_449_029, 100, 128), (2_449_029, 128, 128), (2_449_029, 128, 47)]
LAW = (signed(mixed_key(7)), threshold(0.5), _scale_bits(0.5))


def times(x: Tensor, w: Tensor, out: Tensor, by_rows: bool, drop: bool, precision: str, tile, warps, stages) -> None:
    n, width = x.shape
    o = out.shape[1]
    rows, columns, depth = tile
    step = (1, w.shape[1]) if by_rows else (w.shape[1], 1)
    triton_dense.rows_times[(triton.cdiv(n, rows), triton.cdiv(o, columns))](
        x, ids, w, w, out, *LAW, n, IN=width, OUT=o, STEP_IN=step[0], STEP_OUT=step[1], DROP=drop, BIAS=False,
        ADD=False, PRECISION=precision, ROWS=rows, COLUMNS=columns, DEPTH=depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def against(g: Tensor, x: Tensor, drop: bool, precision: str, tile, warps, stages, waves: int) -> Tensor:
    n, width = x.shape
    o = g.shape[1]
    rows, columns, depth = tile
    tiles = triton.cdiv(o, rows) * triton.cdiv(width, columns)
    pieces = max(1, 132 * waves // tiles)
    each = triton.cdiv(triton.cdiv(n, pieces), depth) * depth
    pieces = triton.cdiv(n, each)
    partial = torch.empty(pieces, o, width, device=x.device)
    triton_dense.rows_against_rows[(triton.cdiv(o, rows), triton.cdiv(width, columns), pieces)](
        g, x, ids, partial, *LAW, each, n, OUT=o, IN=width, DROP=drop, PRECISION=precision, ROWS=rows,
        COLUMNS=columns, DEPTH=depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return partial.sum(0)


def error(a: Tensor, b: Tensor) -> float:
    return float((a[:4096].double() - b[:4096]).norm() / b[:4096].norm())


count = itertools.count()


def attempt(name: str, run, check) -> None:
    if args.compile:
        which, of = map(int, args.compile.split("/"))
        if next(count) % of == which:
            with contextlib.suppress(Exception):
                run()
        return
    try:
        ms = bench.ms(run, rounds=5, warm=1)
        results.append((ms, name, check()))
    except Exception as problem:
        results.append((1e9, name, f"{type(problem).__name__} {str(problem)[:60]!r}"))


for n, width, o in SHAPES:
    n = 1000 if args.compile else max(1000, int(n * args.scale))
    ids = torch.arange(n, device=bench.device)
    x = torch.randn(n, width, device=bench.device)
    w = torch.randn(o, width, device=bench.device)
    g = torch.randn(n, o, device=bench.device)
    out, back = torch.empty(n, o, device=bench.device), torch.empty(n, width, device=bench.device)
    want = x[:4096].double() @ w.double().t()
    want_back = g[:4096].double() @ w.double()
    want_w = sum(a.double().t() @ b.double() for a, b in zip(g.split(1 << 18), x.split(1 << 18), strict=True))
    torch.set_float32_matmul_precision("highest")
    print(f"\n{n} x {width} -> {o}", flush=True)
    for label, run, truth in (
        ("fwd", lambda: x @ w.t(), want), ("dx", lambda: g @ w, want_back), ("dw", lambda: g.t() @ x, want_w),
    ):  # fmt: skip
        print(f"  {label:4} torch fp32 {bench.ms(run):7.3f} ms  error {error(run(), truth):.1e}", flush=True)
    for what in ("fwd", "dx", "dw"):
        results: list = []
        for precision in ("tf32x3", "bf16x6"):
            if what == "dw":
                grid = itertools.product(
                    ((64, 128, 32), (128, 128, 32), (64, 64, 32), (128, 64, 32)), (4, 8), (2, 3), (2,)
                )
                for tile, warps, stages, waves in grid:
                    run = lambda t=tile, v=warps, s=stages, k=waves, p=precision: against(g, x, False, p, t, v, s, k)  # noqa: E731
                    attempt(
                        f"{precision} {tile} w{warps} s{stages} {waves} waves",
                        run,
                        lambda r=run: f"{error(r(), want_w):.1e}",
                    )
            else:
                a, b, truth, by = (x, out, want, True) if what == "fwd" else (g, back, want_back, False)
                grid = itertools.product(
                    ((128, 64, 32), (128, 128, 32), (64, 128, 32), (64, 256, 32), (128, 256, 32)), (4, 8), (2, 3)
                )
                for tile, warps, stages in grid:
                    if tile[1] > 2 * triton.next_power_of_2(b.shape[1]):
                        continue
                    run = lambda t=tile, v=warps, s=stages, p=precision, a=a, b=b, y=by: times(
                        a, w, b, y, False, p, t, v, s
                    )  # noqa: E731
                    attempt(f"{precision} {tile} w{warps} s{stages}", run, lambda b=b, t=truth: f"{error(b, t):.1e}")
        if not results:
            continue
        for ms, name, said in sorted(results)[:4]:
            print(f"  {what:4} {name:34} {ms:7.3f} ms  error {said}", flush=True)
        best = sorted(results)[0][1]
        failed = [r for r in results if r[0] >= 1e9]
        print(f"       {len(results)} tried, {len(failed)} failed{': ' + str(failed[0]) if failed else ''}", flush=True)
        bench.note(f"{n}x{width}->{o} {what}", sorted(results)[:6])
    bench._write()
