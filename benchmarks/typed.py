"""A graph of ogbn-mag's shape, R-GCN, relational SAGE or HGT with 2 x 64: time and peak memory of an epoch beside PyG.

    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 PYTHONPATH=src python benchmarks/typed.py --device cpu --scale 0.1
    PYTHONPATH=src python benchmarks/typed.py --device cuda --scale 1 --ranks 1

At scale 1 the graph has 1.94 million nodes of 4 types and 21.1 million edges of 4 relations, and their reverses. Papers
have 128 features, other types learned rows; 11 % of the papers are trained on. Ends of edges are drawn with power-law
degrees. PyG maps the features to 64 columns, has an `nn.Embedding` per other type, and two of its layers: RGCNConv or
FastRGCNConv on all nodes, HeteroConv of SAGEConv, or HGTConv with 4 heads. Ours is the trainer of `fullgraph train`;
`yours-sage` and `yours-hgt` give it PyG's model of HeteroConv and of HGTConv. An epoch is the forward
pass, the loss of the training nodes, the backward pass and the update by Adam; its time is a median. On a CPU every row
of the table has processes of its own, time is processor time, of all ranks together, and memory is what the largest
rank has in addition to its graph. On a GPU memory is torch's peak, with the graph in it.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import show
from torch import Tensor, nn

from fullgraph.data import TypedGraph
from fullgraph.errors import one_line
from fullgraph.nn import HGT, RGCN, HeteroSAGE
from fullgraph.own_model.spec import spec_of
from fullgraph.partition import cut_parts, partition
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_processes
from fullgraph.train.config import TrainConfig
from fullgraph.transport import SingleRank, Transport

NODES = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field": 59_965}
EDGES = {
    ("author", "affiliated", "institution"): 1_043_998,
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271,
    ("paper", "topic", "field"): 7_505_078,
}
FEATURES, CLASSES, HIDDEN, TRAIN = 128, 349, 64, 0.11
SPECS = {"rgcn": RGCN, "hetero-sage": HeteroSAGE, "hgt": HGT}
BESIDE = {"rgcn": ("RGCNConv", "FastRGCNConv"), "hetero-sage": ("HeteroConv",), "hgt": ("HGTConv",)}
HEADS = 4

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
parser.add_argument("--scale", type=float, default=0.1, help="nodes and edges, as a share of ogbn-mag's")
parser.add_argument("--models", default="rgcn,hetero-sage", help="of rgcn, hetero-sage, hgt, yours-sage, yours-hgt")
parser.add_argument("--ranks", default="1", help="numbers of ranks of ours, separated by commas")
parser.add_argument(
    "--pyg", default="RGCNConv,HeteroConv,HGTConv", help="layers of PyG; FastRGCNConv needs much memory"
)
parser.add_argument("--epochs", type=int, default=5, help="that are timed, after two others")
parser.add_argument("--all-rows", action="store_true", help="ours computes all rows, as PyG does")


Cost = tuple[float, float]  # ms of an epoch, GiB


@cache
def mag_like(scale: float) -> TypedGraph:
    """A graph with as many nodes and edges as ogbn-mag, times `scale`."""
    rng = np.random.default_rng(0)
    sizes = {kind: max(10, round(count * scale)) for kind, count in NODES.items()}

    def ends(kind: str, count: int) -> np.ndarray:
        return (rng.random(count) ** 2 * sizes[kind]).astype(np.int64)  # node k is drawn in proportion to k^-1/2

    edges = {
        (source, name, target): np.stack([ends(source, round(count * scale)), ends(target, round(count * scale))])
        for (source, name, target), count in EDGES.items()
    }
    papers, chance = sizes["paper"], rng.random(sizes["paper"])
    x = rng.standard_normal((papers, FEATURES), dtype=np.float32)
    masks = {"train_mask": chance < TRAIN, "val_mask": chance > 0.94, "test_mask": (chance > 0.88) & (chance <= 0.94)}
    nodes: dict[str, dict[str, object]] = {kind: {"num_nodes": size} for kind, size in sizes.items()}
    nodes["paper"] = {"x": x, "y": rng.integers(0, CLASSES, papers), **masks}
    return TypedGraph(nodes, edges, name="mag").with_reverses()


def ours(transport: Transport, model: str, how: argparse.Namespace) -> Cost:
    union = mag_like(how.scale).union
    part = cut_parts(union, partition(union, transport.size, "fennel"), transport.rank)
    more: dict[str, Any] = {"heads": HEADS} if model == "hgt" else {}
    given = spec_of(YOURS[model])() if model in YOURS else SPECS[model](layers=2, hidden=HIDDEN, dropout=0.5, **more)
    config = TrainConfig(epochs=10**6, eval_every=10**6, device=how.device, report=False, all_rows=how.all_rows)
    run = Run(model=given, train=config)
    return measured(lambda: build_trainer(run, part, transport).train_step, how)


class InPyG(nn.Module):
    """Two layers as users of PyG write them, on a dictionary of rows by type."""

    def __init__(self, sizes: Mapping[str, int], relations: list[Any], layer: str) -> None:
        super().__init__()
        from torch_geometric.nn import FastRGCNConv, HeteroConv, HGTConv, RGCNConv, SAGEConv

        self.first = nn.Linear(FEATURES, HIDDEN)
        self.rows = nn.ModuleDict({kind: nn.Embedding(size, HIDDEN) for kind, size in sizes.items() if kind != "paper"})
        widths = ((HIDDEN, HIDDEN), (HIDDEN, CLASSES))
        self.by_type, self.kinds = layer in ("HeteroConv", "HGTConv"), list(sizes)
        self.last = nn.Linear(HIDDEN, CLASSES) if layer == "HGTConv" else nn.Identity()
        if layer == "HGTConv":
            self.convs = nn.ModuleList(HGTConv(HIDDEN, HIDDEN, (self.kinds, relations), HEADS) for _ in widths)
            return
        if self.by_type:
            self.convs = nn.ModuleList(
                HeteroConv({rel: SAGEConv((a, a), b) for rel in relations}, aggr="sum") for a, b in widths
            )
            return
        kind = {"RGCNConv": RGCNConv, "FastRGCNConv": FastRGCNConv}[layer]
        self.convs = nn.ModuleList(kind(a, b, len(relations)) for a, b in widths)

    def forward(self, x: Tensor, edges: dict[tuple[str, str, str], Tensor], kinds: Tensor, split: list[int]) -> Tensor:
        h = {kind: self.rows[kind].weight if kind in self.rows else self.first(x) for kind in self.kinds}
        if self.by_type:
            h = {kind: rows.relu() for kind, rows in self.convs[0](self._dropped(h), edges).items()}
            return self.last(self.convs[1](self._dropped(h), edges)["paper"])
        (whole,) = edges.values()
        rows = self.convs[0](nn.functional.dropout(torch.cat(list(h.values())), 0.5), whole, kinds).relu()
        return self.convs[1](nn.functional.dropout(rows, 0.5), whole, kinds).split(split)[0]

    def _dropped(self, h: dict[str, Tensor]) -> dict[str, Tensor]:
        return {kind: nn.functional.dropout(rows, 0.5) for kind, rows in h.items()}


class Yours(InPyG):
    """The same model as a run calls it."""

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        return super().forward(x_dict["paper"], edge_index_dict, torch.empty(0), [])


def yours_sage(metadata: Any, num_nodes_dict: Any) -> nn.Module:
    return Yours(num_nodes_dict, metadata[1], "HeteroConv")


def yours_hgt(metadata: Any, num_nodes_dict: Any) -> nn.Module:
    return Yours(num_nodes_dict, metadata[1], "HGTConv")


YOURS = {"yours-sage": yours_sage, "yours-hgt": yours_hgt}


def pyg(transport: Transport, layer: str, how: argparse.Namespace) -> Cost:
    graph, device = mag_like(how.scale), how.device
    split = [nodes.num_nodes for nodes in graph.nodes.values()]
    first = dict(zip(graph.nodes, graph.starts, strict=False))
    edges = {rel: torch.from_numpy(own.edge_index.astype(np.int64)).to(device) for rel, own in graph.edges.items()}
    kinds = torch.cat([torch.full((e.shape[1],), r) for r, e in enumerate(edges.values())]).to(device)
    if layer not in ("HeteroConv", "HGTConv"):
        moved = [e + torch.tensor([[first[a]], [first[b]]], device=device) for (a, _, b), e in edges.items()]
        edges = {("all", "edges", "all"): torch.cat(moved, dim=1)}
    x = torch.from_numpy(np.array(graph.nodes["paper"].x)).to(device)
    train = torch.from_numpy(np.array(graph.labels.train_mask[:, 0])).to(device)
    y = torch.from_numpy(graph.labels.y.astype(np.int64)).to(device)[train]

    def make() -> Callable[[], object]:
        sizes = {kind: nodes.num_nodes for kind, nodes in graph.nodes.items()}
        model = InPyG(sizes, list(graph.edges), layer).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step() -> None:
            nn.functional.cross_entropy(model(x, edges, kinds, split)[train], y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    return measured(make, how)


def measured(make: Callable[[], Callable[[], object]], how: argparse.Namespace) -> Cost:
    """The median cost of a step; memory of an epoch, without that of the start."""
    gc.collect()
    before = reset_peak(how.device)
    step = make()
    for _ in range(2):
        step()
    reset_peak(how.device)
    return statistics.median(timed(step, how.device) for _ in range(how.epochs)), peak(how.device) - before


def timed(step: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = time.process_time()
        step()
        return (time.process_time() - start) * 1e3
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def reset_peak(device: str) -> float:
    """Reset the peak; return the GiB in use on a CPU, and 0 on a GPU, where all memory counts."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return 0.0
    Path("/proc/self/clear_refs").write_text("5")
    return peak(device)


def peak(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 2**20


def table(how: argparse.Namespace) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for model in how.models.split(","):
        ways = {
            f"fullgraph {model}, {ranks} rank{'s' * (ranks > 1)}": (ranks, partial(ours, model=model, how=how))
            for ranks in map(int, how.ranks.split(","))
        }
        layers = [layer for layer in BESIDE.get(model, ()) if layer in how.pyg.split(",")]
        ways |= {f"PyG {layer}": (1, partial(pyg, layer=layer, how=how)) for layer in layers}
        base: Cost | None = None
        for name, (ranks, way) in ways.items():
            alone = how.device == "cuda" and ranks == 1
            try:
                costs = [way(SingleRank())] if alone else run_processes(ranks, way, timeout=3000, silence=3000)
            except (RuntimeError, MemoryError, AssertionError) as error:  # a process that lacks memory just dies
                rows.append((name, one_line(error, 80), "", "", ""))
                continue
            total = sum if how.device == "cpu" else max
            cost = total(ms for ms, _ in costs), max(gib for _, gib in costs)
            base = base or cost
            times = [f"{mine / of:.2f}" for mine, of in zip(cost, base, strict=True)]
            rows.append((name, f"{cost[0]:.4g} ms", times[0], f"{cost[1]:.3g} GiB", times[1]))
            print(*rows[-1], sep="  ", flush=True)
    return rows


if __name__ == "__main__":
    args = parser.parse_args()
    print(mag_like(args.scale), flush=True)
    title = f"{args.device}, {torch.get_num_threads()} threads, {'all' if args.all_rows else 'live'} rows on our side"
    show(title, ("", "epoch", "of ours", "peak memory", "of ours"), table(args), markdown=True)
