"""The cost of partitioning a large graph, and the memory of one of four ranks compared with a single rank.

.venv/bin/python benchmarks/campaign.py memory            # 1M nodes, 10M edges; some minutes and 8 GiB on 2 cores
"""

import argparse
import tempfile
from pathlib import Path

from common import fullgraph, seconds, show, size, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--partitioner", default="metis")
    options = parser.parse_args()
    graph = f"sbm:nodes={options.nodes},edges={options.edges},features={options.features},seed=0"
    flags = ["--strategy", "vanilla", "--model", "sage", "--layers", 3, "--hidden", 128, "--norm", "none"]
    flags += ["--input-dropout", "--epochs", options.epochs, "--eval-every", options.epochs, "--checkpoint-every", 0]
    rows, peaks = [], {}
    with tempfile.TemporaryDirectory() as name:
        for parts in (1, options.parts):
            shards = Path(name) / f"shards-{parts}"
            method = options.partitioner if parts > 1 else "contiguous"
            cost = fullgraph("partition", graph, "--parts", parts, "--partitioner", method, "--out", shards)
            # From the folder: a rank opens only its own shard, so loading and partitioning are not in its peak.
            result = train(shards, Path(name) / f"run-{parts}", "--parts", parts, *flags)
            peaks[parts] = result["peak_memory_bytes"]
            partition = (method, seconds(cost.seconds), size(cost.peak_bytes))
            run = (size(peaks[parts]), f"{peaks[parts] / peaks[1]:.2f}", seconds(result["epoch_s"]))
            rows.append((parts, *partition, *run))
            print(f"{parts} parts: done", flush=True)
    title = f"{options.nodes:,} nodes, {options.edges:,} edges, {options.features} features, GraphSAGE 3x128"
    columns = ["ranks", "partitioner", "time", "peak memory", "worst rank's peak", "of one rank", "epoch"]
    show(title, columns, rows)
    print(
        f"worst rank at {peaks[options.parts] / peaks[1]:.2f} of one rank (target at most 0.45 at 4 ranks); "
        "partitioning includes generating the graph (targets: 3 minutes, 5 GiB)"
    )
