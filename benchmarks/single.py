"""One process against PyG, and two ranks against one process: seconds per epoch and peak memory of GraphSAGE.

    .venv/bin/python benchmarks/single.py          # about ten minutes on 2 cores

The same graph, model, optimiser and number of threads for all; every run is a process of its own, the contenders
take turns, and a figure is the median over turns of a run's median epoch after warm-up. Evaluation is not timed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from common import run, seconds, show, size, train

PYG = {
    "PyG edge_index": "edge_index",
    "PyG CSR, mean": "csr-mean",
    "PyG CSR, weighted sum": "csr-sum",
    "PyG edge_index, huge pages": "edge_index",
    "PyG CSR, mean, huge pages": "csr-mean",
}
# What fullgraph gives its own ranks (train/launch.py) and a careful user could give PyG.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OMP_WAIT_POLICY": "passive"}
WARM_UP = 2


def main() -> None:
    options = parse()
    if options.child:
        return child(options)
    spec = (
        f"sbm:nodes={options.nodes},edges={options.arcs // 2},features={options.features},"
        f"classes={options.classes},p_in={options.p_in},seed=0"
    )
    figures: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = folder / "graph.npz"
        run([__file__, "--child", "make", "--graph", spec, "--out", graph])
        for turn in range(options.repeats):
            for contender in options.only or CONTENDERS:
                out = folder / f"{contender}-{turn}".replace(" ", "-").replace(",", "")
                figure = CONTENDERS[contender](options, graph, out)
                figures.setdefault(contender, []).append(figure)
                print(
                    f"turn {turn + 1}: {contender}: {seconds(figure['epoch_s'])}, {size(figure['bytes'])}", flush=True
                )
    report(options, {name: {key: median(f[key] for f in turns) for key in turns[0]} for name, turns in figures.items()})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [("nodes", 200_000), ("arcs", 4_000_000), ("features", 128), ("hidden", 128), ("layers", 3)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--classes", type=int, default=32)
    parser.add_argument("--p-in", type=float, default=0.9, help="share of edges inside a block of the model graph")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), help="a choice of contenders")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--graph", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def pyg(kind: str, environ: dict[str, str]) -> Any:
    def measure(options: argparse.Namespace, graph: Path, out: Path) -> dict[str, float]:
        arguments = [__file__, "--child", kind, "--graph", graph, "--out", out]
        for name in ("hidden", "layers", "threads", "epochs"):
            arguments += [f"--{name}", getattr(options, name)]
        run(arguments, threads=options.threads, environ=environ)
        figure: dict[str, float] = json.loads(out.read_text())
        return figure

    return measure


def ours(ranks: int, *flags: str) -> Any:
    def measure(options: argparse.Namespace, graph: Path, out: Path) -> dict[str, float]:
        threads = max(1, options.threads // ranks)
        arguments: list[object] = ["--parts", ranks, "--strategy", "vanilla", "--model", "sage"]
        arguments += ["--layers", options.layers, "--hidden", options.hidden, "--dropout", 0.5, "--lr", 0.01]
        # One evaluation, at the end, and more epochs: they are shorter, and result.json takes its own warm-up off.
        arguments += ["--epochs", 2 * options.epochs, "--eval-every", 2 * options.epochs, "--threads", threads]
        arguments += ["--checkpoint-every", 0]
        result = train(graph, out, *arguments, *flags, threads=threads)
        return {"epoch_s": result["epoch_s"], "bytes": result["peak_memory_bytes"], "wait_s": result["wait_s"]}

    return measure


CONTENDERS = {
    **{name: pyg(kind, HUGE_PAGES if "huge" in name else {}) for name, kind in PYG.items()},
    "fullgraph": ours(1),
    "fullgraph, no precompute": ours(1, "--no-precompute"),
    "fullgraph, 2 ranks": ours(2),
}


def report(options: argparse.Namespace, figures: dict[str, dict[str, float]]) -> None:
    """Every contender as a ratio to the one-process run: above 1 is slower, or larger, than fullgraph."""
    base = figures.get("fullgraph", next(iter(figures.values())))
    rows = [
        (
            name,
            seconds(f["epoch_s"]),
            f"{f['epoch_s'] / base['epoch_s']:.2f}x",
            size(f["bytes"]),
            f"{f['bytes'] / base['bytes']:.2f}x",
        )
        for name, f in figures.items()
    ]
    title = (
        f"GraphSAGE {options.layers}x{options.hidden}, {options.nodes:,} nodes, {options.arcs:,} arcs, "
        f"{options.features} features, {options.threads} threads in all; peak memory of the worst process"
    )
    show(title, ["", "epoch", "to fullgraph", "peak memory", "to fullgraph"], rows)
    csr = [f for name, f in figures.items() if name.startswith("PyG CSR") and "huge" not in name]
    if csr and "fullgraph" in figures:
        best = min(f["epoch_s"] for f in csr)
        print(f"faster than PyG's better CSR path {best / base['epoch_s']:.2f}x (target 2)", end="")
        if "PyG edge_index" in figures:
            print(
                f", than its edge_index path {figures['PyG edge_index']['epoch_s'] / base['epoch_s']:.2f}x (target 5)",
                end="",
            )
        print()
    if "fullgraph, 2 ranks" in figures and "fullgraph" in figures:
        ratio = figures["fullgraph, 2 ranks"]["epoch_s"] / base["epoch_s"]
        print(f"two ranks of one thread take {ratio:.2f} of one process with two (target at most 1.15)")


def child(options: argparse.Namespace) -> None:
    if options.child == "make":
        make_graph(options.graph, options.out)
    else:
        options.out.write_text(json.dumps(train_pyg(options)))


def make_graph(spec: str, path: Path) -> None:
    """The generated graph in the `.npz` format, so that every contender reads the same file."""
    from fullgraph.data import load, save_npz

    save_npz(load(spec), path)


def train_pyg(options: argparse.Namespace) -> dict[str, float]:
    """Plain PyG: SAGEConv, relu, dropout 0.5, cross entropy on the training nodes, Adam."""
    import warnings

    warnings.simplefilter("ignore")  # torch.jit is deprecated, CSR is in beta: nothing of ours
    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch_geometric.nn import SAGEConv

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    file = np.load(options.graph, allow_pickle=False)
    x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"]).long()
    train_mask = torch.from_numpy(file["train_mask"])
    adjacency = adjacency_of(options.child, torch.from_numpy(file["edge_index"]).long(), len(x))
    widths = [x.shape[1], *[options.hidden] * (options.layers - 1), int(y.max()) + 1]
    aggr = "sum" if options.child == "csr-sum" else "mean"
    layers = torch.nn.ModuleList(SAGEConv(i, o, aggr=aggr) for i, o in pairwise(widths))
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
    times = []
    for _ in range(options.epochs):
        start = time.perf_counter()
        h = x
        for layer in layers[:-1]:
            h = F.dropout(layer(h, adjacency).relu(), 0.5)
        loss = F.cross_entropy(layers[-1](h, adjacency)[train_mask], y[train_mask])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - start)
    return {"epoch_s": median(times[WARM_UP:] or times), "bytes": peak_memory(), "loss": loss.item()}


def adjacency_of(kind: str, edge_index: Any, num_nodes: int) -> Any:
    """What SAGEConv is given: the edge list, or A^T as torch's CSR, whose product and gradient need no torch-sparse.

    `csr-mean` is the documented path (a reduced product); `csr-sum` puts 1/degree in the values for a plain one.
    """
    import torch
    from torch_geometric.utils import to_torch_csr_tensor

    if kind == "edge_index":
        return edge_index
    adjacency = to_torch_csr_tensor(edge_index.flip(0), size=(num_nodes, num_nodes))
    if kind == "csr-mean":
        return adjacency
    degree = adjacency.crow_indices().diff()
    values = (1.0 / degree.clamp(min=1)).repeat_interleave(degree)
    return torch.sparse_csr_tensor(adjacency.crow_indices(), adjacency.col_indices(), values, adjacency.shape)


def peak_memory() -> int:
    """VmHWM belongs to this program alone; ru_maxrss would count what forked it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this benchmark reads /proc/self/status and so needs Linux")


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    sys.exit(main())
