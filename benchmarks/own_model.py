"""PyG modules through fg.distribute, with one thread per rank.

GraphSAGE is compared with our own model, in turns, on the same ranks. GATv2, which has no kernel of ours, is compared
with PyG in one process: a rank should take no longer than its share of the edges there, plus its waits. As many such
processes run at the same time as there are ranks, so that both have the same share of the machine's memory.

python benchmarks/own_model.py [ranks] [epochs]
python benchmarks/own_model.py live [ranks] [epochs] [graph] [device]

The second command compares live rows with all rows, in turns: GATv2 on a graph with 1 % training nodes.
"""

import statistics
import sys
import time

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import fullgraph as fg
from fullgraph import nn
from fullgraph.data import load
from fullgraph.own_model.spec import spec_of
from fullgraph.partition import cut_parts, partition
from fullgraph.placement import Partitioned
from fullgraph.report import Meter
from fullgraph.run import Run, build_trainer
from fullgraph.tasks import node_task
from fullgraph.testing import run_processes
from fullgraph.train.config import TrainConfig
from fullgraph.train.sync import GradSync
from fullgraph.transport import Counting, Key, Transport

GRAPH = "sbm:nodes=20000,edges=300000,features=128,classes=10"
HIDDEN, LAYERS = 128, 3


def epochs(transport: Transport, num_epochs: int) -> tuple[list[float], list[float]]:
    """Return the seconds of every epoch: ours, and PyG's through `distribute`."""
    from torch_geometric.nn import GraphSAGE

    transport = transport.inner  # type: ignore[attr-defined]  # both use the same names, one after the other
    graph = load(GRAPH)
    part = cut_parts(graph, partition(graph, transport.size, method="metis", seed=0), transport.rank)
    shard = Partitioned().place(part, transport, fg.Wire(), "mean")
    task = node_task(multilabel=False, classes=graph.num_classes)
    ours = nn.GraphSAGE(layers=LAYERS, hidden=HIDDEN, dropout=0.5, norm="none", input_dropout=True).build(
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


class Attention(torch.nn.Module):
    """Two layers of GATv2."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        from torch_geometric.nn import GATv2Conv

        super().__init__()
        self.first = GATv2Conv(in_channels, 16, heads=4)
        self.second = GATv2Conv(64, out_channels, heads=1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(F.elu(self.first(x, edge_index)), edge_index)  # type: ignore[no-any-return]


def attention(transport: Transport, num_epochs: int) -> tuple[list[float], list[float], float]:
    """Return seconds per epoch of PyG alone and of this rank without waits, in turns, and its share of edges."""
    torch.set_num_threads(1)
    meter = Meter()
    transport = Counting(transport.inner, meter.sent, meter.waiting)  # type: ignore[attr-defined]
    graph = load(GRAPH)
    part = cut_parts(graph, partition(graph, transport.size, method="metis", seed=0), transport.rank)
    shard = Partitioned(precompute=False).place(part, transport, fg.Wire(), "sum")
    nets = [Attention(graph.num_features, graph.num_classes) for _ in range(2)]
    model = fg.distribute(nets[1], shard)
    x, y, arcs = (torch.from_numpy(a.copy()) for a in (graph.x, graph.y, graph.edge_index))
    chosen = torch.from_numpy(graph.train_mask[:, 0].copy())
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (nets[0], model)]
    alone, mine = [], []
    for epoch in range(num_epochs):
        transport.all_reduce(Key("one", epoch), torch.zeros(1)).wait()
        start = time.perf_counter()
        optimizers[0].zero_grad()
        F.cross_entropy(nets[0](x, arcs)[chosen], y[chosen]).backward()
        optimizers[0].step()
        alone.append(time.perf_counter() - start)
        transport.all_reduce(Key("all", epoch), torch.zeros(1)).wait()
        meter.open_step()
        optimizers[1].zero_grad()
        rows = shard.train_mask
        out = model(shard.x, shard.edge_index)
        fg.mean_loss(F.cross_entropy(out[rows], shard.y[rows], reduction="none"), shard).backward()
        fg.sync_gradients(model)
        optimizers[1].step()
        tally = meter.close_step()
        mine.append(tally.step_s - tally.wait_s)
    return alone, mine, shard.edge_index.shape[1] / graph.num_arcs


def few_trained(transport: Transport, num_epochs: int, source: str, device: str) -> tuple[list[float], list[float]]:
    """Return seconds per epoch of GATv2 on a graph with 1 % training nodes: with live rows, and with all rows."""
    transport = transport.inner  # type: ignore[attr-defined]  # both use the same names, one after the other
    graph = load(source)
    drawn = np.random.default_rng(0).random(graph.num_nodes)
    masks = (drawn < 0.01, (drawn >= 0.01) & (drawn < 0.5), drawn >= 0.5)
    graph = fg.Graph(graph.edge_index, graph.x, graph.y, masks)
    part = cut_parts(graph, partition(graph, transport.size, method="metis", seed=0), transport.rank)
    seconds: tuple[list[float], list[float]] = ([], [])
    trainers = []
    for number in (0, 1):
        train_config = TrainConfig(epochs=num_epochs, device=device, all_rows=bool(number), report=False)
        run = Run(model=spec_of(Attention)(), train=train_config)
        trainers.append(build_trainer(run, part, transport))
    for epoch in range(num_epochs):
        for number in (0, 1) if epoch % 2 else (1, 0):
            start = time.perf_counter()
            float(trainers[number].train_step()[0])  # waits for the device
            seconds[number].append(time.perf_counter() - start)
    return seconds


def show_few_trained(args: list[str]) -> None:
    """[ranks] [epochs] [graph] [device]"""
    ranks, num_epochs, source, device = (*args, *("1", "20", GRAPH, "cpu")[len(args) :])
    live, whole = run_processes(int(ranks), few_trained, int(num_epochs), source, device, timeout=900, silence=300)[0]
    one, other = (statistics.median(s[2:]) for s in (live, whole))
    text = f"{ranks} ranks, {source}, 1 % training nodes, GATv2: live rows {one:.4f} s, all rows {other:.4f} s an epoch"
    print(f"{text}, ratio {other / one:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["live"]:
        show_few_trained(sys.argv[2:])
        sys.exit()
    ranks, num_epochs = (int(a) for a in (*sys.argv[1:], *("2", "20")[len(sys.argv) - 1 :]))
    ours, theirs = run_processes(ranks, epochs, num_epochs, timeout=900, silence=300)[0]
    one, other = (statistics.median(s[2:]) for s in (ours, theirs))
    ratio = statistics.median(b / a for a, b in zip(ours[2:], theirs[2:], strict=True))
    print(f"{ranks} ranks, {GRAPH}: ours {one:.3f} s, PyG's GraphSAGE {other:.3f} s an epoch, ratio {ratio:.2f}")
    found = run_processes(ranks, attention, num_epochs, timeout=900, silence=300)
    for rank, (alone_s, mine, share) in enumerate(found):
        busy, alone = statistics.median(mine[2:]), statistics.median(alone_s[2:])
        text = f"GATv2, rank {rank}: {busy:.3f} s without waits; PyG alone {alone:.3f} s, of which {share:.0%}"
        print(f"{text}: {share * alone:.3f} s, ratio {busy / (share * alone):.2f}")
