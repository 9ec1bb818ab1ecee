"""Scaling of node features: fitted once, then applied to blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.axes import FEATURE_KINDS
from fullgraph.data.arrays import Array, FeatureMatrix
from fullgraph.data.graph import Graph
from fullgraph.data.validate import row_blocks
from fullgraph.errors import InputError
from fullgraph.graph_types import GraphTypes


@dataclass(frozen=True, slots=True, eq=False)
class FeatureScaler:
    """none: x;  row: x_i / sum_j |x_ij| (zero rows stay zero);  standard: (x - shift) / scale by column.

    Rows are scaled independently, so blocks may come in any order and the whole matrix is never needed.
    """

    kind: str
    shift: Array | None = None  # [F]; None for sparse features, which are not centred in order to stay sparse
    scale: Array | None = None  # [F]

    def apply(self, block: FeatureMatrix) -> FeatureMatrix:
        """Return the scaled rows as a new block of the same form, with float16 as float32; none returns `block`."""
        if self.kind == "none":
            return block
        return self._sparse(block) if sp.issparse(block) else self._dense(np.asarray(block))

    def _dense(self, block: Array) -> Array:
        out = block.astype(np.promote_types(block.dtype, np.float32))
        if self.kind == "row":
            total = np.abs(out).sum(axis=1, keepdims=True)
            out /= np.where(total > 0, total, 1)
            return out
        assert self.scale is not None
        if self.shift is not None:
            out -= self.shift.astype(out.dtype)
        out /= self.scale.astype(out.dtype)
        return out

    def _sparse(self, block: Any) -> Any:
        length = np.diff(block.indptr)
        if self.kind == "row":
            total = np.bincount(np.repeat(np.arange(block.shape[0]), length), np.abs(block.data), block.shape[0])
            divisor = np.repeat(np.where(total > 0, total, 1), length)
        else:
            assert self.scale is not None
            divisor = self.scale[block.indices]
        data = block.data / divisor.astype(block.dtype)
        return sp.csr_array((data, block.indices, block.indptr), shape=block.shape)


def fit_features(graph: Graph, kind: str, split: int = 0) -> FeatureScaler:
    """Fit a scaler; `standard` uses mean and deviation over training nodes, and leaves constant columns unchanged."""
    if kind not in FEATURE_KINDS:
        raise InputError(f"features '{kind}' is unknown: choose from {', '.join(FEATURE_KINDS)}")
    if not 0 <= split < graph.num_splits:
        raise InputError(f"split {split} does not exist: choose from 0 to {graph.num_splits - 1}")
    if kind != "standard":
        return FeatureScaler(kind)
    if graph.types:
        raise InputError("features 'standard' is fitted on training nodes, and of a typed graph's types only one has "
                         "any: scale the features yourself, or use row")  # fmt: skip
    train = graph.train_mask[:, split]
    if sp.issparse(graph.x):
        mean, deviation = _sparse_moments(graph.x[train])
    else:
        mean, deviation = _dense_moments(graph.x, train)
    varies = deviation > 1e-7 * np.abs(mean)  # smaller deviations are rounding errors
    scale = np.where(varies, deviation, 1.0)
    return FeatureScaler(kind, None if sp.issparse(graph.x) else np.where(varies, mean, 0.0), scale)


def with_lengths(graph: Graph, scaler: FeatureScaler) -> GraphTypes:
    """Return the types of a typed graph's union with the lengths of their scaled rows."""
    found, bounds = [], pairwise(graph.types.starts)
    for kind, (low, high) in zip(graph.types.nodes, bounds, strict=True):
        blocks = (graph.x[low + rows.start : low + rows.stop] for rows in row_blocks(high - low, graph.num_features))
        total = sum(float(np.square(scaler.apply(block).data, dtype=np.float64).sum()) for block in blocks)
        found.append(replace(kind, length=(total / max(1, high - low)) ** 0.5))
    return replace(graph.types, nodes=tuple(found))


def _dense_moments(x: Array, train: Array) -> tuple[Array, Array]:
    count = int(train.sum())
    mean, square = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for rows in row_blocks(*x.shape):
        mean += _rows(x, rows, train).sum(axis=0, dtype=np.float64)
    mean /= max(1, count)
    for rows in row_blocks(*x.shape):  # a second pass, because E[x^2] - E[x]^2 loses digits
        square += np.square(_rows(x, rows, train) - mean).sum(axis=0)
    return mean, np.sqrt(square / max(1, count))


def _rows(x: Array, rows: slice, train: Array) -> Array:
    """Return training rows in a fixed memory layout: numpy's order of additions depends on the layout."""
    return np.ascontiguousarray(x[rows][train[rows]])


def _sparse_moments(x: Any) -> tuple[Array, Array]:
    count, width = x.shape
    filled = np.bincount(x.indices, minlength=width)
    mean = np.bincount(x.indices, x.data, width) / max(1, count)
    square = np.bincount(x.indices, np.square(x.data - mean[x.indices]), width) + (count - filled) * np.square(mean)
    return mean, np.sqrt(square / max(1, count))
