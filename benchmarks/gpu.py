"""Epochs on one GPU compared with PyG, and their cost: all tables from one command in under 8 minutes.

    PYTHONPATH=src python benchmarks/gpu.py [--only reddit,products,papers,where,startup] [--out FOLDER]

Graphs are generated on the device from a seed, with the sizes of Reddit, ogbn-products and ogbn-papers100M. Times are
medians of CUDA events around whole epochs. The floor of an epoch is the time to move its minimum bytes at the rate of a
copy on this card (gpu_floor.py), shown with its share of the epoch.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu_common import Bench, Shape, community_graph, data_of, part_of, undirected_papers, write_graph
from gpu_floor import Floor, Size, copy_rate, floor_of
from torch import Tensor, nn

from fullgraph import nn as fgnn
from fullgraph.nn import ModelSpec
from fullgraph.ops import Structure
from fullgraph.partition import Part
from fullgraph.run import Run, build_trainer
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import Trainer
from fullgraph.transport import SingleRank

warnings.simplefilter("ignore")  # warnings of torch's CSR and of PyG's scripted helpers
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--only", default="", help="sections, separated by commas")
parser.add_argument("--scale", type=float, default=1.0, help="make all graphs smaller, for a trial")
parser.add_argument("--epochs", type=int, default=7)
parser.add_argument("--out", default="", help="a folder for JSON; else $OUT")
args = parser.parse_args()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
bench = Bench("gpu", DEVICE, args.out)


REDDIT = Shape("reddit", 232_965, 114_615_892, 41, 602, 41, 4, 256, 0.66).scaled(args.scale)
PRODUCTS = Shape("products", 2_449_029, 123_718_280, 47, 100, 47, 3, 128, 0.08).scaled(args.scale)
PAPERS = Shape("papers100M", 111_059_956, 3_231_371_744, 0, 128, 172, 3, 48, 0.011).scaled(args.scale)


def trainer_of(
    part: Part, spec: ModelSpec, precision: str, *, precompute: bool = True, all_rows: bool = False, order: str = "auto"
) -> Trainer:
    config = TrainConfig(
        epochs=10**6, precision=precision, eval_every=10**6, precompute=precompute, all_rows=all_rows, order=order,
        device=DEVICE,
    )  # fmt: skip
    return build_trainer(Run(model=spec, train=config), part, SingleRank())


@cache
def rate() -> float:
    """Return the bytes per second of a copy on this card."""
    found = copy_rate(bench, 1 << 30 if DEVICE == "cuda" else 1 << 24)
    bench.note("copy TB/s", found / 1e12)
    print(f"a copy moves {found / 1e12:.2f} TB/s", flush=True)
    return found


def floor_at(trainer: Trainer, part: Part, spec: ModelSpec, precision: str, name: str, *, known: bool) -> Floor:
    """Return the floor of an epoch, and record it by kind."""
    facts, sizes = part.manifest.graph, []
    for layer in range(spec.layers):
        rows = trainer.shard.train.view.rows(layer)
        arcs = sum(s.num_arcs for s in (rows.matrices.inner.structure, rows.matrices.outer.structure))
        sizes.append(Size(rows.targets, rows.sources, arcs or rows.matrices.arcs.num_arcs))
    widths = [facts.features, *[spec.hidden] * (spec.layers - 1), facts.classes]
    itemsize = 2 if precision == "bf16" else 4
    floor = floor_of(spec.name, sizes, widths, itemsize, known=known, norm=spec.norm != "none")
    about = {"bytes": floor.bytes, "gathered": floor.gathered, "flops": floor.flops}
    bench.note(f"{name} floor", {"ms": floor.total / rate() * 1e3, **about})
    return floor


def epochs(step: Callable[[], object], name: str, floor: Floor | None = None) -> tuple[float, float]:
    """Return median milliseconds of a training step, and the device's peak memory in GiB."""
    free()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    ms = bench.ms(step, rounds=args.epochs)
    peak = torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0
    bench.note(name, {"ms": ms, "peak_gib": peak})
    told = ""
    if floor is not None:
        least = floor.total / rate() * 1e3
        told = f"   floor {least:7.2f} ms = {least / ms:4.0%}; {floor.gathered / 1e9:.0f} GB gathered, "
        told += f"{floor.flops / 1e12:.2f} Tflop"
    print(f"{name:48} {ms:9.2f} ms {peak:8.2f} GiB{told}", flush=True)
    return ms, peak


def free() -> None:
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.synchronize()


def ours(part: Part, spec: ModelSpec, precision: str, name: str, **options: bool | str) -> float:
    start = time.perf_counter()
    trainer = trainer_of(part, spec, precision, **options)
    free()
    bench.note(f"{name} set-up s", set_up := time.perf_counter() - start)
    print(f"    set up in {set_up:.2f} s", flush=True)
    known = options.get("precompute", True) and not spec.encodes and spec.aggregation != "attention"
    floor = floor_at(trainer, part, spec, precision, name, known=known)
    first, _ = trainer.train_step()
    ms, _ = epochs(trainer.train_step, name, floor)
    last, _ = trainer.train_step()
    bench.note(f"{name} loss", [float(first), float(last)])
    if not float(last) < float(first):
        print(f"    its loss went from {float(first):.4f} to {float(last):.4f}", flush=True)
    return ms


class PyG(nn.Module):
    """The same model, as PyG users write it."""

    def __init__(self, kind: str, shape: Shape) -> None:
        from torch_geometric.nn import GATConv, GCNConv, SAGEConv

        super().__init__()
        widths = [shape.features, *[shape.hidden] * (shape.layers - 1), shape.classes]
        make = {
            "sage": lambda i, o, last: SAGEConv(i, o),
            "gcn": lambda i, o, last: GCNConv(i, o),
            "gat": lambda i, o, last: GATConv(i, o if last else o // 4, heads=4, concat=not last),
        }[kind]
        pairs = list(pairwise(widths))
        self.convs = nn.ModuleList(make(i, o, k == len(pairs) - 1) for k, (i, o) in enumerate(pairs))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths[1:-1])

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = F.dropout(norm(conv(x, adjacency)).relu(), 0.5, self.training)
        return self.convs[-1](x, adjacency)


def pyg(kind: str, shape: Shape, s: Structure, x: Tensor, y: Tensor, train: Tensor, form: str) -> float | None:
    """Time PyG on the same data; print its error and return None if it runs out of memory."""
    name = f"{shape.name} {kind} PyG {form}"
    try:
        torch.manual_seed(0)
        if form == "CSR":
            ones = torch.ones(s.num_arcs, device=DEVICE)
            adjacency = torch.sparse_csr_tensor(s.indptr, s.indices.long(), ones, s.shape)
        else:
            rows = torch.repeat_interleave(torch.arange(s.num_rows, device=DEVICE), s.indptr.diff())
            adjacency = torch.stack([s.indices.long(), rows])
        model = PyG(kind, shape).to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step() -> None:
            loss = F.cross_entropy(model(x, adjacency)[train], y[train])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return epochs(step, name)[0]
    except (torch.OutOfMemoryError, RuntimeError, ValueError, NotImplementedError) as error:
        told = " ".join(str(error).split())[:150]
        print(f"{name:48} {type(error).__name__}: {told}", flush=True)
        bench.note(name, told)
        return None


def beside_pyg(shape: Shape, orders: tuple[str, ...]) -> None:
    x, y, train = data_of(shape, DEVICE)
    for order in orders:
        s = community_graph(shape.nodes, shape.arcs, shape.communities, inside=0.8, order=order, device=DEVICE)
        part = part_of(shape, s, x, y, train)
        common = {"layers": shape.layers, "hidden": shape.hidden, "norm": "layer", "input_dropout": True}
        sage = fgnn.GraphSAGE(**common)
        label = f"{shape.name} ({order})"
        mine = {p: ours(part, sage, p, f"{label} sage {p}") for p in ("fp32", "tf32", "bf16")}
        ours(part, sage, "fp32", f"{label} sage fp32, all rows", all_rows=True)
        ours(part, sage, "fp32", f"{label} sage fp32, rows in the given order", order="given")
        ours(part, sage, "fp32", f"{label} sage fp32, all rows, layer 0 not ahead", all_rows=True, precompute=False)
        for kind, spec in (("gcn", fgnn.GCN(**common)), ("gat", fgnn.GAT(**{**common, "layers": 3, "hidden": 128}))):
            for precision in ("fp32", "bf16"):
                ours(part, spec, precision, f"{label} {kind} {precision}")
        theirs = pyg("sage", shape, s, x, y, train, "CSR")
        if theirs:
            told = ", ".join(f"{p} {theirs / ms:.2f}x" for p, ms in mine.items())
            print(f"    faster than PyG's CSR: {told}", flush=True)
        if order == orders[0]:
            for kind in ("gcn", "gat"):
                deep = replace(shape, layers=3, hidden=128) if kind == "gat" else shape
                pyg(kind, deep, s, x, y, train, "CSR")
                pyg(kind, deep, s, x, y, train, "edge_index")
            pyg("sage", shape, s, x, y, train, "edge_index")
        del s, part
        free()


def reddit() -> None:
    """Reddit's size: GraphSAGE 4x256, layer norm, dropout 0.5."""
    beside_pyg(REDDIT, ("community", "random"))


def products() -> None:
    """ogbn-products' size: GraphSAGE 3x128."""
    beside_pyg(PRODUCTS, ("random", "community"))


def papers() -> None:
    """ogbn-papers100M's size in both directions on one card: GraphSAGE 3x48."""
    s = undirected_papers(PAPERS.nodes, PAPERS.arcs, device=DEVICE)
    print(f"{s.num_rows:,} nodes, {s.num_arcs:,} arcs", flush=True)
    s = s.to("cpu")  # like a part from its files
    x, y, train = (values.cpu() for values in data_of(PAPERS, DEVICE, torch.bfloat16))
    part = part_of(PAPERS, s, x, y, train)
    del s, x, y, train
    spec = fgnn.GraphSAGE(layers=PAPERS.layers, hidden=PAPERS.hidden, norm="none", input_dropout=True)
    ours(part, spec, "bf16", "papers100M sage 3x48 bf16")


KINDS = {  # kind of work -> texts in kernels' names
    "product": ("product", "add_pieces"),
    "attention": ("attend", "softmax", "arc_"),
    "dense": ("gemm", "cutlass", "sgemm", "gemv", "xmma", "nvjet", "splitK"),
    "norm": ("layer_norm", "LayerNorm", "GammaBeta"),
    "dropout and activation": ("dropout",),
    "copies and fills": ("copy", "fill", "memset", "Memset", "Memcpy", "CatArray"),
    "optimizer": ("adam", "multi_tensor", "lerp", "foreach"),
}


def where() -> None:
    """Show an epoch's time on the device by kind of kernel."""
    from torch.profiler import ProfilerActivity, profile

    for shape in (REDDIT, PRODUCTS):
        x, y, train = data_of(shape, DEVICE)
        order = "community" if shape is REDDIT else "random"
        s = community_graph(shape.nodes, shape.arcs, shape.communities, inside=0.8, order=order, device=DEVICE)
        part = part_of(shape, s, x, y, train)
        spec = fgnn.GraphSAGE(layers=shape.layers, hidden=shape.hidden, norm="layer", input_dropout=True)
        for precision in ("fp32", "bf16"):
            trainer = trainer_of(part, spec, precision)
            for _ in range(3):
                trainer.train_step()
            with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
                for _ in range(3):
                    trainer.train_step()
                free()
            total: dict[str, float] = {}
            kernels = [k for k in found.key_averages() if k.self_device_time_total > 0]
            for kernel in kernels:
                kind = next((n for n, words in KINDS.items() if any(w in kernel.key for w in words)), "other")
                total[kind] = total.get(kind, 0.0) + kernel.self_device_time_total / 3e3
            told = ", ".join(f"{kind} {ms:.1f}" for kind, ms in sorted(total.items(), key=lambda item: -item[1]))
            print(f"{shape.name} ({order}) {precision}: {sum(total.values()):.1f} ms on the device: {told}", flush=True)
            for kernel in sorted(kernels, key=lambda k: -k.self_device_time_total)[:22]:
                each = kernel.self_device_time_total / 3e3
                print(f"    {each:7.2f} ms {kernel.count / 3:5.0f}x  {kernel.key[:110]}", flush=True)
            bench.note(f"where/{shape.name} {precision}", total)
            del trainer
        del s, part, x, y, train
        free()


def startup() -> None:
    """Time the start from a .npz of Reddit's size to the end of the first epoch: kernels compiled, then cached."""
    with tempfile.TemporaryDirectory() as name:
        folder, shape = Path(name), REDDIT
        s = community_graph(shape.nodes, shape.arcs, shape.communities, inside=0.8, order="community", device=DEVICE)
        write_graph(folder / "graph.npz", s, shape.features, shape.classes, train=shape.train)
        size = (folder / "graph.npz").stat().st_size / 2**30
        print(f"{s.num_rows:,} nodes, {s.num_arcs:,} arcs, {size:.2f} GiB", flush=True)
        del s
        free()
        model = ["--layers", shape.layers, "--hidden", shape.hidden, "--norm", "layer", "--input-dropout"]
        flags = ["--parts", 1, "--device", DEVICE, "--epochs", 3, "--eval-every", 10**6, "--checkpoint-every", 0]
        environ = {**os.environ, "TRITON_CACHE_DIR": str(folder / "kernels")}
        for title in ("kernels compiled", "kernels cached"):
            out = folder / title.replace(" ", "-")
            command = [sys.executable, "-m", "fullgraph", "train", folder / "graph.npz", *model, *flags, "--out", out]
            began, first = time.perf_counter(), float("nan")
            with subprocess.Popen(
                [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
            ) as run:
                assert run.stdout is not None
                said = []
                for line in run.stdout:
                    said.append(line)
                    if line.startswith("started in"):
                        first = time.perf_counter() - began
            if run.returncode:
                raise RuntimeError(
                    f"{' '.join(map(str, command))} exited with {run.returncode}: {''.join(said)[-2000:]}"
                )
            result = json.loads((out / "result.json").read_text())
            phases = result["startup_s"]
            bench.note(f"startup/{title}", {"first_epoch_s": first, "phases": phases, "epoch_s": result["epoch_s"]})
            told = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in phases.items())
            print(f"{title}: first epoch {first:.1f} s after the command ({told}); the whole command "
                  f"{time.perf_counter() - began:.1f} s", flush=True)  # fmt: skip


SECTIONS = {"reddit": reddit, "products": products, "papers": papers, "where": where, "startup": startup}

if __name__ == "__main__":
    print(torch.cuda.get_device_name() if DEVICE == "cuda" else "no GPU", "torch", torch.__version__, flush=True)
    bench.run(SECTIONS, [name for name in args.only.split(",") if name])
