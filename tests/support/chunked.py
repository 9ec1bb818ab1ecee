"""GNNPipe's equations (arXiv:2308.10087) without stages, channels or buffers: dense matrices and plain autograd."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.data import Graph
from fullgraph.nn import Chain, GATConv, ModelSpec
from tests.support.oracles import DenseModel, Trained, trained


class Chunked(DenseModel):
    """Node i reads node j as of now where j's chunk is done before i's, or is i's own; else as of the last snapshot.

    gradients: "double": those to fresh rows of another chunk count twice:  2 h - const(h)  has the value of h. "last":
    node j also gets, from every product z_i = sum_j m_ij h_j that read it historical, the gradient that z_i had in the
    step before:  sum_ij m_ij <h_j, g_i>  is added to the loss. dropped: a snapshot has its own step's dropout.
    """

    def __init__(
        self, graph: Graph, spec: ModelSpec, model: Chain, chunk_N: Tensor, gradients: str, *, dropped: bool = False
    ) -> None:
        super().__init__(graph, spec, model)
        self.chunk_N, self.gradients, self.dropped, self.narrow_first = chunk_N, gradients, dropped, False
        self.attention_maps_first = True
        self.keeps_halo = False  # stages hold an aggregation of their input, however dense
        self.history: dict[int, Tensor] = {}
        self.snapshot: dict[int, Tensor] = {}
        self.seen = self._seen
        self.products: list[Tensor] = []  # of this step, in order
        self.last: list[Tensor] = []  # the gradients of the last step's

    def open(self, order: Sequence[int], *, exact: bool) -> None:
        """exact: all nodes are of one chunk in this step."""
        slot = torch.empty(len(order), dtype=torch.int64)
        slot[torch.tensor(order)] = torch.arange(len(order))
        slot_N = torch.zeros_like(self.chunk_N) if exact else slot[self.chunk_N]
        self.same = (slot_N[:, None] == slot_N[None, :]).to(self.M.dtype)
        self.earlier = (slot_N[:, None] > slot_N[None, :]).to(self.M.dtype)
        self.later = 1 - self.same - self.earlier
        self.products, self.extra = [], torch.zeros((), dtype=torch.float64)

    def close(self, *, freeze: bool) -> None:
        if not freeze:
            self.history |= self.snapshot
        if self.gradients == "last":
            self.last = [z.grad for z in self.products if z.grad is not None]

    def _seen(self, layer: int, rows: Tensor) -> Tensor:
        self.snapshot[layer] = rows.detach()
        return self.history.get(layer, torch.zeros_like(rows))

    def _fresh(self, rows: Tensor) -> Tensor:
        return 2 * rows - rows.detach() if self.gradients == "double" else rows

    def _mean(self, own: Tensor, others: Tensor) -> Tensor:
        M = self.M
        z = (M * self.same) @ own + (M * self.earlier) @ self._fresh(own) + (M * self.later) @ others
        if self.gradients == "last":
            z.retain_grad()
            if self.last:
                self.extra = self.extra + (own * ((M * self.later).T @ self.last[len(self.products)])).sum()
            self.products.append(z)
        return z

    def _aggregate(self, h: Tensor, layer: int, step: int) -> Tensor:
        if not self.dropped:
            return super()._aggregate(h, layer, step)
        rows = self._drop(h, layer, step)
        return self._mean(rows, self.seen(layer, rows))

    def _attend(self, conv: GATConv, h: Tensor, others: Tensor) -> Tensor:
        flat = h @ conv.lin.weight.T
        versions = (flat, self._fresh(flat), others)
        rows = [version.unflatten(1, (conv.heads, conv.head_width)) for version in versions]
        masks = [mask[:, :, None] for mask in (self.same, self.earlier, self.later)]
        source = sum(mask * (y * conv.att_src).sum(-1)[None] for mask, y in zip(masks, rows, strict=True))
        scores = F.leaky_relu((rows[0] * conv.att_dst).sum(-1)[:, None] + source, 0.2)
        alpha = (scores + self.M.log()[:, :, None]).softmax(1)
        out = torch.zeros_like(rows[0])
        for mask, y in zip(masks, rows, strict=True):
            out = out + torch.einsum("ijh,jho->iho", alpha * mask, y)
        return (out.flatten(1) if conv.concat else out.mean(1)) + conv.bias


def chunked_trace(
    graph: Graph, spec: ModelSpec, chunk_N: Tensor, order: Callable[[int], Sequence[int]], steps: int = 5, *,
    freeze: int = 23, late: bool = False, dropped: bool = False, gradients: str = "double",
    exact_from: int | None = None,
) -> Trained:  # fmt: skip
    """Losses and weight gradients of steps with the mixed forward pass, chunks in the order that order(step) says.

    exact_from: the first step that has no chunks.
    """
    model = spec.build(graph.num_features, graph.num_classes, seed=3, dtype=torch.float64)
    dense = Chunked(graph, spec, model, chunk_N, gradients, dropped=dropped)

    return trained(
        graph,
        dense,
        steps,
        opened=lambda step: dense.open(order(step), exact=exact_from is not None and step >= exact_from),
        extra=lambda: dense.extra,
        closed=lambda step: dense.close(freeze=(step + 1 if late else step) % freeze != 0),
    )
