"""Measure how long each kind of work takes on this machine, with a rank's threads."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fullgraph import ops
from fullgraph.codec import LowBit
from fullgraph.device import by_kind, synchronize
from fullgraph.lab.cost.rates import Curve, Rates
from fullgraph.ops import Adjacency, Structure
from fullgraph.transport import Key

WIDTHS = (8, 32, 64, 128, 256)
BITS = (1, 2, 4, 8)
REPEATS = 5
ROWS = {
    "cpu": 30_000,
    "gpu": 1_000_000,
}  # rows of the measured tensors: larger than the caches, and longer than a kernel launch
LEAST_S = 0.01  # minimum of a measurement; shorter calls are repeated


def calibrated(device: torch.device, *, threads: int = 1) -> Rates:
    """Measure all rates, in about ten seconds of work."""
    torch.set_num_threads(threads)
    lab = _Lab(device, by_kind(ROWS, device))
    arc, row = lab.products(near=False)
    near, _ = lab.products(near=True)
    return Rates(
        device=str(device),
        threads=threads,
        arc=arc,
        arc_near=near,
        row=row,
        flop=lab.dense(back=False),
        flop_back=lab.dense(back=True),
        byte=lab.passes(),
        chosen=lab.chosen(),
        number=lab.dropout(),
        encode=lab.coding("encode"),
        decode=lab.coding("decode"),
        arc_number=lab.arc_number(),
        call=lab.call(),
    )


def of_matrix(rates: Rates, adj: Adjacency, device: torch.device) -> Rates:
    """Replace the rates of sparse products by those of this matrix, which may fit a cache better or worse."""
    arcs = []
    for width in WIDTHS:
        x = torch.randn(adj.shape[1], width, device=device)
        taken = timed(lambda x=x: ops.spmm(adj, x), device) / width  # type: ignore[misc]
        least = rates.arc_near.at(width) / 4  # if rows take most of the time, little remains for arcs
        arcs.append(max(least, (taken - adj.shape[0] * rates.row.at(width)) / max(1, adj.structure.num_arcs)))
    curve = _curve(WIDTHS, arcs)
    return replace(rates, arc=curve, arc_near=curve)


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call: the minimum of several, because other programs only add time."""
    call()

    def once(calls: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        return (time.perf_counter() - start) / calls

    calls = max(1, round(LEAST_S / max(once(1), 1e-7)))
    return min(once(min(calls, 10_000)) for _ in range(REPEATS))


class _Lab:
    """The tensors to measure with."""

    def __init__(self, device: torch.device, rows: int) -> None:
        self.device, self.rows = device, rows
        self.dice = torch.Generator().manual_seed(0)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.dice).to(self.device)

    def _matrix(self, degree: int, *, near: bool) -> Adjacency:
        n, arcs = self.rows, self.rows * degree
        if near:  # sources within a few hundred rows
            source = torch.arange(n).repeat_interleave(degree) + torch.randint(-250, 250, (arcs,), generator=self.dice)
            source = source.clamp(0, n - 1)
        else:
            source = torch.randint(0, n, (arcs,), generator=self.dice)
        indptr = torch.arange(0, arcs + 1, degree)
        structure = Structure(indptr, source.view(n, degree).sort(1).values.flatten().int(), n)
        return Adjacency(structure, None, torch.ones(n), None).to(device=self.device)

    def products(self, *, near: bool) -> tuple[Curve, Curve]:
        """Seconds per arc and per row, by width: two densities separate them."""
        few, many = 4, 32
        thin, thick = self._matrix(few, near=near), self._matrix(many, near=near)
        arcs, rows = [], []
        for width in WIDTHS:
            x = self._randn(self.rows, width)
            little, much = (timed(lambda m=m, x=x: ops.spmm(m, x), self.device) for m in (thin, thick))  # type: ignore[misc]
            arc = max(1e-15, (much - little) / (self.rows * (many - few)))
            arcs.append(arc / width)
            rows.append(max(1e-15, little / self.rows - few * arc) / width)
        return _curve(WIDTHS, arcs), _curve(WIDTHS, rows)

    def dense(self, *, back: bool) -> Curve:
        found = []
        for side in WIDTHS:
            x, weight, grad = self._randn(self.rows, side), self._randn(side, side), self._randn(self.rows, side)
            call = (lambda x=x, g=grad: g.t() @ x) if back else (lambda x=x, w=weight: x @ w)
            found.append(timed(call, self.device) / (2 * self.rows * side * side))
        return _curve(WIDTHS, found)

    def passes(self) -> Curve:
        """Seconds of adding two tensors, by the bytes of all three."""
        sizes = [3 * 4 * count for count in (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 24)]
        found = []
        for size in sizes:
            a, b = self._randn(size // 12), self._randn(size // 12)
            found.append(max(1e-14, (timed(lambda a=a, b=b: a + b, self.device) - self.call()) / size))  # type: ignore[misc]
        return _curve(sizes, found)

    def chosen(self) -> float:
        x, picked = self._randn(self.rows, 128), torch.randperm(self.rows, generator=self.dice)[: self.rows // 2]
        picked = picked.sort().values.to(self.device)
        return timed(lambda: ops.gather_rows(x, picked), self.device) / (len(picked) * 128 * 8)

    def dropout(self) -> float:
        x, ids = self._randn(self.rows, 128), torch.arange(self.rows, device=self.device)
        return timed(lambda: ops.act_dropout(x, ids, key=1, p=0.5, act="relu"), self.device) / x.numel()

    def coding(self, way: str) -> Curve:
        x, key, found = self._randn(self.rows, 128), Key("calibrate", 0), []
        for bits in BITS:
            codec = LowBit(bits)
            wire = codec.encode(x, key)
            if way == "encode":
                taken = timed(lambda c=codec: c.encode(x, key), self.device)  # type: ignore[misc]
            else:
                taken = timed(lambda c=codec, w=wire: c.decode(w, tuple(x.shape), x.dtype, key), self.device)  # type: ignore[misc]
            found.append(taken / x.numel())
        return _curve(BITS, found)

    def arc_number(self) -> float:
        adj, heads = self._matrix(16, near=False), 4
        row = self._randn(self.rows, heads)
        return timed(lambda: ops.edge_scores(adj.structure, row, row), self.device) / (adj.structure.num_arcs * heads)

    def call(self) -> float:
        x = self._randn(4)
        return timed(lambda: x + x, self.device)


def _curve(sizes: tuple[int, ...] | list[int], values: list[float]) -> Curve:
    return Curve(sizes=tuple(map(float, sizes)), values=tuple(values))


def fitted(rates: Rates, measured_s: float, predicted_s: float) -> Rates:
    """The rates, scaled so that the prediction of a real step equals its measurement."""
    return replace(rates, scale=rates.scale * measured_s / predicted_s)
