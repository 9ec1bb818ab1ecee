"""What a mixture moves, how evenly it works, and what its pipeline of row blocks hides.

    .venv/bin/python benchmarks/mixture.py volume
    sudo .venv/bin/python benchmarks/mixture.py pipeline [--layers 5] [--nodes 60000] [--rounds 5]

volume: the bytes of one training step on 2, 3, 4 and 8 simulated ranks, counted, against the formula and divided by
(P - 1) / P; and the work of each rank, counted too: arcs times columns of its sparse products, rows of its dense ones.

pipeline: an epoch on two emulated hosts with 1, 2, 4 and 8 blocks, at a link rate at which C = M: C is the epoch with
one block on a link without limit, less what it waits, M the time in which its messages cross when nothing else is done.
The times are those of `fullgraph bench`: all numbers of blocks take turns in one launch, and a time is the median of
the rounds. Of one graph the bandwidth-reducing order makes a band, in which a block reads its neighbours alone; of the
other, of communities, not.
"""

import argparse
import os
import statistics
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from common import bench, seconds, show, size

RANKS = (2, 3, 4, 8)
BLOCKS = (1, 2, 4, 8)
UNLIMITED = "30gbit"
HIDDEN = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["volume", "pipeline"])
    parser.add_argument("--nodes", type=int, default=60_000)
    parser.add_argument("--degree", type=int, default=50)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    volume(options) if options.what == "volume" else pipeline(options)


def volume(options: argparse.Namespace) -> None:
    """Twenty-four classes, so that the narrow layer's columns, too, divide by the ranks."""
    import numpy as np

    import fullgraph as fg
    from fullgraph.ops import sparse
    from fullgraph.partition import partition
    from fullgraph.placement import Mixture
    from fullgraph.testing import run_threads
    from fullgraph.train.config import TrainConfig
    from fullgraph.transport import Counting, Transport
    from tests.support import trainer_of

    graph = fg.load("sbm:nodes=20000,edges=200000,features=64,classes=24,seed=0")
    spec = fg.nn.GraphSAGE(layers=options.layers, hidden=HIDDEN, norm="none", input_dropout=True)
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
    model = f"sage:layers={options.layers},hidden={HIDDEN}"
    strategies = {blocks: f"mixgcn blocks={blocks}" for blocks in BLOCKS}
    sbm = f"sbm:nodes={options.nodes},edges={options.nodes * options.degree // 2},features=64,p_in=0.99,seed=0"
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for kind, graph in (("band", band(Path(name) / "band.npz", options)), ("communities", sbm)):
            axes = {"graph": graph, "model": model, "ranks": 2, "epochs": options.epochs, "all_rows": True}
            free = bench(**axes, strategy=[strategies[1]], rate=UNLIMITED, rounds=2)[strategies[1]]
            compute = free.epoch_s - free.wait_s
            rate = f"{8 * free.bytes / 2 / compute / 1e6:.1f}mbit"
            found = bench(**axes, strategy=list(strategies.values()), rate=rate, rounds=options.rounds)
            whole = found[strategies[1]]
            for blocks, strategy in strategies.items():
                cell = found[strategy]
                spread = f"{seconds(min(cell.round_s))} to {seconds(max(cell.round_s))}"
                rows.append(
                    (kind, blocks, seconds(compute), seconds(whole.messages_s), seconds(cell.epoch_s), spread,
                     seconds(cell.wait_s), f"{whole.epoch_s / cell.epoch_s:.2f}x")
                )  # fmt: skip
            print(f"{kind}: {size(free.bytes)} an epoch", flush=True)
    columns = ["graph", "blocks", "C", "M", "epoch, median", "rounds", "waiting", "to one block"]
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


if __name__ == "__main__":
    main()
