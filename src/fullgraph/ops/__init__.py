"""Sparse products, attention over arcs, keyed dropout, layer norm and row packing, with equal results on CPU and GPU.

An arc is a directed edge j -> i, stored in the row of its target i.
"""

from fullgraph.ops.attention import attend, edge_scores, edge_softmax, spmm_heads
from fullgraph.ops.dense import Drop, aligned_rows, dense_kernels, pooled_linear, pools, rows_linear
from fullgraph.ops.extremes import arc_max, arc_min
from fullgraph.ops.gates import gated_sum
from fullgraph.ops.grouped import Groups, RelationArcs, add_grouped
from fullgraph.ops.hashing import dropout_key
from fullgraph.ops.pairs import attend_pairs
from fullgraph.ops.rows import act_dropout, add_rows, dropout_arcs, gather_rows, layer_norm
from fullgraph.ops.sparse import spmm
from fullgraph.ops.structure import Adjacency, Structure

__all__ = [
    "Adjacency",
    "Drop",
    "Groups",
    "RelationArcs",
    "Structure",
    "act_dropout",
    "add_grouped",
    "add_rows",
    "aligned_rows",
    "arc_max",
    "arc_min",
    "attend",
    "attend_pairs",
    "dense_kernels",
    "dropout_arcs",
    "dropout_key",
    "edge_scores",
    "edge_softmax",
    "gated_sum",
    "gather_rows",
    "layer_norm",
    "pooled_linear",
    "pools",
    "rows_linear",
    "spmm",
    "spmm_heads",
]
