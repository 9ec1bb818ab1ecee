"""What the GPU benchmarks share: graphs made on the device from a seed, times from events, one record of figures."""

import json
import os
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common  # noqa: F401  # with it the repository is on the path
import numpy as np
import torch
from torch import Tensor

from fullgraph.ops import Structure

Section = Callable[[], None]
PIECE = 1 << 26  # arcs made at once


class Bench:
    """Runs sections one after the other, keeps what they found, and writes it after each: OUT/NAME.json."""

    def __init__(self, name: str, device: str, out: Path | str | None = None) -> None:
        """out: a folder; else the environment's $OUT; else nothing is written."""
        self.name, self.device, self.out = name, device, out or os.environ.get("OUT")
        self.figures: dict[str, Any] = {}

    def run(self, sections: dict[str, Section], only: list[str]) -> None:
        """A section that fails prints its traceback; the others still run."""
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
            self._write()

    def note(self, key: str, value: object) -> None:
        self.figures[key] = value

    def _write(self) -> None:
        if self.out:
            Path(self.out).mkdir(parents=True, exist_ok=True)
            (Path(self.out) / f"{self.name}.json").write_text(json.dumps(self.figures, indent=1))

    def ms(self, run: Callable[[], object], rounds: int = 7, warm: int = 2) -> float:
        """The median time of a call; each round stands between two events of its own."""
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
        """GiB that a call allocates on top of what there was."""
        if self.device == "cpu":
            run()
            return 0.0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        there = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - there) / 2**30


def geometric_mean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


def community_graph(
    nodes: int, arcs: int, communities: int, *, inside: float, order: str, device: str, seed: int = 0
) -> Structure:
    """An undirected graph whose degrees follow a power law; a share `inside` of its edges stays in a community.

    order: "community" has the nodes of a community side by side, "random" mixes all nodes. Edges may repeat.
    """
    generator = torch.Generator(device).manual_seed(seed)
    size = -(-nodes // communities)

    def draw(n: int) -> Tensor:
        """A community, and a place in it with many hubs among the first places."""
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
    """An undirected graph without communities: node k is an end of an edge with a chance that falls as k^-0.6."""
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
    """The graph as an uncompressed .npz; labels depend on features, so that a loss can fall."""
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
    """The size and the locality of ogbn-papers100M both ways: 60 % of the sources are among 200 neighbours in order.

    Directed, in fact; the time of a product does not depend on it.
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
    """A graph of papers100M's size and locality in which every arc has its reverse, without any sorting.

    Layer c pairs up the first size[c] nodes by an involution, an arc each way: most by i <-> i ^ m inside blocks of
    256 nodes, the others by i <-> (a - i) mod size. A node has an arc for each layer that reaches it, so the sizes give
    the degrees, which follow a power law. Nodes that meet themselves keep a self loop.
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
