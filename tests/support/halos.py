"""Equations over the dense model for halo rows that cross partly, late or with few bits: every reader's table of rows.

A message goes from the part that owns nodes to a part that reads them, and a message with their gradients returns. The
tables below are the receiver's rows, step after step. No channel, route or choosing codec is used here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.codec import LowBit
from fullgraph.data import Graph
from fullgraph.nn import ModelSpec
from fullgraph.ops.hashing import draws, dropout_key, row_keys
from fullgraph.ops.lowbit import lowbit_spans
from fullgraph.transport import Key, Way
from tests.support.oracles import DenseModel, Trained, dense_arcs, trained

Pair = tuple[int, int]  # the part that owns nodes, and one that reads them


@dataclass(frozen=True, kw_only=True)
class HaloRules:
    """The choices of a wire, in plain numbers."""

    read: Callable[[int], int | None] = lambda step: step
    sends: Callable[[int], bool] = lambda step: True
    share: float = 1.0
    turns: int = 1
    bound: float | None = None
    longest: int = 0
    bound_gradients: bool = False
    bits: int = 0  # 0: full precision
    period: int = 0  # bits of 2, 4 or 8 by row, chosen again after this many steps
    lam: float = 0.5
    budget: float = 0.0
    gamma: float = 0.0
    most: float = 1.0  # share of a message's rows that crosses, those that moved most
    feedback: bool = False


def halo_trace(
    graph: Graph, part: Tensor, spec: ModelSpec, rules: HaloRules, steps: int = 7, *, narrow_first: bool = False,
    weighed: bool = True,
) -> Trained:  # fmt: skip
    """Losses and weight gradients of Adam steps in which parts see one another as the rules say.

    weighed: choose bits by the variance that rows add to sums; else by the rows' own variance.
    """
    model = spec.build(graph.num_features, graph.num_classes, seed=3, dtype=torch.float64)
    dense = DenseModel(graph, spec, model, part=part)
    halos = _Halos(graph, dense, rules, summed=spec.aggregation != "attention", weighed=weighed)
    dense.narrow_first, dense.input_ahead, dense.seen = narrow_first, True, halos.seen
    return trained(graph, dense, steps, opened=halos.open)


class _Halos:
    """The tables of all layers."""

    def __init__(self, graph: Graph, dense: DenseModel, rules: HaloRules, *, summed: bool, weighed: bool) -> None:
        self.weighed = weighed and summed
        self.dense, self.rules, self.summed, self.part = dense, rules, summed, dense.part
        self.parts, needs = int(dense.part.max()) + 1, dense_arcs(graph, weighted=False) != 0
        self.nodes: dict[Pair, Tensor] = {}
        for owner in range(self.parts):
            for reader in range(self.parts):
                nodes = ((self.part == owner) & needs[self.part == reader].any(0)).nonzero().flatten()
                if owner != reader and len(nodes):
                    self.nodes[owner, reader] = nodes
        self.tables: dict[tuple[int, Way], _Table] = {}

    def open(self, step: int) -> None:
        self.step = step

    def seen(self, layer: int, rows: Tensor) -> Tensor:
        seen: Tensor = _Cross.apply(rows, self, layer, self.step)  # type: ignore[no-untyped-call]
        absent = torch.zeros(self.parts, len(rows), dtype=torch.bool)
        for (owner, reader), table in self.table(layer, "forward").used(self.step, rows.shape[1]).items():
            absent[reader, self.nodes[owner, reader]] = table.absent
        self.dense.absent = None if self.summed else absent
        return seen

    def table(self, layer: int, way: Way) -> "_Table":
        if (layer, way) not in self.tables:
            weights = {}
            if self.weighed and way == "forward":
                M = self.dense.M
                weights = {p: M[self.part == p[1]][:, nodes].square().sum(0) for p, nodes in self.nodes.items()}
            self.tables[layer, way] = _Table(self.rules, self.nodes, weights, layer, way, summed=self.summed)
        return self.tables[layer, way]


class _Cross(torch.autograd.Function):
    """forward: the rows as every part sees them, [P, N, D].  backward: the returned gradients."""

    @staticmethod
    def forward(ctx, rows: Tensor, halos: _Halos, layer: int, step: int):  # type: ignore[no-untyped-def]
        ctx.halos, ctx.layer, ctx.step = halos, layer, step
        table = halos.table(layer, "forward")
        table.send(step, {pair: rows[nodes] for pair, nodes in halos.nodes.items()})
        out = rows.new_zeros(halos.parts, *rows.shape)
        for (owner, reader), view in table.used(step, rows.shape[1]).items():
            out[reader, halos.nodes[owner, reader]] = view.rows
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        halos, table = ctx.halos, ctx.halos.table(ctx.layer, "backward")
        table.send(ctx.step, {(o, r): grad[r, nodes] for (o, r), nodes in halos.nodes.items()})
        out = torch.zeros_like(grad[0])
        for pair, view in table.used(ctx.step, grad.shape[2]).items():
            out[halos.nodes[pair]] += view.rows
        return out, None, None, None


@dataclass(frozen=True)
class _View:
    rows: Tensor
    absent: Tensor


class _Table:
    """The receivers' rows of one layer, or their gradients, by pair of parts and step."""

    def __init__(
        self, rules: HaloRules, nodes: dict[Pair, Tensor], weights: dict[Pair, Tensor], layer: int, way: Way, *,
        summed: bool,
    ) -> None:  # fmt: skip
        self.rules, self.nodes, self.way = rules, nodes, way
        self.scale = 1 / rules.share if summed and rules.share else 1.0
        self.skips = rules.bound is not None and (way == "forward" or rules.bound_gradients)
        self.key = Key(f"halo/layer{layer}", 0, way, run=3)
        self.versions: dict[int, dict[Pair, _View]] = {}
        self.last: dict[Pair, _View] = {}
        self.sent: dict[Pair, Tensor] = {}
        self.quiet: dict[tuple[int, int], int] = {}
        self.owed: dict[Pair, Tensor] = {}
        self.averages: dict[Pair, Tensor] = {}
        self.averaged: int | None = None
        self.bits = {pair: [_start(rules)] * len(n) for pair, n in nodes.items()}
        self.spans = {pair: [0.0] * len(n) for pair, n in nodes.items()}
        self.crossed: set[Pair] = set()
        self.weights = weights

    def ends(self, pair: Pair) -> Pair:
        """The sender and the receiver."""
        return pair if self.way == "forward" else pair[::-1]

    def send(self, step: int, rows: dict[Pair, Tensor]) -> None:
        rules, turn = self.rules, step % self.rules.turns
        if not rules.sends(step):
            return
        if rules.period and step and step % rules.period == 0:
            for pair in self.crossed:
                weights = self.weights.get(pair, torch.ones(len(self.nodes[pair])))
                self.bits[pair] = _bits(rules, self.spans[pair], weights.tolist(), rows[pair].shape[1])
        due = {pair: nodes % rules.turns == turn for pair, nodes in self.nodes.items()}
        if rules.most < 1:
            due = {pair: self._moved_most(pair, x) for pair, x in rows.items()}
        silent = {sender for sender in {self.ends(pair)[0] for pair in rows} if self._silent(sender, turn, rows, due)}
        now = {}
        for pair, x in rows.items():
            old = self.last.get(pair) or _View(torch.zeros_like(x), torch.zeros(len(x), dtype=torch.bool))
            now[pair] = old if self.ends(pair)[0] in silent else self._over(old, pair, x, due[pair], step)
        self.versions[step] = self.last = now

    def _moved_most(self, pair: Pair, x: Tensor) -> Tensor:
        if pair not in self.sent:
            return torch.ones(len(x), dtype=torch.bool)
        moved = (x - self.sent[pair]).square().sum(1).tolist()
        first = sorted(range(len(x)), key=lambda row: -moved[row])[: math.ceil(self.rules.most * len(x))]
        return torch.zeros(len(x), dtype=torch.bool).index_fill(0, torch.tensor(first), True)

    def _silent(self, sender: int, turn: int, rows: dict[Pair, Tensor], due: dict[Pair, Tensor]) -> bool:
        mine = [pair for pair in rows if self.ends(pair)[0] == sender]
        quiet = self.quiet.get((sender, turn), -1)
        skip = False
        if self.skips and quiet >= 0 and not 0 < self.rules.longest <= quiet:
            moved = sum(float((rows[p] - self.sent[p])[due[p]].square().sum()) for p in mine)
            size = sum(float(self.sent[p][due[p]].square().sum()) for p in mine)
            assert self.rules.bound is not None
            skip = moved <= self.rules.bound**2 * size
        self.quiet[sender, turn] = quiet + 1 if skip else 0
        if not skip:
            for p in mine:
                old = self.sent.get(p, rows[p])
                self.sent[p] = torch.where(due[p][:, None], rows[p], old).detach().clone()
        return skip

    def _over(self, old: _View, pair: Pair, x: Tensor, due: Tensor, step: int) -> _View:
        drawn = due & _kept(self.nodes[pair], step, self.rules.share)
        rows, absent = torch.where(due[:, None], 0.0, old.rows), (old.absent | due) & ~drawn
        if bool(drawn.any()):
            rows[drawn] = self._crossed(pair, x, drawn, step) * self.scale
        return _View(rows, absent)

    def _crossed(self, pair: Pair, x: Tensor, drawn: Tensor, step: int) -> Tensor:
        """The drawn rows after coding, with the errors owed to them; and the new errors."""
        meant = x[drawn]
        if self.rules.feedback:
            owed = self.owed.setdefault(pair, torch.zeros_like(x))
            meant = meant + owed[drawn]
        out = self._coded(pair, meant, drawn, replace(self.key, step=step, ends=self.ends(pair)))
        if self.rules.feedback:
            self.owed[pair][drawn] = meant - out
        return out

    def _coded(self, pair: Pair, x: Tensor, drawn: Tensor, key: Key) -> Tensor:
        if self.rules.bits:
            codec = LowBit(self.rules.bits)
            return codec.decode(codec.encode(x, key), tuple(x.shape), x.dtype, key)
        if not self.rules.period:
            return x
        self.crossed.add(pair)
        out, numbers = torch.empty_like(x), drawn.nonzero().flatten().tolist()
        for place, bits in ((1, 2), (2, 4), (3, 8)):
            at = [k for k, number in enumerate(numbers) if self.bits[pair][number] == bits]
            if at:
                codec, name = LowBit(bits), replace(key, chunk=place)
                wire = codec.encode(x[at], name)
                out[at] = codec.decode(wire, (len(at), x.shape[1]), x.dtype, name)
                for k, span in zip(at, lowbit_spans(wire.view(len(at), -1), bits).tolist(), strict=True):
                    self.spans[pair][numbers[k]] = span
        return out

    def used(self, step: int, width: int) -> dict[Pair, _View]:
        """The rows that a step uses: the version due, or its moving average; zeros before there is one."""
        version, gamma = self.rules.read(step), self.rules.gamma
        if version is None:
            none = {p: torch.zeros(len(n), width, dtype=torch.float64) for p, n in self.nodes.items()}
            return {p: _View(rows, torch.zeros(len(rows), dtype=torch.bool)) for p, rows in none.items()}
        views = self.versions[version]
        if not gamma:
            return views
        if self.averaged != version:
            self.averaged = version
            for p, view in views.items():
                old = self.averages.get(p, torch.zeros_like(view.rows))
                self.averages[p] = gamma * old + (1 - gamma) * view.rows
        return {p: _View(self.averages[p], view.absent) for p, view in views.items()}


def _kept(nodes: Tensor, step: int, share: float) -> Tensor:
    """The nodes that a step draws: those whose 32 random bits, as a fraction, are below the share."""
    a, b = row_keys(dropout_key(3, step, 0xB5), nodes)
    return draws(a, b, torch.zeros_like(nodes)).double() / 2**32 < share


def _start(rules: HaloRules) -> int:
    return next(bits for bits in (8, 4, 2) if bits <= (rules.budget or 8))


def _bits(rules: HaloRules, spans: list[float], weights: list[float], width: int) -> list[int]:
    """The bits of every row, computed by raising one row at a time."""
    cost = {bits: -(-bits * width // 8) + 4 for bits in (2, 4, 8)}
    variance = [{b: w * s * s / (2**b - 1) ** 2 for b in cost} for s, w in zip(spans, weights, strict=True)]
    if not rules.budget:
        total = sum(v[2] for v in variance)

        def price(v: dict[int, float], b: int) -> float:
            share = v[b] / total if total else 0.0
            return rules.lam * share + (1 - rules.lam) * cost[b] / (len(spans) * cost[8])

        return [min(cost, key=lambda b, v=v: price(v, b)) for v in variance]  # type: ignore[misc]
    bits, left = [2] * len(spans), len(spans) * (rules.budget * width / 8 + 4 - cost[2])
    while True:
        gains = {}
        for row, now in enumerate(bits):
            if now < 8:
                more = cost[2 * now] - cost[now]
                gains[row] = (variance[row][now] - variance[row][2 * now]) / max(more, 1)
        if not gains:
            return bits
        row = max(gains, key=lambda k: gains[k])
        left -= cost[2 * bits[row]] - cost[bits[row]]
        if left < -1e-9:
            return bits
        bits[row] *= 2
