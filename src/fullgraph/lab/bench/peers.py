"""Peers: PyG in one process, on the same graph and model, with the same optimizer and number of threads.

    python -m fullgraph.lab.bench.peers ORDER.json

runs a peer in its own process. It imports from fullgraph only what reads its order, so that its memory is PyG's.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from fullgraph.device import HOST, DeviceName, peak_bytes, synchronize
from fullgraph.errors import InputError, RankFailed, one_line
from fullgraph.lab.bench.cell import Cell
from fullgraph.lab.bench.matrix import Point, Settings, model_of
from fullgraph.proc import num_cores
from fullgraph.report import peak_memory_bytes
from fullgraph.storage import read_record, write_document
from fullgraph.train.fork_server_main import die_with
from fullgraph.values import OneOf, Range, Value, tree_of

if TYPE_CHECKING:
    from fullgraph.data import Graph

GRAPH, ORDER, FIGURES = "graph.npz", "order.json", "figures.json"
WARM_UP = 2  # epochs
KINDS = ("edge_index", "csr-mean", "csr-sum")


@dataclass(frozen=True, kw_only=True)
class Order(Value):
    """A peer's training. kind: PyG's edge list; or A as a CSR matrix, for a mean, or with weights for a sum."""

    graph: str  # a .npz file: dense features, one class per node, no weights
    kind: Annotated[str, OneOf(*KINDS)]
    model: Annotated[str, OneOf("sage", "gcn")] = "sage"
    layers: Annotated[int, Range(1, 10_000)] = 3
    hidden: Annotated[int, Range(1, 10**6)] = 128
    dropout: float = 0.5
    norm: Annotated[str, OneOf("none", "layer")] = "none"
    lr: float = 0.01
    epochs: Annotated[int, Range(1, 10**6)] = 8
    rounds: Annotated[int, Range(1, 10**4)] = 1
    threads: Annotated[int, Range(1, 4096)] = 1
    device: DeviceName = HOST
    out: str  # the file for its figures
    parent: int = 0  # the process with which it ends; 0: none


@dataclass(frozen=True, kw_only=True)
class Figures(Value):
    """A peer's figures: seconds per epoch by round, processor seconds per epoch, peak memory, its last loss."""

    round_s: tuple[float, ...]
    processor_s: float
    peak_memory_bytes: int
    peak_device_bytes: int
    loss: float
    nodes: int
    arcs: int
    features: int
    classes: int
    versions: dict[str, str]


def write_graph(graph: "Graph", folder: Path) -> None:
    """Write the graph as a file for peers; refuse a graph that they cannot train on unchanged."""
    import scipy.sparse as sp

    from fullgraph.data import save_npz
    from fullgraph.partition import facts_of

    facts = facts_of(graph)
    if (
        sp.issparse(graph.x)
        or facts.weighted
        or facts.multilabel
        or facts.real
        or not facts.labelled
        or facts.splits > 1
    ):
        raise InputError("peers train on dense features, one class per node, one split and edges without weights")
    save_npz(graph, folder / GRAPH)


def measure_peer(point: Point, settings: Settings, folder: Path) -> Cell:
    """Run a peer on the graph that `write_graph` wrote there."""
    spec: Any = model_of(point.group.model)
    plain = spec.norm != "batch" and not getattr(spec, "residual", False) and not getattr(spec, "linear_layers", 0)
    if spec.name not in ("sage", "gcn") or not plain:
        raise InputError(
            f"model {one_line(point.group.model, 60)} has no peer; plain sage and gcn, norm layer or none, do"
        )
    csr = "csr-mean" if spec.name == "sage" else "csr-sum"
    cores = num_cores()
    order = Order(
        graph=str(folder / GRAPH), kind=csr if "CSR" in point.strategy else "edge_index", model=spec.name,
        layers=spec.layers, hidden=spec.hidden, dropout=spec.dropout, norm=spec.norm,
        epochs=settings.epochs, rounds=settings.rounds, threads=cores, device=settings.device,
        out=str(folder / FIGURES), parent=os.getpid(),
    )  # fmt: skip
    found = run_peer(order, folder)
    epoch_s = median(found.round_s)
    return Cell(
        **point.group._asdict(), strategy=point.strategy, device=settings.device, epochs=settings.epochs,
        rounds=settings.rounds, threads=cores, cores=cores, epoch_s=epoch_s, compute_s=epoch_s, messages_s=0.0,
        wait_s=0.0, processor_s=found.processor_s, round_s=found.round_s, rank_wait_s=(0.0,), rank_thread_s=(epoch_s,),
        rank_processor_s=(found.processor_s,), bytes=0, weight_bytes=0, peak_memory_bytes=found.peak_memory_bytes,
        peak_device_bytes=found.peak_device_bytes, nodes=found.nodes, arcs=found.arcs, features=found.features,
        classes=found.classes, rank_rows=(found.nodes,), rank_arcs=(found.arcs,), rank_halo=(0,),
        versions=found.versions,
    )  # fmt: skip


def run_peer(order: Order, folder: Path) -> Figures:
    """Start a peer's process and wait for its figures."""
    write_document(folder / ORDER, tree_of(order))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    line = [sys.executable, "-P", "-m", "fullgraph.lab.bench.peers", str(folder / ORDER)]
    done = subprocess.run(line, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        raise RankFailed(f"PyG failed: {one_line(words[-1])}")
    return read_record(Figures, Path(order.out), fix="start the campaign again")


def train_pyg(order: Order) -> Figures:
    """Plain PyG: convolutions, norm, relu, dropout, cross entropy on the training nodes, Adam."""
    import numpy as np
    import torch
    import torch_geometric
    from torch.nn import functional as F

    torch.set_num_threads(order.threads)
    torch.manual_seed(0)
    device = torch.device(order.device)
    with np.load(order.graph, allow_pickle=False) as file:
        x, y, mask, edges = (torch.from_numpy(file[name]) for name in ("x", "y", "train_mask", "edge_index"))
    x, y, mask, arcs = x.to(device), y.long().to(device), mask.to(device), edges.shape[1]
    convs, graph = _layers(order, edges.long(), x.shape, int(y.max()) + 1, device)
    del edges
    kind = torch.nn.LayerNorm if order.norm == "layer" else torch.nn.Identity
    norms = torch.nn.ModuleList(kind(order.hidden) for _ in convs[:-1]).to(device)
    optimizer = torch.optim.Adam([*convs.parameters(), *norms.parameters()], lr=order.lr)
    rounds, loss, busy = [], torch.zeros(()), 0.0
    for turn in range(order.rounds + 1):  # the first turn warms up
        epochs = order.epochs if turn else WARM_UP
        start, process = time.perf_counter(), time.process_time()
        for _ in range(epochs):
            h = x
            for conv, norm in zip(convs[:-1], norms, strict=True):
                h = F.dropout(norm(conv(h, *graph)).relu(), order.dropout)
            loss = F.cross_entropy(convs[-1](h, *graph)[mask], y[mask])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        synchronize(device)
        rounds.append((time.perf_counter() - start) / epochs)
        busy += (time.process_time() - process) if turn else 0.0
    versions = {"torch": torch.__version__, "torch_geometric": torch_geometric.__version__}
    return Figures(
        round_s=tuple(rounds[1:]), processor_s=busy / (order.rounds * order.epochs), loss=loss.item(),
        peak_memory_bytes=peak_memory_bytes(), peak_device_bytes=peak_bytes(device),
        nodes=len(x), arcs=arcs, features=x.shape[1], classes=int(y.max()) + 1, versions=versions,
    )  # fmt: skip


def _layers(order: Order, edges: Any, shape: Any, classes: int, device: Any) -> tuple[Any, tuple[Any, ...]]:
    """PyG's convolutions, and their arguments beside the rows. GCN's weights are computed once for all layers."""
    import torch
    from torch_geometric.nn import GCNConv, SAGEConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    pairs = list(pairwise([shape[1], *[order.hidden] * (order.layers - 1), classes]))
    adjacency = adjacency_of(order.kind, edges, shape[0]).to(device)
    if order.model == "gcn":
        graph, weight = gcn_norm(adjacency, None, shape[0])
        given = (graph,) if weight is None else (graph, weight)
        return torch.nn.ModuleList(GCNConv(i, o, normalize=False) for i, o in pairs).to(device), given
    if order.kind == "csr-sum":
        adjacency = _shared_out(adjacency)
    aggr = "sum" if order.kind == "csr-sum" else "mean"
    return torch.nn.ModuleList(SAGEConv(i, o, aggr=aggr) for i, o in pairs).to(device), (adjacency,)


def adjacency_of(kind: str, edge_index: Any, num_nodes: int) -> Any:
    """The edge list, or A^T as torch's CSR matrix, whose product and gradient need no torch-sparse."""
    from torch_geometric.utils import to_torch_csr_tensor

    return edge_index if kind == "edge_index" else to_torch_csr_tensor(edge_index.flip(0), size=(num_nodes, num_nodes))


def _shared_out(adjacency: Any) -> Any:
    """Replace each 1 by 1/degree, so that a plain product is a mean; PyG's documented code uses a reduction instead."""
    import torch

    degree = adjacency.crow_indices().diff()
    shares = (1.0 / degree.clamp(min=1)).repeat_interleave(degree)
    return torch.sparse_csr_tensor(adjacency.crow_indices(), adjacency.col_indices(), shares, adjacency.shape)


def main() -> None:
    import warnings

    warnings.simplefilter("ignore")  # not ours: torch.jit is deprecated, CSR is in beta
    order = read_record(Order, Path(sys.argv[1]), fix="start the campaign again")
    if order.parent:
        die_with(order.parent)
    try:
        figures = train_pyg(order)
    except ImportError as error:
        raise SystemExit(f"{error}: pip install 'fullgraph[pyg]'") from None
    write_document(Path(order.out), tree_of(figures))


if __name__ == "__main__":
    main()
