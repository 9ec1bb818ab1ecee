"""The kernels of ops/ on a GPU, checked and timed: `PYTHONPATH=src python benchmarks/gpu_ops.py [--only check,tune]`.

Every section prints as it runs; with OUT in the environment all figures go to $OUT/gpu_ops.json. It takes about five
minutes on an H200. A trial without a GPU: TRITON_INTERPRET=1 FULLGRAPH_KERNELS=triton ... --scale 1e-5.
"""

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial

import torch
from gpu_common import Bench, community_graph, geometric_mean, papers_graph, power_law_graph
from torch import Tensor
from torch.nn.functional import leaky_relu

from fullgraph.codec import LowBit
from fullgraph.nn import RowMap, view
from fullgraph.nn.linear import add_linear, linear
from fullgraph.ops import (
    Adjacency,
    Structure,
    act_dropout,
    add_rows,
    attend,
    dropout_arcs,
    edge_scores,
    edge_softmax,
    spmm,
    spmm_heads,
)
from fullgraph.ops import kernels_cuda as kernels
from fullgraph.ops.lowbit import row_bytes
from fullgraph.ops.reference import csr_product
from fullgraph.ops.triton_plan import Plan, candidates, plan_product
from fullgraph.transport import Key

WIDTHS = (41, 64, 100, 128, 256, 602)
TYPES = (torch.float32, torch.bfloat16)
HEADS = (4, 32)
Attention = Callable[..., Tensor]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--only", default="", help="sections, separated by commas")
parser.add_argument("--scale", type=float, default=1.0, help="make all graphs smaller, for a trial")
args = parser.parse_args()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
bench = Bench("gpu_ops", DEVICE)


def scaled(n: int) -> int:
    return max(20, int(n * args.scale))


@cache
def graph(name: str) -> Structure:
    if name == "power law":
        return power_law_graph(scaled(1_000_000), scaled(100_000_000), device=DEVICE)
    size, order = name.split(", ")
    nodes, arcs, groups = {"reddit": (232_965, 114_615_892, 41), "products": (2_449_029, 123_718_280, 47)}[size]
    groups = max(1, min(groups, scaled(nodes) // 10))
    return community_graph(scaled(nodes), scaled(arcs), groups, inside=0.8, order=order, device=DEVICE)


GRAPHS = ("reddit, community", "reddit, random", "products, community", "products, random", "power law")


def features(rows: int, *width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, *width, device=DEVICE, dtype=dtype)


def short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float64: "fp64"}[dtype]


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm().clamp(min=1e-300))


def check() -> None:
    """Check every kernel against float64 in plain torch, on a power law with hubs; draws and bytes against the CPU."""
    s = power_law_graph(scaled(20_000), scaled(3_000_000), device=DEVICE)
    s = Structure(s.indptr, (s.indices.flip(0) * 7) % s.num_cols, s.num_cols)  # directed, rows not ascending
    limit = {torch.float32: 2e-6, torch.bfloat16: 5e-3}
    for dtype in TYPES:
        for width in (1, 3, *WIDTHS, 1025):
            x, base = features(s.num_cols, width, dtype=dtype), features(s.num_rows, width, dtype=dtype)
            weight, row, col = (torch.rand(n, device=DEVICE) for n in (s.num_arcs, *s.shape))
            wanted = csr_product(s, None, x.double())
            _verdict(f"product, width {width}", dtype, error(spmm(Adjacency(s), x), wanted), limit[dtype])
            wanted = row.double()[:, None] * csr_product(s, weight.double(), x.double() * col.double()[:, None])
            ours = spmm(Adjacency(s, weight, row, col), x, base.clone())
            _verdict(f"all factors and base, width {width}", dtype, error(ours, wanted + base.double()), limit[dtype])
        for heads, width in ((4, 32), (1, 41), (8, 8), (3, 100)):
            shapes = ((s.num_rows, heads), (s.num_cols, heads), (s.num_cols, heads, width))
            leaves = [features(*shape, dtype=dtype).requires_grad_() for shape in shapes]
            exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
            grad = features(s.num_rows, heads, width, dtype=dtype)
            ours, steps = _with_gradients(attend, s, leaves, grad), _with_gradients(_attend_in_steps, s, leaves, grad)
            with plain_torch():
                wanted = _with_gradients(_attend_in_steps, s, exact, grad.double())
            for part, a, b, c in zip(("y", "d row", "d col", "d x"), ours, steps, wanted, strict=True):
                _verdict(f"attention {heads} x {width}, {part}", dtype, error(a, c), 10 * limit[dtype])
                _verdict(f"attention {heads} x {width} in steps, {part}", dtype, error(b, c), 10 * limit[dtype])
    ids, values = torch.randint(0, 2**40, (s.num_rows,)), torch.randn(s.num_arcs)
    x, some, rows = torch.randn(3000, 256), torch.randint(0, 2**40, (3000,)), torch.randperm(3000)[:2000]

    def on(device: str) -> dict[str, Tensor]:
        there, chosen = x.to(device), rows.to(device)
        return {
            "relu, dropout": act_dropout(there, some.to(device), key=7, p=0.5, act="relu"),
            "relu, dropout, bf16": act_dropout(there.bfloat16(), some.to(device), key=7, p=0.5, act="relu"),
            "dropout of arcs": dropout_arcs(s.to(device), ids.to(device), values.to(device), key=7, p=0.3),
            **{f"{bits} bits": LowBit(bits).encode(there[chosen], Key("check", 7)) for bits in (1, 2, 4, 8)},
        }

    for name, wanted in on("cpu").items():
        _verdict(f"{name}, numbers unlike the CPU's", torch.float32, float((on(DEVICE)[name].cpu() != wanted).sum()), 0)


def _verdict(name: str, dtype: torch.dtype, value: float, limit: float) -> None:
    bench.note(f"check/{name}/{short(dtype)}", value)
    print(f"{'ok   ' if value <= limit else 'WRONG'} {name:44s} {short(dtype)}  {value:.1e}", flush=True)


def _with_gradients(run: Attention, s: Structure, leaves: list[Tensor], grad: Tensor) -> list[Tensor]:
    y = run(s, *leaves)
    return [y, *torch.autograd.grad(y, leaves, grad)]


@contextmanager
def plain_torch() -> Iterator[None]:
    before = os.environ.get("FULLGRAPH_KERNELS", "")
    os.environ["FULLGRAPH_KERNELS"] = "torch"
    yield
    os.environ["FULLGRAPH_KERNELS"] = before


def _attend_in_steps(s: Structure, row: Tensor, col: Tensor, x: Tensor) -> Tensor:
    return spmm_heads(s, edge_softmax(s, leaky_relu(edge_scores(s, row, col), 0.2)), x)


def product() -> None:
    """Time the product at six widths on five graphs, compared with cuSPARSE in fp32."""
    ratios: dict[str, list[float]] = {}
    for name in GRAPHS:
        s = graph(name)
        adj, gathers = Adjacency(s), s.num_arcs / 1e9
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ones = torch.ones(s.num_arcs, device=DEVICE)
            csr = torch.sparse_csr_tensor(s.indptr.int(), s.indices, ones, s.shape, check_invariants=False)
        for width in WIDTHS:
            x = features(s.num_cols, width)
            base = bench.ms(lambda csr=csr, x=x: csr @ x, 3, 1)
            line = f"{name:20s} {width:4d}: cuSPARSE {base:6.2f} ms"
            for dtype in TYPES:
                xs = x.to(dtype)
                out = torch.empty(s.num_rows, width, device=DEVICE, dtype=dtype)
                ms = bench.ms(lambda adj=adj, xs=xs, out=out: kernels.spmm(adj, xs, out, False))
                rate = gathers * width * xs.element_size() / ms
                line += f" | {short(dtype)} {ms:6.2f} ms = {base / ms:4.2f}x, {rate:5.2f} TB/s"
                for key in (short(dtype), f"{name} {short(dtype)}"):
                    ratios.setdefault(key, []).append(base / ms)
                bench.note(f"product/{name}/{width}/{short(dtype)}", {"ms": ms, "cusparse": base, "TB/s": rate})
            print(line, flush=True)
        del csr, ones
        line = ", ".join(f"{short(t)} {geometric_mean(ratios[f'{name} {short(t)}']):.2f}x" for t in TYPES)
        print(f"{name:20s} geometric mean over widths: {line}", flush=True)
    for dtype in TYPES:
        worst, mean = min(ratios[short(dtype)]), geometric_mean(ratios[short(dtype)])
        bench.note(f"product/mean/{short(dtype)}", mean)
        print(
            f"all graphs and widths, {short(dtype)}: {mean:.2f}x in geometric mean, {worst:.2f}x at worst", flush=True
        )


def tune() -> None:
    """Compare launch sizes: the best plans of a small grid, then padding, rows per program and chunks."""
    for name in ("reddit, community", "reddit, random", "products, random"):
        s = graph(name)
        adj = Adjacency(s)
        for width in (41, 100, 256):
            for dtype in TYPES:
                x, default = features(s.num_cols, width, dtype=dtype), _default(s, width, dtype)
                out = torch.empty(s.num_rows, width, device=DEVICE, dtype=dtype)

                def timed(plan: Plan, adj: Adjacency = adj, x: Tensor = x, out: Tensor = out) -> float:
                    return bench.ms(lambda: kernels.spmm_as(plan, adj, x, out, False), 3, 1)

                times = {plan: timed(plan) for plan in {default, *candidates(default, width, x.element_size())}}
                best = min(times, key=times.__getitem__)
                more = {plan: timed(plan) for plan in _variants(best)}
                times |= more
                label = f"{name} {width} {short(dtype)}"
                bench.note(f"tune/{label}", {str(plan): ms for plan, ms in times.items()})
                print(f"{label:30s} default {times[default]:6.2f} ms {_sizes(default)}", flush=True)
                ranked = sorted(set(times) - set(more), key=times.__getitem__)[:4]
                print("      best: " + " | ".join(f"{times[p]:.2f} {_sizes(p)}" for p in ranked), flush=True)
                print(
                    "      its variants: " + " | ".join(f"{more[p]:.2f} {_changes(best, p)}" for p in more), flush=True
                )


def _default(s: Structure, width: int, dtype: torch.dtype) -> Plan:
    return plan_product(*s.shape, s.num_arcs, width, dtype.itemsize)


def _variants(plan: Plan) -> Iterator[Plan]:
    yield replace(plan, pad=not plan.pad)
    yield from (replace(plan, rows=rows) for rows in (1, 2, 4, 8, 16) if rows != plan.rows)
    yield from (replace(plan, chunk=chunk) for chunk in (512, 1024, 2048, 8192) if chunk != plan.chunk)


def _sizes(plan: Plan) -> str:
    return f"{plan.columns}c x {plan.arcs}a / {plan.warps}w"


def _changes(plan: Plan, other: Plan) -> str:
    fields = [f for f in ("pad", "rows", "chunk") if getattr(plan, f) != getattr(other, f)]
    return ", ".join(f"{f}={getattr(other, f)}" for f in fields)


def wide() -> None:
    """Compare reads of 602 columns, whose rows are not aligned: slices of 128 bytes to whole rows, also padded."""
    width, sector = 602, kernels.padded_width
    for name in ("power law", "products, community", "products, random", "reddit, random"):
        s = graph(name)
        for dtype in TYPES:
            x, default = features(s.num_cols, width, dtype=dtype), _default(s, width, dtype)
            out = torch.empty(s.num_rows, width, device=DEVICE, dtype=dtype)
            times = {}
            for columns, arcs, warps in (
                (32, 8, 1), (64, 8, 1), (64, 4, 1), (128, 4, 1), (128, 8, 2), (256, 2, 1), (256, 4, 2), (512, 2, 2),
                (1024, 2, 4), (1024, 1, 2),
            ):  # fmt: skip
                for pad in (False, True):
                    kernels.padded_width = lambda w, size, degree: -(-w * size // 32) * 32 // size
                    plan = replace(default, columns=columns, arcs=arcs, warps=warps, pad=pad)
                    run = partial(kernels.spmm_as, plan, Adjacency(s), x, out, False)
                    times[f"{_sizes(plan)}{' padded' if pad else ''}"] = bench.ms(run, 3, 1)
            kernels.padded_width = sector
            times[f"default {_sizes(default)}"] = bench.ms(partial(kernels.spmm, Adjacency(s), x, out, False), 3, 1)
            bench.note(f"wide/{name}/{short(dtype)}", times)
            print(f"{name} {width} {short(dtype)}", flush=True)
            for plan_name in sorted(times, key=times.__getitem__):
                print(f"      {times[plan_name]:7.2f} ms  {plan_name}", flush=True)


def mapped() -> None:
    """Time GraphSAGE's first layer on 10M rows of 128, both passes: dropout stored, or recomputed in blocks."""
    n, width, out = scaled(10_000_000), 128, 48
    ids = torch.arange(n, device=DEVICE)
    for dtype in TYPES:
        own, mean = (features(n, width, dtype=dtype) for _ in range(2))
        weights = [features(out, width, dtype=dtype).requires_grad_() for _ in range(2)]
        grad = features(n, out, dtype=dtype)

        def both(own=own, mean=mean, weights=weights, grad=grad) -> object:
            first, second = RowMap(p=0.5, key=1)(own, ids), RowMap(p=0.5, key=2)(mean, ids)
            y = add_linear(linear(first, weights[0]), second, weights[1])
            return torch.autograd.grad(y, weights, grad)

        floor = 4 * own.nbytes / 4e9
        before = dict(view.KEPT_BYTES), dict(view.BLOCK_BYTES)
        for block in (0, 16, 32, 64, 128, 256, 512):
            view.KEPT_BYTES.update(dict.fromkeys(view.KEPT_BYTES, 0 if block else 1 << 62))
            view.BLOCK_BYTES.update(dict.fromkeys(view.BLOCK_BYTES, block << 20))
            ms, name = bench.ms(both, 5, 2), f"blocks of {block} MiB" if block else "kept"
            bench.note(f"mapped/{short(dtype)}/{name}", ms)
            print(
                f"{short(dtype)} {name:20s} {ms:7.2f} ms; reading the rows four times at 4 TB/s: {floor:.2f}",
                flush=True,
            )
        view.KEPT_BYTES.update(before[0])
        view.BLOCK_BYTES.update(before[1])


def rows() -> None:
    """Time low-bit rows, dropout and adding rows, as a share of the rate of a copy."""
    n, width = scaled(2_000_000), 256
    x, out = features(n, width), features(n, width)
    copied = 2 * x.nbytes / bench.ms(lambda: out.copy_(x)) / 1e9
    print(f"a copy moves {copied:.2f} TB/s")
    bench.note("rows/copy TB/s", copied)
    chosen = torch.randperm(n, device=DEVICE)[: n // 2].sort().values
    ids = torch.arange(n, device=DEVICE)

    def show(name: str, ms: float, nbytes: float) -> None:
        rate = nbytes / ms / 1e9
        bench.note(f"rows/{name}", {"ms": ms, "TB/s": rate, "of copy": rate / copied})
        print(f"{name:44s} {ms:6.3f} ms, {rate:.2f} TB/s = {rate / copied:4.0%} of a copy", flush=True)

    for dtype in TYPES:
        xs, row = x.to(dtype), width * dtype.itemsize
        outs = out.to(dtype)
        for bits in (1, 2, 4, 8):
            some, wire = xs[: n // 2], torch.zeros(n // 2, row_bytes(width, bits), dtype=torch.uint8, device=DEVICE)
            ms = bench.ms(lambda some=some, b=bits, w=wire: kernels.lowbit_encode(some, 1, b, w))
            show(f"encode {bits} bits, {short(dtype)}", ms, len(some) * row + wire.nbytes)
            ms = bench.ms(lambda o=outs[: n // 2], b=bits, w=wire: kernels.lowbit_decode(w, b, o))
            show(f"decode {bits} bits, {short(dtype)}", ms, len(some) * row + wire.nbytes)
        y = act_dropout(xs, ids, key=1, p=0.5, act="relu")
        ms = bench.ms(lambda xs=xs: kernels.dropout(xs, ids, 1, 0.5, True))
        show(f"relu, dropout, {short(dtype)}", ms, 2 * xs.nbytes)
        ms = bench.ms(lambda xs=xs, y=y: kernels.relu_dropout_grad(xs, y, 0.5))
        show(f"its gradient, {short(dtype)}", ms, 3 * xs.nbytes)
        values = xs[: len(chosen)].contiguous()
        ms = bench.ms(lambda o=outs, v=values: add_rows(o, chosen, v))
        show(f"add rows, {short(dtype)}", ms, 3 * values.nbytes + chosen.nbytes)


def norm() -> None:
    """Time layer norm of ogbn-products' rows, both passes, compared with torch; then other tile and grid sizes."""
    n = scaled(2_449_029)
    for dtype in TYPES:
        for width in (48, 100, 128, 256):
            x, grad = features(n, width, dtype=dtype), features(n, width, dtype=dtype)
            weight, bias = (torch.randn(width, device=DEVICE, dtype=dtype) for _ in range(2))
            out = torch.empty_like(x)
            copied = bench.ms(lambda out=out, x=x: out.copy_(x))

            def passes(run=kernels, x=x, grad=grad, weight=weight, bias=bias) -> tuple[float, float]:
                return (
                    bench.ms(lambda: run.layer_norm(x, weight, bias, 1e-5)),
                    bench.ms(lambda: run.layer_norm_grad(grad, x, weight, 1e-5)),
                )

            leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
            y = torch.nn.functional.layer_norm(leaves[0], (width,), *leaves[1:])
            forward = bench.ms(lambda x=x, w=weight, b=bias: torch.nn.functional.layer_norm(x, w.shape, w, b))
            backward = bench.ms(lambda y=y, leaves=leaves, g=grad: torch.autograd.grad(y, leaves, g, retain_graph=True))
            kept = kernels.NORM_NUMBERS, kernels.NORM_PROGRAMS
            for numbers, programs in ((512, 2048), (1024, 2048), (1024, 1024), (256, 4096), (2048, 1024), (512, 4096)):
                kernels.NORM_NUMBERS, kernels.NORM_PROGRAMS = numbers, programs
                ours = passes()
                name = f"norm/{width}/{short(dtype)}/{numbers} numbers, {programs} programs"
                bench.note(name, {"ms": ours, "torch": (forward, backward), "copy": copied})
                print(
                    f"{name:52s} {ours[0]:.3f} + {ours[1]:.3f} ms; torch {forward:.3f} + {backward:.3f}; "
                    f"a copy {copied:.3f}, 1.5 copies {1.5 * copied:.3f}",
                    flush=True,
                )
            kernels.NORM_NUMBERS, kernels.NORM_PROGRAMS = kept


def attention() -> None:
    """Time 4 heads of 32, forward and backward: fused, and in steps that store one number per arc."""
    for name in ("reddit, community", "reddit, random", "products, community", "products, random"):
        s = graph(name)
        assert s.T is s
        for dtype in TYPES:
            shapes = ((s.num_rows, 4), (s.num_cols, 4), (s.num_cols, *HEADS))
            leaves = [features(*shape, dtype=dtype).requires_grad_() for shape in shapes]
            grad = features(s.num_rows, *HEADS, dtype=dtype)
            for kind, run in (("fused", attend), ("in steps", _attend_in_steps)):
                if kind == "in steps" and (dtype != torch.float32 or "random" in name):
                    continue

                def both(run=run, s=s, leaves=leaves, grad=grad) -> object:
                    return _with_gradients(run, s, leaves, grad)

                with torch.no_grad():
                    forward = bench.ms(lambda run=run, s=s, leaves=leaves: run(s, *leaves), 5, 1)
                total, peak = bench.ms(both, 5, 1), bench.peak(both)
                rate = 2 * s.num_arcs * 128 * dtype.itemsize / total / 1e9
                bench.note(
                    f"attention/{name}/{short(dtype)}/{kind}", {"inference": forward, "both": total, "GiB": peak}
                )
                text = f"inference {forward:6.2f} ms, with backward {total:6.2f} ms ({rate:.1f} TB/s of two gathers)"
                print(f"{name:20s} {short(dtype)} {kind:8s}: {text}, {peak:.2f} GiB", flush=True)


def bits() -> None:
    """Check that four runs give the same bits."""
    s = graph("reddit, random")
    for dtype in TYPES:
        shapes = ((s.num_rows, 4), (s.num_cols, 4), (s.num_cols, *HEADS))
        leaves = [features(*shape, dtype=dtype).requires_grad_() for shape in shapes]
        grad = features(s.num_rows, *HEADS, dtype=dtype)

        def everything(leaves=leaves, grad=grad) -> list[Tensor]:
            return [spmm(Adjacency(s), leaves[2].detach().flatten(1)), *_with_gradients(attend, s, leaves, grad)]

        first = everything()
        same = all(torch.equal(a, b) for _ in range(3) for a, b in zip(first, everything(), strict=True))
        bench.note(f"bits/{short(dtype)}", same)
        print(f"{short(dtype)}: {'the same' if same else 'DIFFERENT'}", flush=True)


def structures() -> None:
    """Time the set-up: detecting that a graph is undirected, transposing a directed one, finding long rows."""
    s = graph("reddit, random")
    fresh = Structure(s.indptr, s.indices, s.num_cols)
    directed = Structure(s.indptr, s.indices.flip(0), s.num_cols)
    steps = {
        "check of the indices": lambda: Structure(s.indptr, s.indices, s.num_cols),
        "undirected: T": lambda: Structure(s.indptr, s.indices, s.num_cols).T,
        "directed: T": lambda: Structure(s.indptr, directed.indices, s.num_cols).T,
        "directed: perm": lambda: Structure(s.indptr, directed.indices, s.num_cols).perm,
        "long rows": lambda: Structure(s.indptr, s.indices, s.num_cols).long_rows(4096),
    }
    assert fresh.T is fresh
    for name, step in steps.items():
        ms, peak = bench.ms(step, 3, 1), bench.peak(step)
        bench.note(f"structures/{name}", {"ms": ms, "GiB": peak})
        print(f"{name:24s} {ms:8.1f} ms, {peak:.2f} GiB", flush=True)


def papers() -> None:
    """Time a product of papers100M's size."""
    graph.cache_clear()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    s = papers_graph(scaled(111_059_956), scaled(3_231_000_000), device=DEVICE)
    print(f"{s.num_rows} rows, {s.num_arcs} arcs", flush=True)
    for width, dtype in ((48, torch.bfloat16), (48, torch.float32), (128, torch.bfloat16)):
        x = torch.ones(s.num_cols, width, device=DEVICE, dtype=dtype)
        out = torch.empty(s.num_rows, width, device=DEVICE, dtype=dtype)
        default = _default(s, width, dtype)
        plans = [default, *(replace(default, rows=r) for r in (1, 4, 8)), replace(default, arcs=2 * default.arcs)]
        plans.append(replace(default, arcs=max(2, default.arcs // 2)))
        for plan in dict.fromkeys(plans):
            ms = bench.ms(lambda plan=plan, x=x, out=out: kernels.spmm_as(plan, Adjacency(s), x, out, False), 2, 1)
            rate = s.num_arcs * width * x.element_size() / ms / 1e9
            bench.note(f"papers/{width} {short(dtype)}/{plan}", ms)
            mark = "default" if plan == default else "       "
            print(f"width {width} {short(dtype)} {mark} {ms:6.1f} ms, {rate:.2f} TB/s: {plan}", flush=True)
        wanted = s.indptr.diff()[:, None].expand(-1, width)[:1000].to(dtype)
        print(f"      the first rows are {'right' if torch.equal(out[:1000], wanted) else 'WRONG'}", flush=True)
        del x, out


if __name__ == "__main__":
    if DEVICE == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    torch.manual_seed(0)
    sections = (check, product, tune, wide, rows, norm, mapped, attention, bits, structures, papers)
    bench.run({section.__name__: section for section in sections}, [name for name in args.only.split(",") if name])
