"""Layers with a matrix for each relation, over edges with `edge_type`.

Legend as in __init__.py; R relations, c pairs of a source and a relation, s pairs of a target and a relation.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from fullgraph.graph_types import EDGE_TYPE
from fullgraph.ops import Adjacency, RelationArcs, Structure, add_grouped, spmm
from fullgraph.own_model.fast.aggregations import SUMS
from fullgraph.own_model.fast.arcs import own_ends
from fullgraph.own_model.forward import Forward
from fullgraph.own_model.pyg_view import PygView
from fullgraph.placement.holding.adjacency import dense_is_less


def rgcn(forward: Forward, conv: Any, x: Any, edge_index: Any, edge_type: Any = None) -> Tensor | None:
    """y[i] = x[i] W_0 + b + sum_r (sum or mean of x[j] over the edges of relation r into i) W_r"""
    ends, view = own_ends(forward, x, edge_index), forward.view
    if ends is None or not ends.same or not isinstance(conv.aggr, str) or conv.aggr not in SUMS:
        return None
    if edge_type is not view.graph.arcs.fields.get(EDGE_TYPE) or _most(view) >= conv.num_relations:
        return None
    if type(conv).__name__ == "RGCNConv" and _by_segments(conv):
        return None
    with forward.unseen():
        weight_RIO, sparse = _weights(conv), _sparse_sources(view) if x is view.features else None
        out = x.new_zeros(len(x), conv.out_channels)
        if sparse is None:
            mean_sI = forward.product(x, "relations" if conv.aggr == "mean" else "relation sums")
            groups = view.matrices("relations", weighted=False).groups
            assert groups is not None
            out = out if conv.root is None else x @ conv.root
            out = add_grouped(out, mean_sI, weight_RIO.transpose(1, 2), None, groups, gathers=False, scatters=True)
        else:
            forward.sources(x)  # known: nothing crosses
            out = out if conv.root is None else spmm(sparse.own, conv.root)
            y_cO = torch.cat([spmm(x_cI, weight_RIO[kind]) for kind, x_cI in sparse.columns])
            out = spmm(sparse.arcs.sums, spmm(sparse.means if conv.aggr == "mean" else sparse.sums, y_cO), out)
        return forward.as_nodes(out if conv.bias is None else out + conv.bias)


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


def _most(view: PygView) -> int:
    """The largest number of a relation of this rank's edges."""

    def most() -> int:
        kind_e = view.graph.arcs.fields[EDGE_TYPE]
        return int(kind_e.max()) if len(kind_e) else 0

    with torch._C.DisableTorchFunction():
        return view.once("largest relation", most)


def _by_segments(conv: Any) -> bool:
    """Whether PyG would compute a mean over the edges of all relations, as it does with pyg-lib."""
    return bool(sys.modules["torch_geometric.typing"].WITH_SEGMM) and conv.num_bases is None and conv.num_blocks is None


class _Sparse:
    """Sparse features, and edges whose columns are pairs of a source and a relation."""

    def __init__(self, view: PygView, x_mI: Tensor) -> None:
        arcs, rows = view.graph.arcs, _as_sparse(x_mI)
        self.own = rows.take(torch.arange(view.num_owned, device=x_mI.device))
        order = torch.argsort(arcs.fields[EDGE_TYPE], stable=True)
        order = order[torch.argsort(arcs.targets()[order], stable=True)]
        pattern = Structure(arcs.indptr, arcs.indices[order], len(x_mI))
        self.arcs = RelationArcs.of(pattern, arcs.fields[EDGE_TYPE][order])
        columns = self.arcs.columns
        self.columns = [(kind, rows.take(columns.rows[span])) for kind, span in columns.spans()]
        self.sums = Adjacency(self.arcs.pairs)
        degree_s = self.arcs.pairs.indptr.diff().clamp(min=1)
        self.means = Adjacency(self.arcs.pairs, row_scale=1 / degree_s.to(x_mI.dtype))


def _as_sparse(x_mI: Tensor) -> Adjacency:
    row, column = x_mI.nonzero(as_tuple=True)
    indptr = torch.searchsorted(row, torch.arange(len(x_mI) + 1, device=row.device))
    return Adjacency(Structure(indptr, column.int(), x_mI.shape[1]), x_mI[row, column])


def _sparse_sources(view: PygView) -> _Sparse | None:
    """The features of owned and halo rows; None if they are dense on a rank."""

    def sparse() -> _Sparse | None:
        x_mI = view.known_sources
        dense = dense_is_less(int(x_mI.count_nonzero()), x_mI.numel())
        some = view.reduce(torch.tensor([int(dense or not view.graph.arcs.indices.numel())]))
        return None if int(some) else _Sparse(view, x_mI)

    return view.once("sparse features by relation", sparse)
