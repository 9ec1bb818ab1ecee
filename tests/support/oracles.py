"""Equations written without views, channels or kernels: dense matrices, one process, plain autograd.

Legend: N nodes, D features.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fullgraph.data import Graph
from fullgraph.nn import GCNII, GNN, Chain, Conv, GATConv, GCN2Conv, GCNConv, GINConv, ModelSpec, SAGEConv, Stack
from fullgraph.nn.deep import InitialResidual, PreActivation
from fullgraph.nn.norm import BatchNorm
from fullgraph.ops import act_dropout, dropout_key
from fullgraph.tasks import node_task

Seen = Callable[[int, int, Tensor], Tensor]  # (step, layer, rows) -> the rows as other parts see them
Trained = tuple[Tensor, list[dict[str, Tensor]]]  # losses and all weight gradients, by step
Objective = Callable[[int, Tensor], Tensor]  # (step, every node's output) -> loss


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
    """The matrix that a layer multiplies by; for attention, the number of arcs (loops included) between two nodes."""
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
    """One self loop per node: weight one, or that of its last self loop."""
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


def _terms(conv: Conv, h: Tensor) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """A convolution as  finish(own + M h W^T):  its own term, W and the last function."""
    if isinstance(conv, GCNConv):
        return conv.bias, conv.lin.weight, lambda z: z
    if isinstance(conv, SAGEConv):
        return F.linear(h, conv.lin_self.weight, conv.lin_self.bias), conv.lin_neigh.weight, lambda z: z
    assert isinstance(conv, GINConv)
    own = F.linear((1 + conv.eps) * h, conv.lin1.weight, conv.lin1.bias)
    norm, last = conv.norm, conv.lin2
    return (
        own,
        conv.lin1.weight,
        lambda z: F.linear(
            F.relu(F.layer_norm(z, z.shape[-1:], norm.weight, norm.bias, norm.eps)), last.weight, last.bias
        ),
    )


class DenseModel:
    """A model's own weights under dense algebra.

    `seen(layer, rows)` are the rows as nodes of other parts see them (by default unchanged; [P, N, D] if parts see
    different rows); `part` is the owner of each node.
    """

    def __init__(
        self, graph: Graph, spec: ModelSpec, model: Chain, ids: Tensor | None = None, precompute: bool = True,
        part: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.model, self.spec, self.M = model, spec, dense_matrix(graph, spec.aggregation)
        self.x = dense_features(graph)
        self.ids = torch.arange(graph.num_nodes) if ids is None else ids
        self.sparse = not isinstance(graph.x, np.ndarray) and not spec.encodes  # where it is aggregated
        self.precompute = precompute and spec.aggregation != "attention" and not spec.encodes
        part = torch.zeros(graph.num_nodes) if part is None else part
        self.part = part
        self.inside = (part[:, None] == part[None, :]).to(self.M.dtype)
        self.seen: Callable[[int, Tensor], Tensor] = lambda layer, rows: rows
        self.narrow_first, self.input_ahead = True, False
        self.attention_maps_first = False  # however wide its rows become
        self.absent: Tensor | None = None  # [P, N]: nodes that a part's attention does not see in this layer
        self.known_halo = precompute and not spec.encodes
        self.keeps_halo = True  # of sparse input rows, if their aggregation has more entries than they and the arcs
        self.num_arcs = graph.num_arcs

    def see(self, seen: Callable[[int, Tensor], Tensor]) -> None:
        self.seen = seen

    def logits(self, step: int) -> Tensor:
        if isinstance(self.model, GNN):
            return self._stack(self.model, step)
        if isinstance(self.model, InitialResidual):
            return self._initial_residual(self.model, step)
        assert isinstance(self.model, PreActivation)
        return self._pre_activation(self.model, step)

    def _stack(self, model: GNN, step: int) -> Tensor:
        assert isinstance(self.spec, Stack)
        z = self.x
        for layer, module in enumerate([*model.convs, *model.linears]):
            h = z.relu() if layer else z
            if layer < len(model.convs):
                out = self._conv(module, h, layer, step)
            else:
                out = F.linear(self._drop(h, layer, step), module.weight, module.bias)
            if layer < len(model.norms):
                out = self._norm(model.norms[layer], out)
                if self.spec.residual and layer and out.shape == z.shape:
                    out = out + z
            z = out
        return z

    def _initial_residual(self, model: InitialResidual, step: int) -> Tensor:
        assert isinstance(self.spec, GCNII)
        z = F.linear(self._drop(self.x, -1, step), model.encoder.weight, model.encoder.bias)
        first, eye = z.relu(), torch.eye(self.spec.hidden, dtype=z.dtype)
        for layer, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
            assert isinstance(conv, GCN2Conv)
            alpha, beta = self.spec.alpha, math.log(self.spec.lam / (layer + 1) + 1)
            mixed = (1 - alpha) * self._aggregate(z.relu(), layer, step) + alpha * first
            z = self._norm(norm, mixed @ ((1 - beta) * eye + beta * conv.lin.weight.T))
        return F.linear(self._drop(z.relu(), len(model.convs), step), model.decoder.weight, model.decoder.bias)

    def _pre_activation(self, model: PreActivation, step: int) -> Tensor:
        h, last = F.linear(self.x, model.encoder.weight, model.encoder.bias), len(model.convs)
        for layer, (conv, norm) in enumerate(zip(model.convs, model.norms[:last], strict=True)):
            assert isinstance(conv, GCNConv)
            h = h + self._conv(conv, self._norm(norm, h).relu(), layer, step)
        h = self._norm(model.norms[last], h).relu()
        return F.linear(self._drop(h, last, step), model.decoder.weight, model.decoder.bias)

    def _drop(self, h: Tensor, layer: int, step: int, salt: int = 0) -> Tensor:
        kept = layer == 0 and not getattr(self.spec, "input_dropout", True)
        p = self.spec.dropout if self.model.training and not kept else 0.0
        if p == 0.0:
            return h
        key = dropout_key(self.model.blocks[0].seed, step, layer) ^ salt
        ones = torch.ones(h.shape[-2:], dtype=h.dtype)
        return h * act_dropout(ones, self.ids, key=key, p=p, act="none")

    def _mean(self, own: Tensor, others: Tensor) -> Tensor:
        """M applied to rows as their own part sees them, and as others do ([N, D], or [P, N, D] by part)."""
        cross = self.M * (1 - self.inside)
        if others.dim() == 2:
            return (self.M * self.inside) @ own + cross @ others
        by_part = torch.stack([(self.part == p)[:, None] * (cross @ rows) for p, rows in enumerate(others)])
        return (self.M * self.inside) @ own + by_part.sum(0)

    def _conv(self, conv: Conv, h: Tensor, layer: int, step: int) -> Tensor:
        dropped = self._drop(h, layer, step)
        if isinstance(conv, GATConv):
            return self._attend(conv, dropped, self._seen_to_attend(conv, h, layer, step))
        own, weight, finish = _terms(conv, dropped)
        if layer == 0 and self.precompute and not (self.sparse and self.narrow_first and not self.input_ahead):
            if self.sparse and self.keeps_halo and not self._aggregation_is_small():
                return finish(own + self.M @ dropped @ weight.T)
            return finish(own + self._drop(self.M @ h, layer, step, salt=0x5DEECE66D) @ weight.T)
        if (self.sparse and layer == 0) or (self.narrow_first and conv.mapped_width < conv.in_width):
            rows = dropped @ weight.T  # mapped first, so narrow rows cross
            return finish(own + self._mean(rows, self.seen(layer, rows)))
        return finish(own + self._aggregate(h, layer, step) @ weight.T)

    def _aggregate(self, h: Tensor, layer: int, step: int) -> Tensor:
        others = self._drop(self.seen(layer, h), layer, step)  # dropout after the exchange, with the owner's bits
        return self._mean(self._drop(h, layer, step), others)

    def _aggregation_is_small(self) -> bool:
        full = (self.M != 0).double() @ (self.x != 0).double()
        return int((full > 0).sum()) <= int((self.x != 0).sum()) + self.num_arcs

    def _seen_to_attend(self, conv: GATConv, h: Tensor, layer: int, step: int) -> Tensor:
        """W x of other parts' nodes, mapped before it crosses or after; all parts may know input rows."""
        self.absent = None
        known = layer == 0 and self.known_halo and (self.input_ahead or not self.narrow_first)
        narrow = self.narrow_first and conv.lin.out_features <= h.shape[1]
        if self.attention_maps_first or (not known and (narrow or (self.sparse and layer == 0))):
            return self.seen(layer, self._drop(h, layer, step) @ conv.lin.weight.T)
        return self._drop(h if known else self.seen(layer, h), layer, step) @ conv.lin.weight.T

    def _attend(self, conv: GATConv, h: Tensor, others: Tensor) -> Tensor:
        flat, heads = h @ conv.lin.weight.T, (conv.heads, conv.head_width)
        y, out = flat.unflatten(1, heads), []
        for p in self.part.unique():
            mine = self.part == p
            seen = (others if others.dim() == 2 else others[int(p)]).unflatten(1, heads)
            rows = torch.where(mine[:, None, None], y, seen)
            scores = (y[mine] * conv.att_dst).sum(-1)[:, None] + (rows * conv.att_src).sum(-1)[None]
            arcs = self.M[mine] if self.absent is None else self.M[mine] * ~self.absent[int(p)]
            # m arcs between two nodes count m times
            alpha = (F.leaky_relu(scores, 0.2) + arcs.log()[:, :, None]).softmax(1)
            out.append(torch.einsum("ijh,jho->iho", alpha, rows))
        order = torch.cat([(self.part == p).nonzero().flatten() for p in self.part.unique()])
        z = torch.cat(out)[torch.argsort(order)]
        return (z.flatten(1) if conv.concat else z.mean(1)) + conv.bias

    @staticmethod
    def _norm(norm: nn.Module, x: Tensor) -> Tensor:
        if isinstance(norm, BatchNorm):
            return F.batch_norm(x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
        out: Tensor = norm(x)
        return out


def of_labels(graph: Graph) -> Objective:
    """The mean loss of the training nodes' classes."""
    task = node_task(multilabel=graph.multilabel, classes=graph.num_classes)
    rows = torch.from_numpy(graph.train_mask[:, 0].copy()).nonzero().flatten()
    y = torch.from_numpy(np.array(graph.y))
    y = y.double() if graph.multilabel else y
    return lambda step, out: task.loss(out[rows], y[rows], len(rows))


def trained(
    graph: Graph, dense: DenseModel, steps: int, *, opened: Callable[[int], None] = lambda step: None,
    extra: Callable[[], Tensor | float] = lambda: 0.0, closed: Callable[[int], None] = lambda step: None,
    objective: Objective | None = None, optimizer: torch.optim.Optimizer | None = None,
) -> Trained:  # fmt: skip
    """Adam steps on the loss, to whose gradients `extra` may add; opened and closed are called in every step."""
    objective = objective or of_labels(graph)
    optimizer = optimizer or torch.optim.Adam(dense.model.parameters(), lr=0.05)
    losses, grads = [], []
    for step in range(steps):
        opened(step)
        optimizer.zero_grad()
        loss = objective(step, dense.logits(step))
        (loss + extra()).backward()
        closed(step)
        losses.append(loss.detach())
        grads.append({name: p.grad.clone() for name, p in dense.model.named_parameters() if p.grad is not None})
        optimizer.step()
    return torch.stack(losses), grads


def dense_trace(
    graph: Graph, spec: ModelSpec, steps: int = 5, *, ids: Tensor | None = None, precompute: bool = True,
    part: Tensor | None = None, seen: Seen | None = None, model: Chain | None = None,
    objective: Objective | None = None,
) -> Trained:  # fmt: skip
    """Losses and all weight gradients of `steps` Adam steps, on one process.

    With `part`, seen(step, layer, rows) are the rows as nodes of other parts see them, and a layer's input crosses.
    model, objective: for a task other than classes of nodes.
    """
    model = model or spec.build(graph.num_features, graph.num_classes, seed=3, dtype=torch.float64)
    dense = DenseModel(graph, spec, model, ids, precompute, part)
    dense.narrow_first = part is None
    opened = lambda step: dense.see(partial(seen, step)) if seen else None  # noqa: E731
    return trained(graph, dense, steps, opened=opened, objective=objective)
