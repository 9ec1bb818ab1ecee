"""Functions of the GPU benchmarks: graphs generated on the device, times from events, one record of figures."""

import json
import os
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import common  # noqa: F401  # with it the repository is on the path
import numpy as np
import torch
from torch import Tensor

from fullgraph.ops import Structure
from fullgraph.partition import Part, Quality
from fullgraph.partition.manifest import GraphFacts, Manifest

Section = Callable[[], None]
PIECE = 1 << 26  # arcs per random draw


class Bench:
    """Runs sections one after the other, keeps their figures, and writes them after each: OUT/NAME.json."""

    def __init__(self, name: str, device: str, out: Path | str | None = None) -> None:
        """out: a folder; default: $OUT; without both, nothing is written."""
        self.name, self.device, self.out = name, device, out or os.environ.get("OUT")
        self.figures: dict[str, Any] = {}

    def run(self, sections: dict[str, Section], only: list[str]) -> None:
        """Run the sections; if one fails, print its traceback and continue with the others."""
        for name, section in sections.items():
            if only and name not in only:
                continue
            print(f"\n== {name}: {(section.__doc__ or '').strip()}", flush=True)
            start = time.perf_counter()
            try:
                section()
            except Exception:
                print(traceback.format_exc(), flush=True)
                self.note(f"{name}/failed", traceback.format_exc(limit=-2))
            self.note(f"{name}/seconds", round(time.perf_counter() - start, 1))
            print(f"-- {name} took {time.perf_counter() - start:.0f} s", flush=True)
            if self.device == "cuda":
                torch.cuda.empty_cache()
            self.write()

    def note(self, key: str, value: object) -> None:
        self.figures[key] = value

    def write(self) -> None:
        if self.out:
            Path(self.out).mkdir(parents=True, exist_ok=True)
            (Path(self.out) / f"{self.name}.json").write_text(json.dumps(self.figures, indent=1))

    def ms(self, run: Callable[[], object], rounds: int = 7, warm: int = 2) -> float:
        """Return the median time of a call; each round has its own pair of events."""
        if self.device == "cpu":  # a trial of the script
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1e3
        for _ in range(warm):
            run()
        times = []
        for _ in range(rounds):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            run()
            after.record()
            times.append((before, after))
        torch.cuda.synchronize()
        return statistics.median(before.elapsed_time(after) for before, after in times)

    def peak(self, run: Callable[[], object]) -> float:
        """Return the GiB that a call allocates in addition to existing memory."""
        if self.device == "cpu":
            run()
            return 0.0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        there = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - there) / 2**30


@dataclass(frozen=True)
class Shape:
    """A graph's size, and the model that papers train on it."""

    name: str
    nodes: int
    arcs: int
    communities: int
    features: int
    classes: int
    layers: int
    hidden: int
    train: float

    def scaled(self, factor: float) -> "Shape":
        few = max(200, int(self.nodes * factor))
        return replace(self, nodes=few, arcs=max(1000, int(self.arcs * factor)))


def part_of(shape: Shape, s: Structure, x: Tensor, y: Tensor, train: Tensor, edge_attr: Tensor | None = None) -> Part:
    """Return the whole graph as the only part of one rank, with arrays on the device."""
    figures = Quality(0, 0, (shape.nodes,), (s.num_arcs,), (0,), (int(train.sum()),), 1.0, 1.0)
    edge_features = 0 if edge_attr is None else edge_attr.shape[1]
    facts = GraphFacts(
        shape.name, shape.nodes, s.num_arcs, x.shape[1], shape.classes, False, False, 1, False, edge_features
    )
    manifest = Manifest(1, facts, 1, "whole", 0, "none", 0, figures, {})
    rest = torch.zeros_like(train)
    rest[:: max(1, shape.nodes // 100_000)] = True  # some nodes to validate and test on
    rest &= ~train
    nothing = torch.zeros(0, dtype=torch.int64, device=x.device)
    return Part(
        rank=0, parts=1, manifest=manifest, ids=torch.arange(shape.nodes, device=x.device), halo_ids=nothing,
        indptr=s.indptr, indices=s.indices, weight=None, x=x, y=y, train_mask=train, val_mask=rest, test_mask=rest,
        recv_counts=(0,), send_counts=(0,), send_rows=nothing, undirected=True, attr=edge_attr,
    )  # fmt: skip


def data_of(shape: Shape, device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Draw features, labels and training nodes from a seed; labels depend on features, so that a loss can fall."""
    generator = torch.Generator(device).manual_seed(1)
    x = torch.empty(shape.nodes, shape.features, dtype=dtype, device=device)
    y = torch.empty(shape.nodes, dtype=torch.int64, device=device)
    truth = torch.randn(shape.features, shape.classes, device=device, generator=generator)
    for first in range(0, shape.nodes, 1 << 22):
        rows = torch.randn(min(1 << 22, shape.nodes - first), shape.features, device=device, generator=generator)
        x[first : first + len(rows)] = rows.to(dtype)
        y[first : first + len(rows)] = (rows @ truth).argmax(1)
    return x, y, torch.rand(shape.nodes, device=device, generator=generator) < shape.train


def geometric_mean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


def community_graph(
    nodes: int, arcs: int, communities: int, *, inside: float, order: str, device: str, seed: int = 0
) -> Structure:
    """Draw an undirected graph with power-law degrees; the share `inside` of its edges stays in a community.

    order: "community" numbers the nodes of a community consecutively, "random" mixes all nodes. Edges may repeat.
    """
    generator = torch.Generator(device).manual_seed(seed)
    size = -(-nodes // communities)

    def draw(n: int) -> Tensor:
        """Draw positions inside a community; hubs have the first positions."""
        place = torch.rand(n, device=device, generator=generator) ** 2.5 * size
        return place.long().clamp_(max=size - 1)

    half = arcs // 2
    home = torch.randint(0, communities, (half,), device=device, generator=generator)
    away = torch.randint(0, communities, (half,), device=device, generator=generator)
    away = torch.where(torch.rand(half, device=device, generator=generator) < inside, home, away)
    one, other = ((group * size + draw(half)).clamp_(max=nodes - 1) for group in (home, away))
    del home, away
    if order == "random":
        names = torch.randperm(nodes, device=device, generator=generator)
        one, other = names[one], names[other]
    return _both_ways(one, other, nodes)


def power_law_graph(nodes: int, arcs: int, *, device: str, seed: int = 0) -> Structure:
    """Draw an undirected graph without communities: the probability of node k as an end of an edge falls as k^-0.6."""
    generator = torch.Generator(device).manual_seed(seed)
    ends = torch.rand(2, arcs // 2, device=device, generator=generator) ** 2.5 * nodes
    one, other = ends.long().clamp_(max=nodes - 1)
    return _both_ways(one, other, nodes)


def _both_ways(one: Tensor, other: Tensor, nodes: int) -> Structure:
    keys = torch.cat([one * nodes + other, other * nodes + one]).sort().values
    degree = torch.bincount(keys // nodes, minlength=nodes)
    indices = (keys % nodes).int()
    del keys
    return Structure(torch.nn.functional.pad(degree.cumsum(0), (1, 0)), indices, nodes)


def write_graph(path: Path, s: Structure, features: int, classes: int, *, train: float, seed: int = 1) -> None:
    """Write the graph as an uncompressed .npz; labels depend on features, so that a loss can fall."""
    device = s.indices.device
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(s.num_rows, features, device=device, generator=generator)
    y = (x @ torch.randn(features, classes, device=device, generator=generator)).argmax(1)
    chance = torch.rand(s.num_rows, device=device, generator=generator)
    masks = {"train": chance < train, "val": (chance >= train) & (chance < (1 + train) / 2)}
    masks["test"] = ~masks["train"] & ~masks["val"]
    target = torch.repeat_interleave(torch.arange(s.num_rows, device=device), s.indptr.diff())
    arrays = {"edge_index": torch.stack([s.indices.long(), target]), "x": x, "y": y}
    arrays |= {f"{name}_mask": mask for name, mask in masks.items()}
    np.savez(path, **{name: value.cpu().numpy() for name, value in arrays.items()})


def papers_graph(nodes: int, arcs: int, *, device: str, seed: int = 0) -> Structure:
    """Draw a graph with the size and locality of ogbn-papers100M: 60 % of the sources are 200 close neighbours.

    It is directed; this does not change the time of a product.
    """
    generator = torch.Generator(device).manual_seed(seed)
    degree = (torch.rand(nodes, device=device, generator=generator) ** -0.55).clamp_(max=2000)
    indptr = torch.nn.functional.pad((degree * (arcs / degree.sum())).round_().long().cumsum(0), (1, 0))
    del degree
    indices = torch.empty(int(indptr[-1]), dtype=torch.int32, device=device)
    for first in range(0, indices.numel(), PIECE):
        arc = torch.arange(first, min(first + PIECE, indices.numel()), device=device)
        row = torch.searchsorted(indptr[1:], arc, right=True)
        near = row // 200 * 200 + torch.randint(0, 200, arc.shape, device=device, generator=generator)
        far = torch.rand(arc.shape, device=device, generator=generator, dtype=torch.float64) ** 1.5 * nodes
        stays = torch.rand(arc.shape, device=device, generator=generator) < 0.6
        indices[first : first + arc.numel()] = torch.where(stays, near, far.long()).clamp_(max=nodes - 1).int()
    return Structure(indptr, indices, nodes)


def undirected_papers(nodes: int, arcs: int, *, device: str, seed: int = 0) -> Structure:
    """Draw a graph of papers100M's size and locality in which every arc has its reverse, without sorting.

    Layer c pairs up the first size[c] nodes by an involution, with an arc in each direction: most pairs by i <-> i ^ m
    inside blocks of 256 nodes, the others by i <-> (a - i) mod size. A node has one arc for each layer that reaches it,
    so the sizes determine the degrees, which follow a power law. Nodes paired with themselves keep a self loop.
    """
    generator = torch.Generator().manual_seed(seed)
    mean = arcs / nodes
    layers = int(16 * mean)  # of the largest degree
    sizes = torch.arange(1, layers + 1, dtype=torch.float64) ** -0.9
    sizes = (sizes * (arcs / float(sizes.sum()))).clamp(max=nodes).long() // 256 * 256
    short = arcs - int(sizes.sum())
    sizes[: max(1, layers // 4)] = (sizes[: max(1, layers // 4)] + short // max(1, layers // 4)).clamp(256, nodes)
    sizes = sizes.clamp(min=2).sort(descending=True).values // 2 * 2
    near = torch.rand(layers, generator=generator) < 0.6
    masks = torch.randint(1, 256, (layers,), generator=generator)
    shifts = (torch.rand(layers, generator=generator, dtype=torch.float64) * sizes).long()
    degree = torch.zeros(nodes + 1, dtype=torch.int64, device=device)
    degree.index_add_(0, sizes.to(device), -torch.ones(layers, dtype=torch.int64, device=device))
    degree = degree[:-1].cumsum(0) + layers
    indptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
    del degree
    indices = torch.empty(int(indptr[-1]), dtype=torch.int32, device=device)
    for c, size in enumerate(sizes.tolist()):
        for first in range(0, size, PIECE):
            node = torch.arange(first, min(first + PIECE, size), device=device)
            partner = (node ^ int(masks[c])) if near[c] else (int(shifts[c]) - node) % size
            partner = torch.where(partner < size, partner, node)
            indices[indptr[node] + c] = partner.int()
    return Structure(indptr, indices, nodes)
