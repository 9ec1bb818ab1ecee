"""Layers with a matrix for each relation, over edges with `edge_type`.

Legend as in __init__.py; R relations, c pairs of a source and a relation, s pairs of a target and a relation.
"""

import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.graph_types import EDGE_TYPE
from fullgraph.ops import Adjacency, RelationArcs, Structure, add_grouped, spmm
from fullgraph.own_model.fast.aggregations import SUMS
from fullgraph.own_model.fast.arcs import own_ends
from fullgraph.own_model.forward import Forward
from fullgraph.own_model.pyg_view import PygView
from fullgraph.own_model.rows.spaces import rows_of
from fullgraph.placement.holding.adjacency import Arcs, Matrices, build, dense_is_less


def rgcn(forward: Forward, conv: Any, x: Any, edge_index: Any, edge_type: Any = None) -> Tensor | None:
    """y[i] = x[i] W_0 + b + sum_r (sum or mean of x[j] over the edges of relation r into i) W_r"""
    ends = own_ends(forward, x, edge_index)
    if ends is None or not ends.same or not isinstance(conv.aggr, str) or conv.aggr not in SUMS:
        return None
    if not is_number_of_arcs(forward, edge_type) or (type(conv).__name__ == "RGCNConv" and _by_segments(conv)):
        return None
    with forward.unseen():
        relations = _Relations.of(forward.view, edge_type)
        if relations.most >= conv.num_relations:
            return None
        weight_RIO, is_mean = _weights(conv), conv.aggr == "mean"
        sparse = relations.sparse if x is forward.view.features else None
        if sparse is None:
            mean_sI = forward.product(x, relations.matrices(is_mean))
            out = x.new_zeros(len(x), conv.out_channels) if conv.root is None else x @ conv.root
            weight_ROI = weight_RIO.transpose(1, 2)
            out = add_grouped(out, mean_sI, weight_ROI, None, relations.groups, gathers=False, scatters=True)
        else:
            forward.sources(x)  # known, so nothing crosses
            y_cO = torch.cat([spmm(x_cI, weight_RIO[kind]) for kind, x_cI in sparse.columns])
            own = None if conv.root is None else spmm(sparse.own, conv.root)
            out = spmm(sparse.arcs.sums, spmm(sparse.means if is_mean else sparse.sums, y_cO), own)
        return forward.as_nodes(out if conv.bias is None else out + conv.bias)


def is_number_of_arcs(forward: Forward, values: Any) -> bool:
    """Whether a tensor has a whole number for each arc of the graph."""
    rows = rows_of(values)
    if not isinstance(values, Tensor) or rows is None or rows.dim or not rows.is_single or rows.points is not None:
        return False
    with torch._C.DisableTorchFunction():
        forward.guard.meet_maker(values)
        return values.dim() == 1 and not values.is_floating_point() and rows.space is forward.view.edges


def _weights(conv: Any) -> Tensor:
    """The matrices of all relations [R, I, O]."""
    weight: Tensor = conv.weight
    if conv.num_bases is not None:
        of_bases: Tensor = torch.tensordot(conv.comp, weight, dims=1)
        return of_bases
    if conv.num_blocks is not None:  # [R, B, I/B, O/B], on the diagonal
        diagonal = torch.eye(conv.num_blocks, dtype=weight.dtype, device=weight.device)
        return (weight[:, :, :, None] * diagonal[:, None, :, None]).flatten(3, 4).flatten(1, 2)
    return weight


def _by_segments(conv: Any) -> bool:
    """Whether PyG would compute a mean over the edges of all relations, as it does with pyg-lib."""
    return bool(sys.modules["torch_geometric.typing"].WITH_SEGMM) and conv.num_bases is None and conv.num_blocks is None


class _Relations:
    """The edges of a view by relation."""

    def __init__(self, view: PygView, kind_e: Tensor) -> None:
        self._view, self.kind_e = view, kind_e.detach().clone()  # the model may write to its own tensor
        self.most = int(kind_e.max()) if len(kind_e) else 0
        self._arcs = replace(view.graph.arcs, weight=None, fields={EDGE_TYPE: self.kind_e})
        self._means = build(self._arcs, "relations", lambda x: x, view.features.dtype)
        assert self._means.groups is not None
        self.groups = self._means.groups

    @classmethod
    def of(cls, view: PygView, kind_e: Tensor) -> "_Relations":
        known = view._fixed.get("by relation")
        if known is None or not torch.equal(known.kind_e, kind_e):
            known = view._fixed["by relation"] = cls(view, kind_e)
        found: _Relations = known
        return found

    def matrices(self, is_mean: bool) -> Matrices:
        """Means or sums, with a row for each pair of a target and a relation."""
        m = self._means
        inner, outer = (one if is_mean else replace(one, row_scale=None) for one in (m.inner, m.outer))
        return replace(m, inner=inner, outer=outer)

    @cached_property
    def sparse(self) -> "_Sparse | None":
        """The features of sources, if they are sparse on all ranks."""
        x_mI = self._view.known_sources
        dense = dense_is_less(int(x_mI.count_nonzero()), x_mI.numel())
        dense_somewhere = self._view.reduce(torch.tensor([int(dense or not len(self.kind_e))]))
        return None if int(dense_somewhere) else _Sparse(self._arcs, x_mI)


class _Sparse:
    """Sparse features, and edges whose columns are pairs of a source and a relation."""

    def __init__(self, arcs: Arcs, x_mI: Tensor) -> None:
        rows, kind_e = _as_sparse(x_mI), arcs.fields[EDGE_TYPE]
        self.own = rows.take(torch.arange(arcs.num_owned, device=x_mI.device))
        order = torch.argsort(kind_e, stable=True)
        order = order[torch.argsort(arcs.targets()[order], stable=True)]
        self.arcs = RelationArcs.of(Structure(arcs.indptr, arcs.indices[order], len(x_mI)), kind_e[order])
        columns = self.arcs.columns
        self.columns = [(kind, rows.take(columns.rows[span])) for kind, span in columns.spans()]
        self.sums = Adjacency(self.arcs.pairs)
        degree_s = self.arcs.pairs.indptr.diff().clamp(min=1)
        self.means = Adjacency(self.arcs.pairs, row_scale=1 / degree_s.to(x_mI.dtype))


def _as_sparse(x_mI: Tensor) -> Adjacency:
    row, column = x_mI.nonzero(as_tuple=True)
    indptr = torch.searchsorted(row, torch.arange(len(x_mI) + 1, device=row.device))
    return Adjacency(Structure(indptr, column.int(), x_mI.shape[1]), x_mI[row, column])
