"""What a mixture moves, how evenly it works, and what its pipeline of row blocks hides.

    .venv/bin/python benchmarks/mixture.py volume
    sudo .venv/bin/python benchmarks/mixture.py pipeline [--layers 5] [--nodes 60000] [--rounds 5]

volume: the bytes of one training step on 2, 3, 4 and 8 simulated ranks, counted, against the formula and divided by
(P - 1) / P; and the work of each rank, counted too: arcs times columns of its sparse products, rows of its dense ones.

pipeline: an epoch on two emulated hosts with 1, 2, 4 and 8 blocks, at a link rate at which C = M: C is the epoch with
one block on a link without limit, less what it waits, M the time in which an epoch's messages cross when nothing else
is done. All numbers of blocks take turns in one launch, and a time is the median of the rounds. Of one graph the
bandwidth-reducing order makes a band, in which a block reads its neighbours alone; of the other, of communities, not.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import fullgraph, seconds, show, size

from fullgraph.testing.hosts import Hosts

RANKS = (2, 3, 4, 8)
BLOCKS = (1, 2, 4, 8)
UNLIMITED = 40e9
HIDDEN = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["volume", "pipeline"])
    parser.add_argument("--nodes", type=int, default=60_000)
    parser.add_argument("--degree", type=int, default=50)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--body", nargs=2, type=Path, help=argparse.SUPPRESS)  # what each host runs: SHARDS OUT
    options = parser.parse_args()
    if options.body:
        body(*options.body, options)
    elif options.what == "volume":
        volume(options)
    else:
        pipeline(options)


def volume(options: argparse.Namespace) -> None:
    """Twenty-four classes, so that the narrow layer's columns, too, divide by the ranks."""
    import numpy as np

    import fullgraph as fg
    from fullgraph.ops import sparse
    from fullgraph.partition import partition
    from fullgraph.placement import Mixture
    from fullgraph.testing import run_threads, trainer_of
    from fullgraph.train.config import TrainConfig
    from fullgraph.transport import Counting, Transport

    graph = fg.load("sbm:nodes=20000,edges=200000,features=64,classes=24,seed=0")
    spec = fg.nn.GraphSAGE(layers=options.layers, hidden=HIDDEN)
    work: Counter[str] = Counter()
    kernels = sparse.backend

    class Counted:
        """The kernels of a tensor, whose products are counted for the rank that makes them."""

        def __init__(self, x: Any) -> None:
            self.inner = kernels(x)

        def spmm(self, adj: Any, x: Any, out: Any, add: bool) -> None:
            work[threading.current_thread().name] += adj.structure.num_arcs * x.shape[1]
            self.inner.spmm(adj, x, out, add)

    def step(transport: Transport) -> tuple[int, int, int]:
        numbers: Counter[str] = Counter()
        counting = Counting(transport, lambda key, n: numbers.update({key.use: n}))
        trainer = trainer_of(counting, case, spec, TrainConfig(epochs=1), placement=Mixture)
        numbers.clear()
        name = threading.current_thread().name
        before = work[name]
        trainer.train_step()
        return numbers["rows"], work[name] - before, len(trainer.shard.train.ids)

    def case(parts: int) -> Any:
        return graph, partition(graph, parts, method="contiguous")

    rows, sparse.backend = [], Counted  # type: ignore[assignment]
    for ranks in RANKS:
        moved, products, owned = zip(*run_threads(ranks, step, timeout=600.0), strict=True)
        shares = np.bincount(case(ranks)[1].part, minlength=ranks)
        formula = 0
        for width in (*[HIDDEN] * (options.layers - 2), graph.num_classes):  # layer 0 is known, the last mapped first
            columns = [len(share) for share in np.array_split(np.arange(width), ranks)]
            formula += 4 * 4 * (graph.num_nodes * width - int(shares @ columns))
        even = [f"{max(values) / statistics.mean(values):.4f}" for values in (products, owned)]
        rows.append((ranks, sum(moved), formula, f"{sum(moved) * ranks / (ranks - 1):.0f}", *even))
    columns = ["ranks", "bytes an epoch", "formula", "bytes / ((P-1)/P)", "sparse work, max/mean", "rows, max/mean"]
    show(f"{graph.num_nodes} nodes, {graph.num_arcs} arcs, GraphSAGE {options.layers}x{HIDDEN}", columns, rows)


def pipeline(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name, Hosts(2) as hosts:
        folder, rows = Path(name), []
        sbm = f"sbm:nodes={options.nodes},edges={options.nodes * options.degree // 2},features=64,p_in=0.99,seed=0"
        for kind, graph in (("band", band(folder / "band.npz", options)), ("communities", sbm)):
            for blocks in BLOCKS:
                cut = ["--partitioner", "banded", "-o", f"blocks={blocks}", "--parts", 2]
                fullgraph("partition", graph, *cut, "--out", folder / kind / str(blocks))

            def measure(rate: float, rounds: int, kind: str = kind) -> dict[str, Any]:
                hosts.rate(rate)
                out = folder / f"{kind}-{rate:.0f}.json"
                flags = ["--epochs", options.epochs, "--rounds", rounds, "--layers", options.layers]
                hosts.run([__file__, "pipeline", *flags, "--body", folder / kind, out])
                found: dict[str, Any] = json.loads(out.read_text())
                return found

            free = measure(UNLIMITED, 2)
            compute = free["1"]["epoch_s"] - free["1"]["wait_s"]
            found = measure(8 * free["bytes"] / 2 / compute, options.rounds)
            for blocks in map(str, BLOCKS):
                run = found[blocks]
                rows.append(
                    (kind, blocks, run["cells"], seconds(compute), seconds(found["wire_s"]), seconds(run["epoch_s"]),
                     f"{seconds(run['best_s'])} to {seconds(run['worst_s'])}", seconds(run["wait_s"]),
                     f"{found['1']['epoch_s'] / run['epoch_s']:.2f}x")
                )  # fmt: skip
            print(f"{kind}: {size(free['bytes'])} an epoch", flush=True)
    columns = ["graph", "blocks", "cells", "C", "M", "epoch, median", "rounds", "waiting", "to one block"]
    shape = f"{options.nodes} nodes, {options.nodes * options.degree} arcs, GraphSAGE {options.layers}x{HIDDEN}"
    show(f"{shape}, 2 hosts, {os.cpu_count()} cores, {options.rounds} rounds", columns, rows)


def band(path: Path, options: argparse.Namespace) -> Path:
    """Arcs to nodes nearby in an order that the ids do not show."""
    import numpy as np

    rng, nodes = np.random.default_rng(0), options.nodes
    source = np.repeat(np.arange(nodes), options.degree // 2)
    target = source + rng.integers(1, nodes // 100, len(source))
    source, target = source[target < nodes], target[target < nodes]
    ids, kind = rng.permutation(nodes), np.arange(nodes) % 10
    arcs = ids[np.stack([np.concatenate([source, target]), np.concatenate([target, source])])]
    masks = {f"{split}_mask": kind % 3 == k for k, split in enumerate(("train", "val", "test"))}
    np.savez(path, edge_index=arcs, x=rng.standard_normal((nodes, 64), dtype=np.float32), y=kind, **masks)
    return path


def body(shards: Path, out: Path, options: argparse.Namespace) -> None:
    """One rank: every number of blocks in turn, round after round; the first rank writes what was found."""
    import torch
    from rank import Rank

    from fullgraph import nn, recipes
    from fullgraph.transport import Key

    rank = Rank(shards / "1")
    link, over_ranks = rank.link, rank.over_ranks
    spec = nn.GraphSAGE(layers=options.layers, hidden=HIDDEN)

    def cross(turn: int, nbytes: int) -> float:
        """Seconds in which an epoch's messages cross, in eight pieces."""
        piece, peer = math.ceil(nbytes / 8), 1 - link.rank
        over_ranks(f"wire {turn}")
        start = time.perf_counter()
        sent = {peer: torch.zeros(piece, dtype=torch.uint8)}
        for message in [link.begin(Key(f"wire {n}", turn), sent, {peer: piece}) for n in range(8)]:
            message.wait()
        return float(over_ranks(f"wire {turn} took", time.perf_counter() - start).max())

    trainers = {
        blocks: rank.trainer(recipes.mixgcn(blocks=blocks), spec, epochs=options.epochs, shards=shards / str(blocks))
        for blocks in BLOCKS
    }
    rounds: dict[int, list[dict[str, float]]] = {blocks: [] for blocks in BLOCKS}
    wires = []
    for turn in range(options.rounds):
        for blocks, trainer in trainers.items():
            rounds[blocks].append(rank.timed(trainer, f"{blocks} {turn}", options.epochs))
        wires.append(cross(turn, int(rounds[1][0]["bytes"]) // 2))
    found: dict[str, Any] = {"bytes": rounds[1][0]["bytes"], "wire_s": statistics.median(wires)}
    for blocks, runs in rounds.items():
        took = [run["epoch_s"] for run in runs]
        found[str(blocks)] = {
            "epoch_s": statistics.median(took),
            "best_s": min(took),
            "worst_s": max(took),
            "wait_s": statistics.median(run["wait_s"] for run in runs),
            "cells": len(trainers[blocks].shard.train.view.grid.cells),
        }
    if link.rank == 0:
        out.write_text(json.dumps(found))
    over_ranks("done")
    link.close()


if __name__ == "__main__":
    main()
