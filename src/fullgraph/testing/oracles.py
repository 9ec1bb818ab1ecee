"""Equations written without views, channels or kernels: dense matrices, one process, plain autograd.

Legend: N nodes, D features.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.data import Graph
from fullgraph.nn import GNN, GATConv, GCNConv, GINConv, ModelSpec, SAGEConv
from fullgraph.nn.norm import BatchNorm
from fullgraph.ops import act_dropout, dropout_key
from fullgraph.train.task import task_of


def dense_arcs(graph: Graph, *, weighted: bool = True) -> Tensor:
    """A[i, j] = total weight (or number) of the arcs j -> i."""
    A = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    weight = np.ones(graph.num_arcs)
    if weighted and graph.edge_weight is not None:
        weight = graph.edge_weight.astype(np.float64)
    at = torch.from_numpy(targets), torch.from_numpy(graph.indices.astype(np.int64))
    return A.index_put_(at, torch.from_numpy(weight), accumulate=True)


def dense_matrix(graph: Graph, aggregation: str) -> Tensor:
    """The matrix that a layer multiplies by; for attention, how many arcs (loops included) join two nodes."""
    A = dense_arcs(graph, weighted=aggregation != "attention")
    if aggregation == "mean":
        degree = A.sum(1, keepdim=True)
        return torch.where(degree != 0, A / degree, 0.0)
    if aggregation == "sum":
        return A
    A = A - torch.diag(A.diagonal()) + torch.diag(loop_weights(graph, weighted=aggregation != "attention"))
    if aggregation == "attention":
        return A
    scale = A.sum(1).rsqrt()
    return scale[:, None] * A * scale[None, :]


def loop_weights(graph: Graph, *, weighted: bool) -> Tensor:
    """One self loop a node: weight one, or that of the last one it has."""
    weight = torch.ones(graph.num_nodes, dtype=torch.float64)
    if weighted and graph.edge_weight is not None:
        for node in range(graph.num_nodes):
            for arc in range(graph.indptr[node], graph.indptr[node + 1]):
                if graph.indices[arc] == node:
                    weight[node] = float(graph.edge_weight[arc])
    return weight


def dense_features(graph: Graph) -> Tensor:
    x = graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray()
    return torch.from_numpy(np.array(x, dtype=np.float64))


class DenseModel:
    """A GNN's own weights under dense algebra."""

    def __init__(self, graph: Graph, spec: ModelSpec, model: GNN, ids: Tensor | None = None, precompute: bool = True):
        self.model, self.spec, self.M = model, spec, dense_matrix(graph, spec.aggregation)
        self.x = dense_features(graph)
        self.ids = torch.arange(graph.num_nodes) if ids is None else ids
        self.known = precompute and isinstance(graph.x, np.ndarray) and spec.aggregation != "attention"

    def logits(self, step: int) -> Tensor:
        model, z = self.model, self.x
        for layer, module in enumerate([*model.convs, *model.linears]):
            h, other = self._drop(z, layer, step), None
            if layer == 0 and self.known:
                other = self._drop(self.M @ z, layer, step, salt=0x5DEECE66D)
            out = self._conv(module, h, other) if layer < len(model.convs) else F.linear(h, module.weight, module.bias)
            if layer < len(model.norms):
                norm = model.norms[layer]
                out = self._batch(norm, out) if isinstance(norm, BatchNorm) else norm(out)
                if model.residual and layer and out.shape == z.shape:
                    out = out + z
            z = out
        return z

    def _drop(self, z: Tensor, layer: int, step: int, salt: int = 0) -> Tensor:
        h = z.relu() if layer else z
        p = self.model.dropout if self.model.training else 0.0
        if p == 0.0:
            return h
        key = dropout_key(self.model.seed, step, layer) ^ salt
        return h * act_dropout(torch.ones_like(h), self.ids, key=key, p=p, act="none")

    def _conv(self, conv: torch.nn.Module, h: Tensor, aggregated: Tensor | None) -> Tensor:
        Mh = self.M @ h if aggregated is None else aggregated
        if isinstance(conv, GCNConv):
            return Mh @ conv.lin.weight.T + conv.bias
        if isinstance(conv, SAGEConv):
            return h @ conv.lin_self.weight.T + conv.lin_self.bias + Mh @ conv.lin_neigh.weight.T
        if isinstance(conv, GINConv):
            return F.linear(F.relu(F.linear((1 + conv.eps) * h + Mh, conv.lin1.weight, conv.lin1.bias)),
                            conv.lin2.weight, conv.lin2.bias)  # fmt: skip
        assert isinstance(conv, GATConv)
        y = (h @ conv.lin.weight.T).unflatten(1, (conv.heads, conv.head_width))
        scores = (y * conv.att_dst).sum(-1)[:, None] + (y * conv.att_src).sum(-1)[None, :]
        scores = F.leaky_relu(scores, 0.2) + self.M.log()[:, :, None]  # m arcs between two nodes count m times
        out = torch.einsum("ijh,jho->iho", scores.softmax(1), y)
        return (out.flatten(1) if conv.concat else out.mean(1)) + conv.bias

    @staticmethod
    def _batch(norm: BatchNorm, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)


def dense_trace(
    graph: Graph, spec: ModelSpec, steps: int = 5, *, ids: Tensor | None = None, precompute: bool = True
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Losses and all weight gradients of `steps` Adam steps, on one process."""
    model = spec.build(graph.num_features, graph.num_classes, seed=3, dtype=torch.float64)
    dense = DenseModel(graph, spec, model, ids, precompute)
    task = task_of(multilabel=graph.multilabel, classes=graph.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    rows = torch.from_numpy(graph.train_mask[:, 0].copy()).nonzero().flatten()
    y = torch.from_numpy(np.array(graph.y))
    y = y.double() if graph.multilabel else y
    losses, grads = [], []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = task.loss(dense.logits(step)[rows], y[rows], len(rows))
        loss.backward()
        losses.append(loss.detach())
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    return torch.stack(losses), grads
