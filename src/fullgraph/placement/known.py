"""Precomputed input: rows that never change, how they are fetched or aggregated, and their message without exchange.

Legend: n owned rows, t of them that a layer computes, h halo rows, D features, e entries.
"""

from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.nn.view import AtOnce, Features, Operand, RowMap
from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.halo import halo_of
from fullgraph.placement.holding.adjacency import Matrices, dense_is_less
from fullgraph.placement.rank_graph import RankGraph, pick
from fullgraph.plan import HaloRoute
from fullgraph.transport import Key, Transport

SAMPLE = 4096  # nodes; their aggregated rows give an estimate of the entries of all rows


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Input rows and their aggregation, computed once."""

    kind: ClassVar[Literal["aggregate"]] = "aggregate"
    x: Features
    aggregated: Features
    _first: dict[int, "Known"] = field(default_factory=dict, init=False, repr=False)  # by number of rows

    def message(self, rows: int, ids: Tensor, row_map: RowMap) -> "KnownMessage":
        """The message of a layer that computes the first rows."""
        if rows not in self._first:
            self._first[rows] = Known(first_rows(self.x, rows), first_rows(self.aggregated, rows))
        return KnownMessage(self._first[rows], ids[:rows], row_map)


@dataclass(frozen=True, slots=True, eq=False)
class KnownHalo:
    """Input rows and their halo rows, fetched once."""

    kind: ClassVar[Literal["halo"]] = "halo"
    x: Features
    halo: Features

    def of(self, halo_rows: Tensor) -> "KnownHalo":
        """The same with only these halo rows."""
        if len(halo_rows) == self.halo.shape[0]:
            return self
        return KnownHalo(self.x, pick(self.halo, halo_rows))


def first_rows(x: Features, rows: int) -> Features:
    """The first rows of x, without a copy."""
    if rows == x.shape[0]:
        return x
    return x[:rows] if isinstance(x, Tensor) else x.span(0, rows)


def with_first(x_nD: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(first rows of x, x); the gradient of the first rows is added to the gradient of x in place."""
    first_tD, x_nD = _WithFirst.apply(x_nD, count)  # type: ignore[no-untyped-call]
    return first_tD, x_nD


class _WithFirst(torch.autograd.Function):
    """(x[:t], x);  backward: dx = d2, with d1 added to its first rows in place, because nothing else uses d2."""

    @staticmethod
    def forward(ctx, x_nD: Tensor, count: int):  # type: ignore[no-untyped-def]
        ctx.rows = len(x_nD)
        ctx.set_materialize_grads(False)
        return x_nD[:count], x_nD.view_as(x_nD)

    @staticmethod
    def backward(ctx, first_tD: Tensor | None, grad_nD: Tensor | None):  # type: ignore[no-untyped-def]
        if first_tD is None:
            return grad_nD, None
        if grad_nD is None:
            return torch.nn.functional.pad(first_tD, (0, 0, 0, ctx.rows - len(first_tD))), None
        grad_nD[: len(first_tD)] += first_tD
        return grad_nD, None


class KnownMessage(AtOnce):
    """A message of precomputed input: nothing is sent, and dropout comes after the aggregation."""

    def __init__(self, known: Known, ids: Tensor, row_map: RowMap) -> None:
        self.known, self.ids, self.row_map = known, ids, row_map

    @cached_property
    def own(self) -> Operand:
        return self.row_map(self.known.x, self.ids)

    def aggregate(self) -> Operand:
        # A separate key: one mask for both would drop a feature from a row and from its neighbours' mean together.
        other = RowMap(relu=self.row_map.relu, p=self.row_map.p, key=self.row_map.key ^ 0x5DEECE66D)
        return other(self.known.aggregated, self.ids)


@dataclass(eq=False, kw_only=True)
class InputRows:
    """A rank's input rows, and what can be precomputed of them; nothing is fetched before its first use."""

    graph: RankGraph
    transport: Transport
    nodes: int
    name: str
    aggregation: str
    dtype: torch.dtype

    @property
    def _channel(self) -> str:
        return f"setup/{self.name} features"

    @property
    def sparse(self) -> bool:
        return isinstance(self.graph.rows.x, Adjacency)

    @cached_property
    def halo(self) -> Features:
        """Input rows that other ranks own [h, D]; sparse if the input is sparse."""
        rows = self.graph.rows
        if isinstance(rows.x, Tensor):
            return halo_of(rows.route, rows.x, self.transport, self._channel)
        return _features(_halo_rows(_matrix(rows.x), rows.route, self.transport, self._channel))

    @cached_property
    def matrices(self) -> Matrices:
        return self.graph.matrices(self.aggregation, self.transport, self.dtype, f"{self.name} ahead")

    def halo_is_less(self) -> bool:
        """Whether X and the edges have fewer entries than M X: a step multiplies M X with W, or M with X W.

        Both are counted over all ranks, M X on a sample of nodes, so the answer does not depend on the partition.
        """
        x, halo = self.graph.rows.x, self.halo
        assert isinstance(x, Adjacency)
        assert isinstance(halo, Adjacency)
        every = max(1, self.nodes // SAMPLE)
        rows = (self.graph.rows.ids % every == 0).nonzero().flatten().cpu().numpy()
        pattern = sp.hstack([_matrix(self.matrices.inner), _matrix(self.matrices.outer)], format="csr")[rows]
        sources = sp.vstack([_matrix(x), _matrix(halo)], format="csr")
        pattern.data, sources.data = np.ones(pattern.nnz, np.float32), np.ones(sources.nnz, np.float32)
        counts = torch.tensor([(pattern @ sources).nnz * every, x.structure.num_arcs + len(self.graph.arcs.indices)])
        aggregated, before = self.transport.all_reduce(Key(f"{self._channel} entries", 0), counts).wait().tolist()
        return bool(aggregated > before)

    def aggregated(self) -> Features | None:
        """M X [n, D] of sparse X, which is sparse unless it is nearly full; None if X is dense."""
        x, halo = self.graph.rows.x, self.halo if self.sparse else None
        if not isinstance(x, Adjacency) or not isinstance(halo, Adjacency):
            return None
        inner, outer = _matrix(self.matrices.inner), _matrix(self.matrices.outer)
        out_nD = sp.csr_array(inner @ _matrix(x) + outer @ _matrix(halo))
        # The same on all ranks, because a placement may gather the results.
        sizes = torch.tensor([out_nD.nnz, prod(out_nD.shape)])
        entries, full = self.transport.all_reduce(Key(f"{self._channel} density", 0), sizes).wait().tolist()
        if dense_is_less(entries, full):
            return torch.from_numpy(out_nD.toarray()).clone()  # in torch's memory: rounding depends on the alignment
        return _features(out_nD)


def _halo_rows(own_nD: "sp.csr_array", route: HaloRoute, transport: Transport, name: str) -> "sp.csr_array":
    """Fetch the sparse rows that other ranks own: first the entries per row, then columns and values."""
    entries_n = torch.from_numpy(np.diff(own_nD.indptr).astype(np.int64))
    counts_h = halo_of(route, entries_n, transport, f"{name} counts")
    sent = {peer: own_nD[rows.numpy()] for peer, rows in route.send_slices().items()}
    sizes = {peer: int(counts.sum()) for peer, counts in route.T.pack(counts_h).items()}

    def cross(what: str, parts: dict[int, "np.ndarray[tuple[int], np.dtype[np.generic]]"]) -> Tensor:
        kind = np.int32 if what == "columns" else own_nD.dtype
        wires = {peer: torch.from_numpy(np.array(a, dtype=kind).view(np.uint8)) for peer, a in parts.items()}
        incoming = {peer: count * np.dtype(kind).itemsize for peer, count in sizes.items()}
        come = transport.begin(Key(f"{name} {what}", 0), wires, incoming).wait()
        return torch.cat([torch.empty(0, dtype=torch.uint8), *(come[peer] for peer in sorted(come))])

    columns_e = cross("columns", {peer: rows.indices for peer, rows in sent.items()}).view(torch.int32)
    values_e = cross("values", {peer: rows.data for peer, rows in sent.items()}).numpy().view(own_nD.dtype)
    indptr = np.concatenate([[0], np.cumsum(counts_h.numpy())])
    return sp.csr_array((values_e, columns_e.numpy(), indptr), shape=(len(counts_h), own_nD.shape[1]))


def _matrix(m: Adjacency) -> "sp.csr_array":
    """diag(r) A diag(c)."""
    s = m.structure
    weight = torch.ones(s.num_arcs, dtype=torch.uint8) if m.weight is None else m.weight
    out = sp.csr_array((weight.numpy(), s.indices.numpy(), s.indptr.numpy()), shape=s.shape)
    if m.row_scale is not None:
        out = sp.diags_array(m.row_scale.numpy()) @ out
    if m.col_scale is not None:
        out = out @ sp.diags_array(m.col_scale.numpy())
    return sp.csr_array(out)


def _features(rows: "sp.csr_array") -> Adjacency:
    pattern = Structure(torch.from_numpy(rows.indptr), torch.from_numpy(rows.indices), rows.shape[1])
    return Adjacency(pattern, torch.from_numpy(rows.data), None, None)
