"""One process compared with PyG, and two ranks with one process: seconds per epoch and peak memory of GraphSAGE.

    .venv/bin/python benchmarks/single.py          # about ten minutes on 2 cores

All contenders use the same graph, model, optimizer and number of threads; every run is a separate process, contenders
take turns, and a figure is the median over turns of a run's median epoch after warm-up. Evaluation is not timed.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from common import run, seconds, show, size, train

from fullgraph.lab.bench.peers import Figures, Order
from fullgraph.storage import read_record, write_document
from fullgraph.values import tree_of

PYG = {
    "PyG edge_index": "edge_index",
    "PyG CSR, mean": "csr-mean",
    "PyG CSR, weighted sum": "csr-sum",
    "PyG edge_index, huge pages": "edge_index",
    "PyG CSR, mean, huge pages": "csr-mean",
}
# Environment that fullgraph sets for its ranks (train/fork_server.py), and a careful user could set for PyG.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OMP_WAIT_POLICY": "passive"}


def main() -> None:
    options = parse()
    if options.out:
        return make_graph(options.graph, options.out)
    spec = (
        f"sbm:nodes={options.nodes},edges={options.arcs // 2},features={options.features},"
        f"classes={options.classes},p_in={options.p_in},seed=0"
    )
    figures: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = folder / "graph.npz"
        run([__file__, "--graph", spec, "--out", graph])  # in a separate process
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
    parser.add_argument("--graph", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def pyg(kind: str, environ: dict[str, str]) -> Any:
    def measure(options: argparse.Namespace, graph: Path, out: Path) -> dict[str, float]:
        # Rounds of one epoch, so that a figure is the median epoch. This process stays small: it does not import torch.
        chosen = {name: getattr(options, name) for name in ("hidden", "layers", "threads")}
        order = Order(graph=str(graph), kind=kind, out=str(out), epochs=1, rounds=options.epochs, **chosen)
        file = out.with_suffix(".order")
        write_document(file, tree_of(order))
        run(["-m", "fullgraph.lab.bench.peers", file], threads=options.threads, environ=environ)
        found = read_record(Figures, out, fix="run it again")
        return {"epoch_s": median(found.round_s), "bytes": found.peak_memory_bytes, "loss": found.loss}

    return measure


def ours(ranks: int, *flags: str) -> Any:
    def measure(options: argparse.Namespace, graph: Path, out: Path) -> dict[str, float]:
        threads = max(1, options.threads // ranks)
        arguments: list[object] = ["--parts", ranks, "--strategy", "vanilla", "--model", "sage"]
        arguments += [
            "--layers",
            options.layers,
            "--hidden",
            options.hidden,
            "--norm",
            "none",
            "--dropout",
            0.5,
            "--lr",
            0.01,
        ]
        # One evaluation, at the end, and more epochs: they are shorter, and result.json leaves out its own warm-up.
        arguments += ["--epochs", 2 * options.epochs, "--eval-every", 2 * options.epochs, "--threads", threads]
        arguments += ["--checkpoint-every", 0]
        result = train(graph, out, *arguments, *flags, threads=threads)
        return {"epoch_s": result["epoch_s"], "bytes": result["peak_memory_bytes"], "wait_s": result["wait_s"]}

    return measure


CONTENDERS = {
    **{name: pyg(kind, HUGE_PAGES if "huge" in name else {}) for name, kind in PYG.items()},
    "fullgraph": ours(1),
    "fullgraph, all rows": ours(1, "--all-rows"),
    "fullgraph, no precompute": ours(1, "--no-precompute"),
    "fullgraph, 2 ranks": ours(2),
}


def report(options: argparse.Namespace, figures: dict[str, dict[str, float]]) -> None:
    """Print every contender's ratio to the one-process run: above 1 is slower, or larger, than fullgraph."""
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
        f"GraphSAGE {options.layers}x{options.hidden}, {options.nodes:,} nodes, {options.arcs:,} edges, "
        f"{options.features} features, {options.threads} threads in all; peak memory of the worst process"
    )
    show(title, ["", "epoch", "to fullgraph", "peak memory", "to fullgraph"], rows)
    csr = [f for name, f in figures.items() if name.startswith("PyG CSR") and "huge" not in name]
    if csr and "fullgraph" in figures:
        best = min(f["epoch_s"] for f in csr)
        print(f"faster than PyG's better CSR path {best / base['epoch_s']:.2f}x (target 3.5)", end="")
        if "PyG edge_index" in figures:
            print(
                f", than its edge_index path {figures['PyG edge_index']['epoch_s'] / base['epoch_s']:.2f}x (target 8)",
                end="",
            )
        print()
    if "fullgraph, 2 ranks" in figures and "fullgraph" in figures:
        ratio = figures["fullgraph, 2 ranks"]["epoch_s"] / base["epoch_s"]
        print(f"two ranks of one thread take {ratio:.2f} of one process with two (target at most 1.15)")


def make_graph(spec: str, path: Path) -> None:
    """Write the generated graph as `.npz`, so that every contender reads the same file."""
    from fullgraph.data import load, save_npz

    save_npz(load(spec), path)


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    sys.exit(main())
