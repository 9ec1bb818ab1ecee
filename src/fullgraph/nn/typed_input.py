"""The first rows of a typed graph: features of every type mapped to one width, or learned rows.

Legend: n owned rows, k of them with learned rows, O columns.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from fullgraph.graph_types import GraphTypes
from fullgraph.nn.linear import Linear
from fullgraph.nn.view import Features, TypedView
from fullgraph.ops import Adjacency, Structure, act_dropout, dropout_key
from fullgraph.ops.hashing import draws, row_keys

DENSE = 1 / 3  # a type's features become a dense matrix if more than this share of them is not zero
# in place of a layer's number, for the random numbers of learned rows and of their dropout
FIRST_ROWS, DROPPED_ROWS = 1 << 40, (1 << 40) + 1


class NodeEmbedding(nn.Module):
    """A learned row for each node of the types without features; a rank holds the rows of its own nodes.

    Row i starts uniform in (-a, a), a = sqrt(3 / O), drawn from (seed, i): no rank draws rows of other ranks' nodes.
    """

    def __init__(self, nodes: Tensor, total: int, width: int, seed: int) -> None:
        """nodes [k]: the numbers of the held rows among all `total` rows."""
        super().__init__()
        self.nodes, self.total = nodes, total
        a, b = row_keys(dropout_key(seed, 0, FIRST_ROWS), nodes)
        drawn = draws(a[:, None], b[:, None], torch.arange(width, device=nodes.device)).double() / 2**31 - 1
        self.weight = nn.Parameter((drawn * (3 / width) ** 0.5).float())
        self.weight.holds_own_rows = True  # type: ignore[attr-defined]  # no rank sums its gradient (train/sync.py)


class _Placed(NamedTuple):
    """Input features by type, and where the rows of all parts belong."""

    x: Features
    blocks: list[tuple[int, Features]]  # (number of the type, the features of its rows)
    place_n: Tensor | None  # row i of the output is row place_n[i] of all blocks and learned rows; None: row i


class TypedInput(nn.Module):
    """h_v = W_t x_v / max(1, s_t) + b_t  for a node v of type t;  a learned row e_v, if t has no features.

    s_t is the root mean square length of the training graph's rows x_v of type t. Learned rows begin with length 1: so
    neither kind of row changes far faster than the other.
    """

    lengths: Tensor

    def __init__(
        self, types: GraphTypes, width: int, seed: int, ids: Tensor | None = None, *, dropout: float, scale: bool
    ) -> None:
        """ids [n]: this rank's rows of the union, in their order; None: all nodes. dropout: of learned rows. scale:
        False sets all s_t to 1."""
        super().__init__()
        self.types, self.seed, self.dropout = types, seed, dropout
        lengths = torch.tensor([max(1.0, kind.length * scale) for kind in types.nodes], dtype=torch.float64)
        self.register_buffer("lengths", lengths)
        for kind in types.nodes:
            if kind.features:
                self.add_module(f"of_{kind.name}", Linear(kind.features, width))
        self.embedding: NodeEmbedding | None = None
        rows = [0 if kind.features else kind.nodes for kind in types.nodes]
        if sum(rows):
            sizes = torch.tensor(rows)
            ids = torch.arange(types.starts[-1]) if ids is None else ids.cpu()
            starts = torch.tensor(types.starts)
            type_n = torch.bucketize(ids, starts[1:], right=True)
            number_n = ids - starts[type_n] + (sizes.cumsum(0) - sizes)[type_n]
            self.embedding = NodeEmbedding(number_n[sizes[type_n] > 0], sum(rows), width, seed)
        self._placed: _Placed | None = None

    def forward(self, x: Features, view: TypedView) -> Tensor:
        if self._placed is None or self._placed.x is not x:
            self._placed = self._place(x, view)
        _, blocks, place_n = self._placed
        parts = [self._linear(number)(block) for number, block in blocks]
        parts += [] if self.embedding is None else [self._learned(self.embedding, view.step)]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        return rows if place_n is None else rows.index_select(0, place_n)

    def _learned(self, embedding: NodeEmbedding, step: int) -> Tensor:
        p, key = self.dropout if self.training else 0.0, dropout_key(self.seed, step, DROPPED_ROWS)
        return act_dropout(embedding.weight, embedding.nodes, key=key, p=p, act="none")

    def _linear(self, number: int) -> Linear:
        """The map of a type's features."""
        return cast(Linear, self.get_submodule(f"of_{self.types.nodes[number].name}"))

    def _place(self, x: Features, view: TypedView) -> _Placed:
        """Split the features by type, once per view."""
        assert isinstance(x, Adjacency), "the union of a typed graph has sparse features"
        groups, columns = view.node_types(x.shape[0]), [columns for _, columns in self.types.columns()]
        blocks: list[tuple[int, Features]] = []
        orders, learned = [], [groups.rows[:0]]
        for number, span in groups.spans():
            if self.types.nodes[number].features:
                blocks.append((number, self._block(x, groups.rows[span], number, columns[number])))
                orders.append(groups.rows[span])
            else:
                learned.append(groups.rows[span])
        order_n = torch.cat([*orders, torch.cat(learned).sort().values])
        place_n = torch.argsort(order_n)
        in_order = torch.equal(place_n, torch.arange(len(place_n), device=place_n.device))
        return _Placed(x, blocks, None if in_order else place_n)

    def _block(self, x: Adjacency, rows: Tensor, number: int, columns: slice) -> Features:
        """The features of one type's rows, over its own columns."""
        taken, width = x.take(rows), columns.stop - columns.start
        pattern = Structure(taken.structure.indptr, taken.structure.indices - columns.start, width)
        assert taken.weight is not None
        values = taken.weight / self.lengths[number].to(taken.weight.dtype)
        block = Adjacency(pattern, values)
        if pattern.num_arcs <= DENSE * len(rows) * width:
            return block
        weight = self._linear(number).weight
        dense = torch.zeros(pattern.shape, dtype=weight.dtype, device=weight.device)
        return dense.index_put_((pattern.rows, pattern.indices.long()), values.to(weight.dtype))
