"""Bytes per epoch of every strategy, counted at the transport, compared with the cost model.

    .venv/bin/python benchmarks/volume.py [--graphs demo FILE.npz ...] [--ranks 2 4 8] [--model gcn] [--layers 8]

The cost model, in rows of a layer's width, for N nodes, P ranks and halos with B rows in total:

    partitioned         2 B          for each layer that communicates: the first layer's aggregation is computed ahead,
                                     unless sparse features are mapped first (vanilla, mixgcn); vanilla sends
                                     the smallest covers of cut edges, which have fewer rows and sums than B
    mixture             4 N (P-1)/P  likewise (exactly: N d - sum_r n_r d_r numbers for each of the four moves)
    pipeline, S stages  2 (S-1) N    for each tensor that travels, whatever the number of layers
    hybrid              both: 2 (S-1) N, and 2 B of the ways for each layer
    times               1/r for a share of 1/r columns; b/32 and four bytes per row for b bits

A mixture therefore sends less than parts if B > 2 N (P-1)/P. Ranks are simulated: bytes do not depend on the medium.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import ROOT, show, size

from fullgraph import nn, recipes
from fullgraph.data import Graph, load
from fullgraph.partition import Assignment, cut_parts, partition
from fullgraph.partition.cover import covered_rows
from fullgraph.recipes import Strategy
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Transport

STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vanilla": ("vanilla", {}),
    "vanilla, half": ("vanilla", {"codec": "half"}),
    "pipegcn": ("pipegcn", {}),
    "sylvie-s": ("sylvie-s", {}),
    "sylvie-a, 4 bits": ("sylvie-a", {"bits": 4}),
    "fixed, 1/4": ("fixed", {"ratio": 4}),
    "mixgcn": ("mixgcn", {}),
    "gnnpipe": ("gnnpipe", {}),
    "hybrid, 2 ways": ("gnnpipe-hybrid", {"ways": 2}),
}


def one_epoch(transport: Transport, graph: Graph, assignment: Assignment, recipe: Strategy, spec: nn.ModelSpec) -> int:
    """Return the payload bytes of this rank's second step."""
    part = cut_parts(graph, assignment, transport.rank)
    trainer = build_trainer(
        Run(model=spec, strategy=recipe, train=TrainConfig(epochs=2, all_rows=True)), part, transport
    )
    trainer.train_step()
    return trainer.train_step()[1].halo_bytes


def halo_rows(graph: Graph, part: np.ndarray[Any, Any]) -> int:
    """Return B: the number of pairs of a node and another part that reads it."""
    target = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    reader, source = part[target].astype(np.int64), graph.indices.astype(np.int64)
    return len(np.unique((source * (int(part.max()) + 1) + reader)[reader != part[source]]))


def formula(label: str, graph: Graph, assignment: Assignment, spec: nn.ModelSpec) -> int:
    """Return the cost model in bytes, float32; layer 0's aggregation is known, or an encoder comes first."""
    ranks, N, d = assignment.parts, graph.num_nodes, spec.hidden
    widths = [d] * (spec.graph_layers - (not spec.encodes))  # of the rows that each layer sends
    narrow = list(widths)  # of a strategy that maps rows first if they become narrower, or were sparse
    if not spec.encodes:
        narrow[-1] = min(d, graph.num_classes)
        narrow += [] if isinstance(graph.x, np.ndarray) else [d]
    B = halo_rows(graph, assignment.part)
    name, options = STRATEGIES[label]
    if name == "vanilla":
        return 2 * sum(covered_rows(graph, assignment)) * (2 if options else 4) * sum(narrow)
    if name.startswith("sylvie"):
        return sum(2 * B * (-(-width * options.get("bits", 1) // 8) + 4) for width in widths)
    if name == "fixed":
        return 2 * B * 4 * sum([*(max(1, width // options["ratio"]) for width in widths[:-1]), widths[-1]])
    if name == "mixgcn":
        rows = np.bincount(assignment.part, minlength=ranks)

        def moved(width: int) -> int:
            return N * width - int(rows @ [len(share) for share in np.array_split(np.arange(width), ranks)])

        return 4 * 4 * sum(moved(width) for width in narrow)
    if name.startswith("gnnpipe"):
        ways = options.get("ways", 1)
        stages, tensors = ranks // ways, 2 if isinstance(spec, nn.GCNII) else 1
        return 2 * (stages - 1) * N * d * 4 * tensors + 2 * halo_rows(graph, assignment.part // stages) * 4 * sum(
            widths
        )
    return 2 * B * 4 * sum(widths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = ROOT.parent / "shared" / "data"
    known = ["demo", *(str(data / f"{name}.npz") for name in ("pubmed", "squirrel") if data.exists())]
    parser.add_argument("--graphs", nargs="+", default=known)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--model", choices=["gcn", "sage", "resgcn", "gcnii"], default="gcn")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = nn.MODELS[options.model](layers=options.layers, hidden=options.hidden)
    blocks, wrong = len(spec.build(1, 2).blocks), 0
    for source in options.graphs:
        graph = load(source)
        found: dict[str, list[str]] = {label: [] for label in STRATEGIES}
        halos = []
        for ranks in options.ranks:
            metis = partition(graph, ranks)
            B = halo_rows(graph, metis.part)
            halos.append(f"{B / graph.num_nodes:.2f} N (crossover {2 * (ranks - 1) / ranks:.2f} N)")
            for label, (name, chosen) in STRATEGIES.items():
                if name.startswith("gnnpipe") and ranks // chosen.get("ways", 1) > blocks:
                    found[label].append("more stages than layers")
                    continue
                recipe = recipes.STRATEGIES.make(name, **chosen)
                cut = partition(graph, ranks, recipe.partitioner()) if recipe.partitioner() else metis
                body = partial(one_epoch, graph=graph, assignment=cut, recipe=recipe, spec=spec)
                counted, model = sum(run_threads(ranks, body, timeout=600)), formula(label, graph, cut, spec)
                wrong += counted != model
                found[label].append(f"{size(counted)} {'=' if counted == model else f'NOT {size(model)}'}")
        what = f"{options.model} {options.layers}x{options.hidden}"
        title = f"{Path(source).stem}, {graph.num_nodes} nodes, {what}: bytes of an epoch"
        rows = [("B, halo rows under METIS", *halos), *((label, *cells) for label, cells in found.items())]
        show(f"{title} ('=': as the cost model says, to the byte)", ["", *(f"{n} ranks" for n in options.ranks)], rows)
    if wrong:
        raise SystemExit(f"{wrong} figures differ from the cost model")


if __name__ == "__main__":
    main()
