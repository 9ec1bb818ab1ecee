"""An epoch of a PyG GraphSAGE through fg.distribute beside our own model's, in turn, on the same ranks.

python benchmarks/own_model.py [ranks] [epochs]
"""

import statistics
import sys
import time

import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph import nn
from fullgraph.data import load
from fullgraph.partition import cut_parts, partition
from fullgraph.placement import Partitioned
from fullgraph.tasks import node_task
from fullgraph.testing import run_processes
from fullgraph.train.sync import GradSync
from fullgraph.transport import Key, Transport

GRAPH = "sbm:nodes=20000,edges=300000,features=128,classes=10"
HIDDEN, LAYERS = 128, 3


def epochs(transport: Transport, num_epochs: int) -> tuple[list[float], list[float]]:
    """Seconds of every epoch: ours, PyG's through `distribute`."""
    from torch_geometric.nn import GraphSAGE

    transport = transport.inner  # type: ignore[attr-defined]  # both use the same names, one after the other
    graph = load(GRAPH)
    part = cut_parts(graph, partition(graph, transport.size, method="metis", seed=0), transport.rank)
    shard = Partitioned().place(part, transport, fg.Wire(), "mean")
    task = node_task(multilabel=False, classes=graph.num_classes)
    ours = nn.GraphSAGE(layers=LAYERS, hidden=HIDDEN, dropout=0.5, norm="none").build(
        graph.num_features, graph.num_classes, seed=0, dtype=torch.float32
    )
    other = Partitioned(precompute=False).place(part, transport, fg.Wire(), "sum")
    net = GraphSAGE(graph.num_features, HIDDEN, LAYERS, graph.num_classes, dropout=0.5)
    theirs = fg.distribute(net, other)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (ours, theirs)]
    sync, seconds = GradSync(transport), ([], [])
    for epoch in range(num_epochs):
        for which in (0, 1) if epoch % 2 else (1, 0):
            transport.all_reduce(Key(f"start {which}", epoch), torch.zeros(1)).wait()
            start = time.perf_counter()
            optimizers[which].zero_grad()
            if which == 0:
                shard.clock.tick()
                shard.executor.step(ours, shard, task.loss)
                sync(ours.parameters(), epoch)
            else:
                rows = other.train_mask
                out = theirs(other.x, other.edge_index)
                fg.mean_loss(F.cross_entropy(out[rows], other.y[rows], reduction="none"), other).backward()
                fg.sync_gradients(theirs)
            optimizers[which].step()
            seconds[which].append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    ranks, num_epochs = (int(a) for a in (*sys.argv[1:], *("2", "20")[len(sys.argv) - 1 :]))
    ours, theirs = run_processes(ranks, epochs, num_epochs, timeout=900, silence=300)[0]
    one, other = (statistics.median(s[2:]) for s in (ours, theirs))
    ratio = statistics.median(b / a for a, b in zip(ours[2:], theirs[2:], strict=True))
    print(f"{ranks} ranks, {GRAPH}: ours {one:.3f} s, PyG's GraphSAGE {other:.3f} s an epoch, ratio {ratio:.2f}")
