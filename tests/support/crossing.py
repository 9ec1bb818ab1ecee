"""Exchanges between parts as equations over the dense model: late or averaged rows, rows with few bits."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fullgraph.codec import Codec
from fullgraph.data import Graph
from fullgraph.nn import Chain, ModelSpec
from fullgraph.transport import Key
from tests.support.oracles import DenseModel, Objective, Seen, Trained, dense_arcs, trained


class _Staleness:
    """The rows that other parts see at each step, and the gradients that they return: H and G by layer and step."""

    def __init__(
        self,
        read: Callable[[int], int | None],
        gamma_features: float,
        gamma_gradients: float,
        cross: Seen,
        ahead: str,
        exact: float,
    ) -> None:
        self.read, self.gammas = read, {"features": gamma_features, "gradients": gamma_gradients}
        self.cross, self.ahead, self.exact = cross, ahead, exact
        self.sent: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.returned: dict[tuple[int, int], Tensor] = {}
        self.averages: dict[tuple[str, int], Tensor] = {}

    def open(self, step: int) -> None:
        self.step, self.version = step, self.read(step)
        self.copies: dict[int, Tensor] = {}
        self.extra = torch.zeros((), dtype=torch.float64)

    def seen(self, layer: int, live: Tensor) -> Tensor:
        rows = live.detach().requires_grad_()
        crossed = self.cross(self.step, layer, rows)
        self.sent[layer, self.step] = rows, crossed
        if self.version is None:
            copy = torch.zeros_like(crossed, requires_grad=True)
        elif self.version == self.step:
            assert not any(self.gammas.values()) or self.step >= self.exact, "a live path cannot be smoothed here"
            copy = self.cross(self.step, layer, live) * 1
        else:
            came = {version: crossed.detach() for (at, version), (_, crossed) in self.sent.items() if at == layer}
            copy = self._smooth("features", layer, self._line("f", came)).clone().requires_grad_()
        if not live.requires_grad:  # input rows: nothing is returned for them
            return copy
        if self.version is not None and self.version != self.step:
            came = {version: grads for (at, version), grads in self.returned.items() if at == layer}
            back = self._smooth("gradients", layer, self._line("g", came))
            self.extra = self.extra + (live * back).sum()
        copy.retain_grad()
        self.copies[layer] = copy
        return copy

    def close(self) -> None:
        for layer, copy in self.copies.items():
            rows, crossed = self.sent[layer, self.step]
            (self.returned[layer, self.step],) = torch.autograd.grad(crossed, rows, copy.grad)

    def _line(self, kind: str, came: dict[int, Tensor]) -> Tensor:
        """The version that is due; for a kind in `ahead`, 2 x(t-1) - x(t-2)."""
        assert self.version is not None
        due = came[self.version]
        if kind not in self.ahead or self.version - 1 not in came:
            return due
        assert self.version == self.step - 1
        return 2 * due - came[self.version - 1]

    def _smooth(self, kind: str, layer: int, value: Tensor) -> Tensor:
        gamma = self.gammas[kind]
        old = self.averages.get((kind, layer), torch.zeros_like(value))
        self.averages[kind, layer] = gamma * old + (1 - gamma) * value
        return self.averages[kind, layer]


def stale_trace(
    graph: Graph, part: Tensor, spec: ModelSpec, read: Callable[[int], int | None], steps: int = 6, *,
    gamma_features: float = 0.0, gamma_gradients: float = 0.0, narrow_first: bool = True,
    input_ahead: bool = False,
    cross: Seen = lambda step, layer, rows: rows, model: Chain | None = None, objective: Objective | None = None,
    dense: Any = None, ahead: str = "", exact: float = math.inf,
) -> Trained:  # fmt: skip
    """PipeGCN's equations for any table of versions: step t reads rows, and gradients, of step read(t).

    Other parts see S_t = smooth(C(H)_read(t)), a constant of the step unless read(t) = t; C is what `cross` makes of
    rows on their way (of their gradients, by its backward pass). What they return is G_t = C^T(dL/dS_t), and step t
    adds smooth(G_read(t)) to the gradient of H_t: as <H_t, G> added to the loss. dense: the equations of another model.
    ahead: features (f) or gradients (g) that are 2 x(t-1) - x(t-2). exact: from this step on nothing is smoothed.
    """
    if dense is None:
        model = model or spec.build(graph.num_features, graph.num_classes, seed=3, dtype=torch.float64)
        dense = DenseModel(graph, spec, model, part=part)
    stale = _Staleness(read, gamma_features, gamma_gradients, cross, ahead, exact)
    dense.seen, dense.narrow_first, dense.input_ahead = stale.seen, narrow_first, input_ahead
    told = {"opened": stale.open, "extra": lambda: stale.extra, "closed": lambda _: stale.close()}
    return trained(graph, dense, steps, **told, objective=objective)  # type: ignore[arg-type]


class _Crossing(torch.autograd.Function):
    """Rows after a codec; their gradients pass a codec too (straight-through)."""

    @staticmethod
    def forward(ctx, rows: Tensor, codec: Codec, backward: Codec, key: Key):  # type: ignore[no-untyped-def]
        ctx.codec, ctx.key = backward, key
        return codec.decode(codec.encode(rows, key), tuple(rows.shape), rows.dtype, key)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        sender, receiver = ctx.key.ends
        key = replace(ctx.key, way="backward", ends=(receiver, sender))
        grad = grad.contiguous()
        return ctx.codec.decode(ctx.codec.encode(grad, key), tuple(grad.shape), grad.dtype, key), None, None, None


def coded(graph: Graph, part: Tensor, codec: Codec, backward: Codec, *, seed: int = 3) -> Seen:
    """For the traces here: every part sees every other part's rows through a codec, one message per pair of parts."""
    needs = dense_arcs(graph, weighted=False) != 0
    parts = range(int(part.max()) + 1)

    def seen(step: int, layer: int, rows: Tensor) -> Tensor:
        copies = []
        for receiver in parts:
            copy = torch.zeros_like(rows)
            for sender in parts:
                sent = ((part == sender) & needs[part == receiver].any(0)).nonzero().flatten()
                if sender != receiver and len(sent):
                    key = Key(f"halo/layer{layer}", step, ends=(sender, receiver), run=seed)
                    crossed: Tensor = _Crossing.apply(rows[sent], codec, backward, key)  # type: ignore[no-untyped-call]
                    copy = copy.index_put((sent,), crossed)
            copies.append(copy)
        return torch.stack(copies)

    return seen
