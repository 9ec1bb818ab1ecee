"""The self-check: a user's model on a small piece of the graph, in one process and over simulated ranks.

Legend: n owned rows, e arcs; m rows and a arcs of the piece.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fullgraph.data import Graph
from fullgraph.errors import InputError, one_line
from fullgraph.exchange import Clock, Wire
from fullgraph.own_model.graph import RankGraph
from fullgraph.own_model.on_rows import OnRows
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement.holding.local import LocalGraph
from fullgraph.transport import Transport

ROWS, RING, RANKS, TOLERANCE = 60, 12, 3, 1e-8


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows and the arcs between them, cut into parts; `edge_attr` of the graph holds the arcs' numbers."""

    graph: Graph
    part: Assignment
    rows_m: Tensor  # owned rows of the real graph
    arcs_a: Tensor  # its arcs
    sizes: tuple[int, int]  # n and e

    def cut(self, value: Any, name: str, nodes: Tensor, arcs: Tensor) -> Any:
        """An input of the model for some nodes and arcs of the piece, in float64."""
        if not isinstance(value, Tensor):
            return value
        value = value.detach().cpu()
        n, e = self.sizes
        if value.dim() and len(value) == e and (e != n or "edge" in name):
            value = value[self.arcs_a[arcs]]
        elif value.dim() and len(value) == n:
            value = value[self.rows_m[nodes]]
        return value.double() if value.is_floating_point() else value


@dataclass(frozen=True, eq=False)
class Seen:
    """What one run of the model gave: logits, gradients, and what every part of the model returned on the way."""

    ids: Tensor
    logits: Tensor
    grads: dict[str, Tensor]
    parts: dict[tuple[str, int], Tensor]  # by name and number of the call, in the order of calls


Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def piece_of(graph: RankGraph) -> Piece:
    """Rows around the first ones and the arcs between them; where there are too few, a ring of some rows."""
    source, target = graph.edge_index.cpu()
    n, e = graph.num_owned, len(source)
    inner = (source < n).nonzero().flatten()
    chosen = torch.zeros(n, dtype=torch.bool)
    chosen[: ROWS // 6] = True
    for _ in range(8):
        reached = torch.cat([source[inner][chosen[target[inner]]], target[inner][chosen[source[inner]]]]).unique()
        chosen[reached[~chosen[reached]][: ROWS - int(chosen.sum())]] = True
    rows_m, number = chosen.nonzero().flatten(), torch.cumsum(chosen, 0) - 1
    arcs_a = inner[chosen[source[inner]] & chosen[target[inner]]]
    ends = torch.stack([number[source[arcs_a]], number[target[arcs_a]]])
    if ends.shape[1] < RING:
        ring = torch.arange(RING)
        rows_m, arcs_a = ring % n, ring % max(1, e)
        ends = torch.stack([ring, (ring + 1) % RING])
    m = len(rows_m)
    masks = tuple(np.arange(m) % 3 == split for split in range(3))
    numbers = np.arange(len(arcs_a), dtype=np.float64)
    small = Graph(ends.numpy(), np.zeros((m, 1)), np.zeros(m, dtype=np.int64), masks, edge_attr=numbers)
    part = np.random.default_rng(0).integers(0, RANKS, m).astype(np.int32)
    return Piece(small, Assignment(part, RANKS, "random", 0), rows_m, arcs_a, (n, e))


def self_check(module: nn.Module, graph: RankGraph, x: Tensor, inputs: Inputs, *, seed: int) -> None:
    """Raise, in one line, where one process and simulated ranks differ; `module` is a copy to be used up."""
    if not graph.num_owned:
        return
    piece = piece_of(graph)
    try:
        model = module.cpu().double()
        model.train()
        alone = _in_one_process(model, piece, x, inputs)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"self-check: the model fails on a small piece of the graph ({type(error).__name__}: {one_line(error)}); "
            "correct the model, or pass check=False to go without"
        ) from error
    spread = _over_ranks(model, piece, x, inputs, RANKS, seed=seed, draws=False)
    _compare(alone, spread, "one process")
    one = _over_ranks(model, piece, x, inputs, 1, seed=seed, draws=True)
    many = _over_ranks(model, piece, x, inputs, RANKS, seed=seed, draws=True)
    _compare(one[0], many, "one rank, with dropout")


class _Still(TorchFunctionMode):
    """Nothing is dropped."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in (F.dropout, torch.dropout) else func(*args, **(kwargs or {}))


def _in_one_process(model: nn.Module, piece: Piece, x: Tensor, inputs: Inputs) -> Seen:
    model = copy.deepcopy(model)
    edge_index = torch.from_numpy(piece.graph.edge_index.astype(np.int64))
    assert piece.graph.edge_attr is not None
    arcs = torch.from_numpy(piece.graph.edge_attr[:, 0].copy()).long()
    nodes = torch.arange(piece.graph.num_nodes)
    args, kwargs = _cut(piece, inputs, nodes, arcs)

    def run() -> Tensor:
        with _Still():
            out: Tensor = model(piece.cut(x, "x", nodes, arcs), edge_index, *args, **kwargs)
        return out

    return _seen(model, nodes, run)


def _over_ranks(
    model: nn.Module, piece: Piece, x: Tensor, inputs: Inputs, ranks: int, *, seed: int, draws: bool
) -> list[Seen]:
    from fullgraph.testing.ranks import run_threads

    part = Assignment(piece.part.part % ranks, ranks, "random", 0)

    def body(transport: Transport) -> Seen:
        mine = cut_parts(piece.graph, part, transport.rank)
        assert mine.attr is not None
        arcs = mine.attr[:, 0].long()
        local = LocalGraph.of(mine, torch.float64)
        graph = RankGraph(local, transport, Clock(0), Wire(), name="self-check", num_nodes=piece.graph.num_nodes)
        on_rows = OnRows(copy.deepcopy(model), seed=seed, draws=draws)
        args, kwargs = _cut(piece, inputs, mine.ids, arcs)
        rows = piece.cut(x, "x", mine.ids, arcs)
        return _seen(on_rows.module, mine.ids, lambda: on_rows(graph, rows, *args, **kwargs))

    seen: list[Seen] = run_threads(ranks, body)
    return seen


def _cut(piece: Piece, inputs: Inputs, nodes: Tensor, arcs: Tensor) -> Inputs:
    args, kwargs = inputs
    named = {name: piece.cut(value, name, nodes, arcs) for name, value in kwargs.items()}
    return tuple(piece.cut(value, "edge", nodes, arcs) for value in args), named


def _seen(model: nn.Module, ids: Tensor, run: Callable[[], Tensor]) -> Seen:
    parts: dict[tuple[str, int], Tensor] = {}
    for name, part in model.named_modules():
        label = f"{type(part).__name__} ({name})" if name else type(part).__name__
        part.register_forward_hook(_recorder(label, parts))
    logits = run()
    columns = torch.arange(1, logits[0].numel() + 1, dtype=torch.float64)
    weight = torch.sin(ids[:, None].double() * 7 + columns)  # any fixed numbers by node and class
    (logits.flatten(1) * weight).sum().backward()
    grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    return Seen(ids, logits.detach(), grads, parts)


def _recorder(label: str, parts: dict[tuple[str, int], Tensor]) -> Callable[..., None]:
    calls = count()

    def record(module: nn.Module, args: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.dim():
            parts[label, next(calls)] = out.detach()

    return record


def _compare(one: Seen, many: list[Seen], what: str) -> None:
    nodes = len(one.ids)

    def joined(values: list[Tensor]) -> Tensor | None:
        if [len(v) for v in values] != [len(seen.ids) for seen in many] or len({v.shape[1:] for v in values}) > 1:
            return None
        out = values[0].new_empty(nodes, *values[0].shape[1:])
        for seen, value in zip(many, values, strict=True):
            out[seen.ids] = value
        return out

    for call, want in one.parts.items():
        if all(call in seen.parts for seen in many):  # our own kernels leave some parts of a layer out
            got = joined([seen.parts[call] for seen in many])
            if got is not None and got.shape == want.shape and not _close(got, want):
                _stop(f"the output of {call[0]}", got, want, what)
    got = joined([seen.logits for seen in many])
    if got is None or got.shape != one.logits.shape:
        raise InputError(f"self-check: on {RANKS} ranks the model returns another shape than in {what}")
    if not _close(got, one.logits):
        _stop("the output of the model", got, one.logits, what)
    for name, want in one.grads.items():
        total = torch.stack([seen.grads[name] for seen in many]).sum(0)
        if not _close(total, want):
            _stop(f"the gradient of {name}", total, want, what)


def _close(got: Tensor, want: Tensor) -> bool:
    return bool(torch.allclose(got.double(), want.double(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))


def _stop(where: str, got: Tensor, want: Tensor, what: str) -> None:
    error = float((got.double() - want.double()).abs().max())
    raise InputError(
        f"self-check: {where} on {RANKS} ranks is not that of {what} (off by {error:.2g}); it looks further than a "
        "node's in-neighbours (a mean, norm, attention or draw over all nodes): move that out of the model, or use "
        "BatchNorm, F.dropout and message-passing layers"
    )
