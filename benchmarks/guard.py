"""The cost of checking a user's model: a step of PyG models with this code and with another checkout's, in turns.

Each turn is a separate process with one thread, which trains on one rank and takes the median of its steps (on a CPU:
of their processor time, so that other programs matter less). The other
checkout is a version before the check, or any other version: git worktree add ../before COMMIT.

python benchmarks/guard.py ../before [GRAPH ...] [--turns 5] [--device cuda]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

GRAPHS = ["sbm:nodes=2708,edges=5278,features=1433,classes=7", "sbm:nodes=20000,edges=300000,features=128,classes=10"]
MODELS = ("sage", "gcn", "gatv2", "transformer")
HERE = Path(__file__).resolve().parents[1]


def measure(graph_name: str, device: str, steps: int = 30) -> dict[str, float]:
    """Return milliseconds per step of each model."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F
    from torch_geometric import nn as pyg

    import fullgraph as fg
    from fullgraph.data import load
    from fullgraph.partition import cut_parts, partition
    from fullgraph.placement import Partitioned
    from fullgraph.testing import run_threads
    from fullgraph.transport import Transport

    class Net(nn.Module):
        def __init__(self, conv: type, widths: list[int]) -> None:
            super().__init__()
            self.convs = nn.ModuleList(conv(a, b) for a, b in pairwise(widths))
            self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:-1])

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for conv, norm in zip(self.convs, self.norms, strict=False):
                x = F.dropout(norm(conv(x, edge_index)).relu(), 0.5, self.training)
            out: Tensor = self.convs[-1](x, edge_index)
            return out

    torch.set_num_threads(1)
    clock = time.process_time if device == "cpu" else time.perf_counter
    graph = load(graph_name)
    layers = dict(zip(MODELS, (pyg.SAGEConv, pyg.GCNConv, pyg.GATv2Conv, pyg.TransformerConv), strict=True))

    def rank(transport: Transport, conv: type) -> float:
        part = cut_parts(graph, partition(graph, 1, method="contiguous", seed=0), 0)
        shard = Partitioned(precompute=False, device=torch.device(device)).place(part, transport, fg.Wire(), "sum")
        net = Net(conv, [graph.num_features, 64, 64, graph.num_classes]).to(device)
        model = fg.distribute(net, shard)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        seconds = []
        for _ in range(steps):
            start = clock()
            out = model(shard.x, shard.edge_index)
            rows = shard.train_mask
            optimizer.zero_grad()
            fg.mean_loss(F.cross_entropy(out[rows], shard.y[rows], reduction="none"), shard).backward()
            fg.sync_gradients(model)
            optimizer.step()
            if device != "cpu":
                torch.cuda.synchronize()
            seconds.append(clock() - start)
        return 1e3 * statistics.median(seconds[5:])

    return {name: run_threads(1, rank, conv)[0] for name, conv in layers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measure(asked.measure, asked.device)))
        return
    if asked.before is None or not (asked.before / "src").is_dir():
        parser.error("name the folder of a checkout to compare with")
    trees = {"before": asked.before, "now": HERE}
    print(f"{'graph':<52}{'model':<13}{'before':>10}{'now':>10}{'ratio':>8}  of each turn")
    for graph in asked.graphs:
        times: dict[str, list[dict[str, float]]] = {tree: [] for tree in trees}
        for turn in range(asked.turns):
            for tree in list(trees)[:: 1 if turn % 2 else -1]:
                line = [sys.executable, __file__, "--measure", graph, "--device", asked.device]
                environ = {**os.environ, "PYTHONPATH": str(trees[tree] / "src")}
                done = subprocess.run(line, env=environ, stdout=subprocess.PIPE, text=True, check=True)
                times[tree].append(json.loads(done.stdout.splitlines()[-1]))
        for model in MODELS:
            before, now = ([turn[model] for turn in times[tree]] for tree in trees)
            each = " ".join(f"{b / a:.2f}" for a, b in zip(before, now, strict=True))
            one, two = statistics.median(before), statistics.median(now)
            print(f"{graph:<52}{model:<13}{one:>7.2f} ms{two:>7.2f} ms{two / one:>8.3f}  {each}")


if __name__ == "__main__":
    main()
