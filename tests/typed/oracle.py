"""Typed graphs with unusual shapes, and models on them as equations: one dense matrix per relation, plain autograd.

Legend: N nodes of all types.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.codec import Full, LowBit
from fullgraph.data import TypedGraph
from fullgraph.nn import HeteroSAGEConv, HGTConv, RGATConv, RGCNConv
from fullgraph.nn.norm import BatchNorm
from fullgraph.nn.typed_input import DROPPED_ROWS
from fullgraph.ops import act_dropout, dropout_key
from fullgraph.partition import Assignment
from tests.support import coded, stale_trace
from tests.support.oracles import Trained, trained

SIZES = {"author": 17, "paper": 23, "venue": 5, "nobody": 0, "topic": 9}  # venue, nobody and topic have no features
RELATIONS = {
    ("author", "writes", "paper"): 50,
    ("paper", "written_by", "author"): 50,
    ("paper", "cites", "paper"): 40,  # directed, with duplicates and self loops
    ("venue", "publishes", "paper"): 23,
    ("paper", "on", "topic"): 30,
    ("topic", "of", "author"): 12,
    ("venue", "never", "author"): 0,
    ("nobody", "knows", "paper"): 0,
}


def typed_graph(*, seed: int = 0, weighted: bool = False, multilabel: bool = False) -> TypedGraph:
    """Dense, sparse and no features, an empty type, empty relations; labels on papers, which are not the first type."""
    rng = np.random.default_rng(seed)
    papers = SIZES["paper"]
    y = (rng.random((papers, 4)) < 0.4).astype(np.float32) if multilabel else np.arange(papers) % 4
    masks = {f"{name}_mask": np.arange(papers) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    thin = rng.standard_normal((papers, 20)) * (rng.random((papers, 20)) < 0.15)
    nodes = {kind: {"num_nodes": size} for kind, size in SIZES.items()}
    nodes["author"] = {"x": rng.standard_normal((SIZES["author"], 6))}
    nodes["paper"] = {"x": sp.csr_array(thin), "y": y, **masks, "names": [f"p{i}" for i in range(papers)]}
    edges = {}
    for (source, name, target), count in RELATIONS.items():
        ends = [rng.integers(0, SIZES[end], count) if count else np.empty(0, int) for end in (source, target)]
        edges[source, name, target] = {"edge_index": np.stack(ends)}
    if weighted:
        edges["author", "writes", "paper"]["edge_weight"] = rng.uniform(0.2, 2.0, 50)
    return TypedGraph(nodes, edges, name="typed")


def parts_of(how: str, graph: TypedGraph, parts: int) -> np.ndarray:
    """The owner of every node of the union."""
    part = np.random.default_rng(1).integers(0, parts, graph.num_nodes)
    first = dict(zip(graph.nodes, graph.starts, strict=False))
    if how == "a type on one rank":
        part[first["topic"] :] = parts - 1
        part[first["venue"] : first["nobody"]] = 0
    elif how == "types apart":
        part = np.repeat(np.arange(len(SIZES)) % parts, list(SIZES.values()))
    elif how == "empty parts":
        part[:] = parts - 1
    return part


def _case(how: str, parts: int, **options: bool):
    graph = typed_graph(**options)
    return graph.union, Assignment(parts_of(how, graph, parts).astype(np.int32), parts)


CASES = {
    "scattered": partial(_case, "scattered"),
    "weighted": partial(_case, "scattered", weighted=True),
    "multilabel": partial(_case, "scattered", multilabel=True),
    "a type on one rank": partial(_case, "a type on one rank"),
    "types apart": partial(_case, "types apart"),
    "empty parts": partial(_case, "empty parts"),
}
GRAPHS = {"weighted": {"weighted": True}, "multilabel": {"multilabel": True}}


class DenseTyped:
    """A model's own weights under dense algebra.

    seen(layer, rows): the rows as nodes of other parts see them, [N, D], or [P, N, D] if parts see different rows.
    """

    def __init__(self, graph: TypedGraph, spec, part: np.ndarray | None = None, width: int | None = None) -> None:
        """width: of the output; by default, the number of classes."""
        union = graph.union
        self.graph, self.spec, self.types = graph, spec, union.types
        width = width or union.num_classes
        self.model = spec.build(union.num_features, width, seed=3, dtype=torch.float64, types=union.types)
        part = np.zeros(graph.num_nodes) if part is None else part
        self.part = torch.from_numpy(part)
        self.inside = (self.part[:, None] == self.part[None, :]).double()
        dense_x = {kind: x.toarray() if sp.issparse(x) else np.array(x) for kind, x in self._features()}
        lengths = {kind: float(np.square(x).sum(1).mean() ** 0.5) for kind, x in dense_x.items()}
        self.lengths = {kind: max(1.0, length * spec.scale_types) for kind, length in lengths.items()}
        self.counts = [self._sums_of(name, weighted=False) for name in graph.edges]
        sums = [self._sums_of(name, weighted=True) for name in graph.edges]
        self.means = [torch.where(A.sum(1, keepdim=True) > 0, A / A.sum(1, keepdim=True), 0.0) for A in sums]
        self.seen: Callable[[int, Tensor], Tensor] = lambda layer, rows: rows

    def _features(self):
        return [(kind, nodes.x) for kind, nodes in self.graph.nodes.items() if nodes.x is not None]

    def _sums_of(self, name, *, weighted: bool) -> Tensor:
        """A[i, j]: the number, or the weight, of the relation's arcs j -> i."""
        first, own = dict(zip(self.graph.nodes, self.graph.starts, strict=False)), self.graph.edges[name]
        A = torch.zeros(self.graph.num_nodes, self.graph.num_nodes, dtype=torch.float64)
        source, target = own.edge_index
        weight = own.edge_weight if weighted and own.edge_weight is not None else np.ones(own.num_arcs)
        for j, i, w in zip(source, target, weight, strict=True):
            A[first[name[2]] + i, first[name[0]] + j] += float(w)
        return A

    def _dropped(self, rows: Tensor, numbers: Tensor, step: int) -> Tensor:
        p = self.spec.embedding_dropout if self.model.training else 0.0
        key = dropout_key(3, step, DROPPED_ROWS)
        return rows * act_dropout(torch.ones_like(rows), numbers, key=key, p=p, act="none") if p else rows

    def _first(self, step: int) -> Tensor:
        weights, rows, learned = dict(self.model.named_parameters()), [], 0
        for kind, nodes in self.graph.nodes.items():
            if nodes.x is None:
                numbers = torch.arange(learned, learned + nodes.num_nodes)
                rows.append(self._dropped(weights["input.embedding.weight"][numbers], numbers, step))
                learned += nodes.num_nodes
            else:
                x = nodes.x.toarray() if sp.issparse(nodes.x) else np.array(nodes.x)
                W, b = (weights[f"input.of_{kind}.{name}"] for name in ("weight", "bias"))
                rows.append(torch.from_numpy(x.astype(np.float64) / self.lengths[kind]) @ W.T + b)
        return torch.cat(rows)

    def _drop(self, h: Tensor, layer: int, step: int) -> Tensor:
        p = self.spec.dropout if self.model.training else 0.0
        if p == 0:
            return h
        ones, ids = torch.ones(h.shape[-2:], dtype=h.dtype), torch.arange(h.shape[-2])
        return h * act_dropout(ones, ids, key=dropout_key(3, step, layer), p=p, act="none")

    def _own(self, conv, h: Tensor) -> tuple[Tensor, list[Tensor]]:
        """A convolution's term of the row itself, and the relations' matrices."""
        if isinstance(conv, RGCNConv):
            W = list(conv.weight) if conv.blocks == 1 else [torch.block_diag(*blocks) for blocks in conv.weight]
            if conv.shares is not None:
                W = [sum(a * V for a, V in zip(shares, conv.weight, strict=True)) for shares in conv.shares]
            return h @ conv.lin.weight.T + conv.lin.bias, W
        assert isinstance(conv, HeteroSAGEConv)
        return self._by_type(h, conv.lin), list(conv.weight)

    def _by_type(self, h: Tensor, lin) -> Tensor:
        pairs = zip(lin.weight, lin.bias, self.graph.ranges(), strict=True)
        return torch.cat([h[low:high] @ W.T + b for W, b, (_, low, high) in pairs])

    def _as_seen(self, own: Tensor, others: Tensor) -> Tensor:
        """[i, j, ...]: the row of j as i's part has it."""
        inside = self.inside.bool().view(*self.inside.shape, *[1] * (own.dim() - 1))
        return torch.where(inside, own[None], others[None] if others.dim() == own.dim() else others[self.part])

    def _conv(self, conv, h: Tensor, others: Tensor) -> Tensor:
        if isinstance(conv, RGATConv):
            return self._rgat(conv, h, others)
        if isinstance(conv, HGTConv):
            return self._hgt(conv, h, others)
        z, W = self._own(conv, h)
        for M, W_r in zip(self.means, W, strict=True):
            z = z + ((M * self.inside) @ h + self._crossed(M, others)) @ W_r.T
        return z

    def _rgat(self, conv: RGATConv, h: Tensor, others: Tensor) -> Tensor:
        z, heads = self._by_type(h, conv.lin), (conv.heads, conv.head_width)
        for r, A in enumerate(self.counts):
            rows = self._as_seen(*((x @ conv.weight[r].T).unflatten(-1, heads) for x in (h, others)))  # [i, j, h, d]
            target = ((h @ conv.weight[r].T).unflatten(1, heads) * conv.att_dst[r]).sum(-1)
            score = F.leaky_relu(target[:, None] + (rows * conv.att_src[r]).sum(-1), 0.2)
            y = torch.einsum("ijh,ijhd->ihd", _softmax(score, A), rows)
            z = z + (y.flatten(1) if conv.concat else y.mean(1))
        return z

    def _hgt(self, conv: HGTConv, h: Tensor, others: Tensor) -> Tensor:
        heads, kinds = (conv.heads, conv.head_width), list(self.graph.nodes)
        query = self._by_type(h, conv.query).unflatten(1, heads)
        scores, values = [], []
        for r, (source, _, _) in enumerate(self.graph.edges):
            s = kinds.index(source)
            key, value = (
                self._as_seen(*(self._mapped(x, of[r], lin.weight[s], lin.bias[s]) for x in (h, others)))
                for of, lin in ((conv.of_key, conv.key), (conv.of_value, conv.value))
            )
            score = torch.einsum("ihd,ijhd->ijh", query, key) * conv.prior[r] / conv.head_width**0.5
            scores.append(score)
            values.append(value)
        alpha = _softmax(torch.cat(scores, 1), torch.cat(self.counts, 1))
        y = torch.einsum("ijh,ijhd->ihd", alpha, torch.cat(values, 1)).flatten(1)
        out = self._by_type(F.gelu(y), conv.out)
        sizes = torch.tensor([nodes.num_nodes for nodes in self.graph.nodes.values()])
        g = torch.repeat_interleave(conv.gate.sigmoid(), sizes)[:, None]
        return g * out + (1 - g) * h

    @staticmethod
    def _mapped(x: Tensor, of_hde: Tensor, W: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("hde,...he->...hd", of_hde, (x @ W.T + b).unflatten(-1, (len(of_hde), -1)))

    def _crossed(self, M: Tensor, others: Tensor) -> Tensor:
        """The part of M @ rows that comes from other parts."""
        cross = M * (1 - self.inside)
        if others.dim() == 2:
            return cross @ others
        return torch.stack([(self.part == p)[:, None] * (cross @ rows) for p, rows in enumerate(others)]).sum(0)

    def logits(self, step: int) -> Tensor:
        z = self._first(step)
        for layer, conv in enumerate(self.model.convs):
            h = z.relu() if layer and self.spec.relu else z
            others = self._drop(self.seen(layer, h), layer, step)
            h = self._drop(h, layer, step)
            z = self._conv(conv, h, others)
            if layer < len(self.model.norms):
                norm = self.model.norms[layer]
                z = _batch_norm(norm, z, self.model.training) if isinstance(norm, BatchNorm) else norm(z)
        for layer, linear in enumerate(self.model.linears, start=len(self.model.convs)):
            z = F.linear(self._drop(z, layer, step), linear.weight, linear.bias)
        return z


def _softmax(score: Tensor, count: Tensor) -> Tensor:
    """Over the arcs j -> i of each row i, `count` of them between two nodes; 0 in a row without arcs."""
    each = count[:, :, None] * (score - score.detach().amax(1, keepdim=True)).exp()
    total = each.sum(1, keepdim=True)
    return each / torch.where(total > 0, total, 1.0)


def _batch_norm(norm: BatchNorm, z: Tensor, training: bool) -> Tensor:
    assert training, "running statistics are not part of the oracle"
    return F.batch_norm(z, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)


def typed_trace(case: str, spec, steps: int = 5) -> tuple[Trained, Tensor]:
    """Losses and all gradients of Adam steps, and the logits after them."""
    graph = typed_graph(**GRAPHS.get(case, {}))
    dense = DenseTyped(graph, spec)
    found = trained(graph.union, dense, steps)  # type: ignore[arg-type]
    dense.model.eval()
    return found, torch.empty(0) if spec.norm == "batch" else dense.logits(steps).detach()


def stale_typed_trace(case: str, ranks: int, spec, read, steps: int, bits: int | None = None) -> Trained:
    """The same with rows of other parts, and their gradients, as step read(t) sent them, each number in `bits` bits."""
    graph = typed_graph()
    dense = DenseTyped(graph, spec, parts_of(case, graph, ranks))
    codec = Full() if bits is None else LowBit(bits)
    cross = coded(graph.union, dense.part, codec, codec)
    return stale_trace(graph.union, torch.empty(0), spec, read, steps, dense=dense, cross=cross)


def embedded(graph: TypedGraph) -> dict[int, int]:
    """Of the nodes without features: their numbers among all nodes -> among learned rows."""
    bare = [node for kind, low, high in graph.ranges() if graph.nodes[kind].x is None for node in range(low, high)]
    return {node: row for row, node in enumerate(bare)}


def assert_typed(traces, trained: Trained, tolerance: float = 1e-9) -> None:
    """Losses and all gradients of every rank equal an oracle's; of learned rows a rank has those of its own nodes."""
    losses, grads = trained
    number = embedded(typed_graph())
    for trace in traces:
        torch.testing.assert_close(trace["losses"], losses, rtol=tolerance, atol=tolerance)
        rows = torch.tensor([number[i] for i in trace["ids"].tolist() if i in number], dtype=torch.int64)
        for got, want in zip(trace["grads"], grads, strict=True):
            mine = {name: x[rows] if name == "input.embedding.weight" else x for name, x in want.items()}
            torch.testing.assert_close(got, mine, rtol=tolerance, atol=tolerance)
