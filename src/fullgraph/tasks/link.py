"""Link prediction: score pairs of nodes by their two rows, to decide which are edges.

A pair belongs to the rank that owns its first node. The row of the other node is fetched fresh and in full precision,
whatever the strategy sends between layers.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fullgraph.axes import DECODERS, STRATEGIES
from fullgraph.data import Graph
from fullgraph.data.pairs import Pairs, drawn, same_edges
from fullgraph.errors import InputError, nearest, one_line
from fullgraph.graph_types import EDGE_TYPE, GraphTypes
from fullgraph.partition import GraphFacts, Part, PartPairs
from fullgraph.placement import Loss, Pipeline, Placement, RankView, Shard, WholeStep
from fullgraph.report.evaluation import Evaluation
from fullgraph.tasks.base import (
    EMBEDDINGS,
    SPLITS,
    Predicted,
    Scores,
    Table,
    Task,
    chosen_loss,
    chosen_metric,
    scored_by,
)
from fullgraph.tasks.decoder import scored
from fullgraph.tasks.evaluation import evaluation_of
from fullgraph.tasks.fetch import Fetch, Owners
from fullgraph.tasks.losses import MeanLoss, RowLoss
from fullgraph.tasks.metrics import Metric
from fullgraph.tasks.negatives import draw_nodes, sampled
from fullgraph.transport import Key, Transport
from fullgraph.values import Range, Value

BLOCK = 1 << 22  # row entries that are scored at once outside training
DECODER = "pair_decoder"  # the decoder's name within the model
Share = Annotated[float, Range(0, 1, above=True, below=True)]


@dataclass(frozen=True, kw_only=True)
class Link(Value):
    """Learns which pairs of nodes are edges.

    The graph brings the pairs, or all its edges are used; shares of these edges are held out for validation and test,
    and left out of message passing. If a split has no negative pairs, they are drawn: (u, w) for an edge (u, v), with w
    any node but u.

    In a typed graph pairs join the two types of one relation, and w is a node of its target type. Held-out edges leave
    this relation, and every relation with the same edges or their reverses.
    """

    # A norm or dropout of the multiplied rows removes the information that separates edges from other pairs
    # (docs/running.md).
    usual: ClassVar[tuple[str, dict[str, Any]]] = ("gcn", {"layers": 2, "dropout": 0.0, "norm": "none"})
    usual_typed: ClassVar[tuple[str, dict[str, Any]]] = ("hetero-sage", usual[1])

    predicts: ClassVar[tuple[Predicted, ...]] = (
        EMBEDDINGS,
        Predicted(name="pairs", prefix="node_", file="pairs", of="pairs"),
        Predicted(name="scores", prefix="score_", file="pairs", of="pairs", main=True),
    )

    decoder: Annotated[Any, DECODERS] = "dot"
    embedding: Annotated[int, Range(1, 1_000_000)] = 64  # columns of a node's row
    val: Share = 0.05  # share of the edges, if the graph has no pairs
    test: Share = 0.1
    negatives: Annotated[int, Range(1, 10_000)] = 1  # drawn per edge, new in every epoch
    candidates: Annotated[int, Range(1, 1_000_000)] = 100  # among which mrr ranks an edge
    relation: str = ""  # typed graphs: SOURCE__RELATION__TARGET, whose edges are learned

    def check(self, facts: GraphFacts, *, cut: bool) -> None:
        if cut and not facts.pairs:
            raise InputError(f"{facts.name} was cut without pairs; partition it again with --task link")
        if self.relation and not facts.types:
            raise InputError(f"{facts.name} has no relations: leave out -t relation={one_line(self.relation, 60)}")
        types = self._linked(facts.types, facts.name)
        if len(_second(types, facts.nodes)) < 2:
            raise InputError("link prediction needs a graph with at least two nodes that can end a pair")

    def check_placement(self, placement: Placement, *, inductive: bool) -> None:
        if isinstance(placement, Pipeline):
            raise InputError(f"no stage of a pipeline holds the rows of all pairs; {_use()}")
        if inductive:
            raise InputError("--inductive needs labelled nodes, and link prediction has none; leave it out")

    def prepared(self, graph: Graph, seed: int) -> Graph:
        """The graph with its pairs; its masks become those of the nodes whose rows a split reads."""
        pairs, held_out, types = graph.pairs, None, self._linked(graph.types, graph.name)
        if pairs is None:
            relations = _relations_of(graph, types) if types else {}
            pairs, held_out = drawn(graph.indptr, graph.indices, self.val, self.test, seed, **relations)
            if others := [str(types.relations[number]) for number in relations.get("others", ())]:
                also = f"held-out edges of {types.pairs} are left out of {', '.join(others)} too"
                graph = graph.noted(f"{also}, with the same edges or their reverses")
        second = _second(types, graph.num_nodes)
        masks = tuple(_read_by(pairs, split, graph.num_nodes, second) for split in range(len(SPLITS)))
        left = graph.with_pairs(pairs, held_out=held_out, masks=masks)
        return left if not types else left.with_types(types.counted(left.fields.edges[EDGE_TYPE]))

    def _linked(self, types: GraphTypes, name: str) -> GraphTypes:
        """The types with the relation whose pairs are learned."""
        if not types:
            return types
        known = [str(relation) for relation in types.relations]
        chosen = types.pairs or self.relation or (known[0] if len(known) == 1 else "")
        if self.relation not in ("", chosen):
            raise InputError(f"{name} has pairs of {chosen}, and -t relation={one_line(self.relation, 60)} names "
                             "another relation: leave it out")  # fmt: skip
        if chosen not in known:
            problem = f"{one_line(chosen, 60)!r} is not a relation{nearest(chosen, known)}" if chosen else "no pairs"
            raise InputError(f"{name}: {problem}; name the relation to learn, -t relation=SOURCE__RELATION__TARGET, "
                             f"from {one_line(', '.join(known), 160)}")  # fmt: skip
        return replace(types, pairs=chosen)

    def out_width(self, facts: GraphFacts) -> int:
        return self.embedding

    def equip(self, model: nn.Module, *, seed: int, dtype: torch.dtype) -> None:
        model.add_module(DECODER, self.decoder.build(self.embedding, seed=seed, dtype=dtype))

    def build(
        self, facts: GraphFacts, *, metric: Metric | str = "auto", loss: RowLoss | str = "auto", seed: int = 0,
        part: Part, shard: Shard, model: nn.Module,
    ) -> Task:  # fmt: skip
        assert part.pairs is not None
        return LinkTask(
            self,
            chosen_metric(metric, ["roc_auc", "mrr"], "pairs"),
            MeanLoss(chosen_loss(loss, ["bce"], "pairs")),
            seed,
            part.pairs,
            facts,
            shard,
            model.get_submodule(DECODER),
        )


def _use() -> str:
    """Name the strategies whose ranks compute all layers of their rows."""
    fitting = STRATEGIES.those(lambda strategy: not isinstance(strategy.layout(), Pipeline))
    return f"for --task link use one of {fitting}"


def _second(types: GraphTypes, num_nodes: int) -> range:
    """The ids of possible second nodes of a pair."""
    return range(*types.pair_ids[1].indices(num_nodes))


def _relations_of(graph: Graph, types: GraphTypes) -> dict[str, Any]:
    """The relation of each arc, the learned relation, and those with the same edges or their reverses."""
    relation, names = graph.fields.edges[EDGE_TYPE], [str(one) for one in types.relations]
    own = names.index(types.pairs)
    ends = [{one.source, one.target} for one in types.relations]
    candidates = [number for number in range(len(names)) if number != own and ends[number] == ends[own]]
    others = same_edges(graph.indptr, graph.indices, relation, own, candidates)
    return {"relation": relation, "own": own, "others": others}


def _read_by(pairs: Pairs, split: int, num_nodes: int, second: range) -> np.ndarray[Any, Any]:
    """The nodes whose rows the pairs of a split read, [N, 1]; with drawn negatives, all nodes that can end a pair."""
    read = np.zeros((num_nodes, 1), dtype=np.bool_)
    read[second.start : second.stop] = not pairs.has_negatives(split)
    read[pairs.ends[pairs.split == split].reshape(-1)] = True
    return read


@dataclass(frozen=True, eq=False)
class Sample:
    """Pairs of this rank that are scored together: for every first node, one or more second nodes."""

    left: Tensor  # [p] rows of the first nodes
    right: Tensor  # [p, k] rows of the second nodes, in [owned rows, fetched rows]
    y: Tensor  # [p, k]


class LinkTask:
    """The pairs of one rank: their loss and their scores."""

    def __init__(
        self, spec: Link, metric: Metric, loss: MeanLoss, seed: int, pairs: PartPairs, facts: GraphFacts, shard: Shard,
        decoder: nn.Module,
    ) -> None:  # fmt: skip
        device = shard.full.ids.device
        assert torch.equal(shard.train.ids, shard.full.ids)
        self.spec, self.metric, self.loss, self.seed, self.decoder = spec, metric, loss, seed, decoder
        self.index, self.ends, self.y, self.split = (
            values.to(device) for values in (pairs.index, pairs.ends, pairs.y, pairs.split)
        )
        self.num_nodes, self.num_pairs, self.second = facts.nodes, facts.pairs, _second(facts.types, facts.nodes)
        self.starts = self.ends.new_tensor([ids.start for ids in facts.types.pair_ids])
        self.owners = Owners(shard.full.ids, facts.nodes, shard.full.owners)
        self.counts = self._counted(shard.full.owners)
        self._fixed: tuple[Fetch, dict[str, Sample]] | None = None

    def _counted(self, transport: Transport) -> dict[str, tuple[int, int]]:
        """For each split, the numbers of positive and negative pairs of all ranks."""
        mine = [((self.split == number) & (self.y == y)).sum() for number in range(len(SPLITS)) for y in (1, 0)]
        counts = transport.all_reduce(Key("setup/pairs", 0), torch.stack(mine).cpu()).wait().view(-1, 2).tolist()
        return {split: (edges, others) for split, (edges, others) in zip(SPLITS, counts, strict=True)}

    def placed(self, shard: Shard) -> Shard:
        """Train on pairs instead of single rows."""
        if not isinstance(shard.executor, WholeStep):
            raise InputError(f"this placement splits a step into pieces, and pairs need all rows at once; {_use()}")
        return replace(shard, executor=PairStep(shard.executor.rows, self, shard.full.owners))

    def drawn(self, split: str, key: int, count: int, stream: str) -> tuple[Tensor, Tensor, Tensor]:
        """The edges of a split: first nodes, second nodes, and `count` other nodes for each edge."""
        picked = (self.split == SPLITS.index(split)) & (self.y == 1)
        left, right = self.ends[picked].unbind(1)
        return left, right, draw_nodes((self.seed, key, stream), self.index[picked], left, self.second, count)

    def labelled(self, split: str, key: int, stream: str) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs [p, 1 + k] of a split (first nodes, second nodes) and their labels; draws negatives if it has none."""
        if self.counts[split][1]:
            picked = self.split == SPLITS.index(split)
            return self.ends[picked, 0], self.ends[picked, 1:], self.y[picked, None]
        count = self.spec.negatives if split == "train" else 1
        left, right, others = self.drawn(split, key, count, stream)
        return left, torch.cat([right[:, None], others], 1), _first_is_edge(len(left), 1 + others.shape[1], left)

    def total(self, split: str) -> int:
        """Number of labelled pairs of all ranks, with drawn negatives."""
        edges, others = self.counts[split]
        return edges + others if others else edges * (1 + (self.spec.negatives if split == "train" else 1))

    def samples(self) -> tuple[Fetch, dict[str, Sample]]:
        """The pairs scored in evaluation: the same every time, with one route for all of them."""
        if self._fixed is None:
            chosen = {split: self._scored(split) for split in SPLITS}
            sizes = [right.numel() for _, right, _ in chosen.values()]
            lefts = [left.numel() for left, _, _ in chosen.values()]
            ids = torch.cat([part.reshape(-1) for left, right, _ in chosen.values() for part in (left, right)])
            fetch = self.owners.fetch(ids, "setup/scored pairs")
            cuts = [size for both in zip(lefts, sizes, strict=True) for size in both]
            rows = iter(fetch.rows.split(cuts))
            samples = {
                split: Sample(next(rows), next(rows).view(right.shape), y) for split, (_, right, y) in chosen.items()
            }
            self._fixed = fetch, samples
        return self._fixed

    def _scored(self, split: str) -> tuple[Tensor, Tensor, Tensor]:
        if getattr(self.metric, "ranked", False):
            left, right, others = self.drawn(split, 0, self.spec.candidates, f"candidates {split}")
            right, y = torch.cat([right[:, None], others], 1), _first_is_edge(len(left), 1 + others.shape[1], left)
            index = self.index[(self.split == SPLITS.index(split)) & (self.y == 1)]
        else:
            left, right, y = self.labelled(split, 0, f"scored {split}")
            index = self.index[self.split == SPLITS.index(split)]
        if split == "train":  # sample as many pairs as validation has
            keep = sampled(self.seed, index, sum(self.counts["val"]) / sum(self.counts["train"]))
            left, right, y = left[keep], right[keep], y[keep]
        return left, right, y

    def score(self, rows: Tensor, sample: Sample) -> Tensor:
        """Scores [p, k]; `rows` are owned rows followed by fetched rows."""
        pairs, each = sample.right.shape
        a, b = rows[sample.left.repeat_interleave(each)], rows[sample.right.reshape(-1)]
        return scored(self.decoder, a, b).view(pairs, each)

    @torch.no_grad()
    def blockwise(self, rows: Tensor, sample: Sample) -> Tensor:
        """Like `score`, for one block of pairs at a time."""
        step = max(1, BLOCK // max(1, rows.shape[1] * sample.right.shape[1]))
        parts = [
            self.score(rows, Sample(left, right, right))
            for left, right in zip(sample.left.split(step), sample.right.split(step), strict=True)
        ]
        return torch.cat(parts) if parts else rows.new_zeros(sample.right.shape)

    def scores(self, out: Tensor, shard: Shard) -> Scores:
        found: Scores = {}
        for split, (scores, y) in self._scored_pairs(out, shard).items():
            found[split] = scored_by(
                self.metric, scores, y, shard.full.owners, Key(f"eval/{split}", shard.eval_clock.step)
            )
        return found

    def evaluation(self, out: Tensor, shard: Shard) -> Evaluation:
        pairs = self._scored_pairs(out, shard)
        return evaluation_of("pairs", pairs, self.metric, shard.full.owners, shard.eval_clock.step)

    def _scored_pairs(self, out: Tensor, shard: Shard) -> dict[str, tuple[Tensor, Tensor]]:
        """The scores of each split's pairs, and whether they are edges."""
        fetch, samples = self.samples()
        with torch.no_grad():
            rows = fetch(out, shard.full.owners, shard.eval_clock, "eval/pairs")
        found = {}
        for split, sample in samples.items():
            scores, y = self.blockwise(rows, sample), sample.y
            if not getattr(self.metric, "ranked", False):
                scores, y = scores.view(-1, 1), y.reshape(-1, 1)
            found[split] = scores, y.to(scores.dtype)
        return found

    def tables(self, out: Tensor, shard: Shard) -> dict[str, Table]:
        """Every node's row, and every pair with the probability that it is an edge.

        Nodes of pairs have their numbers in the user's graph; in a typed graph, those inside their types.
        """
        step = shard.eval_clock.step
        fetch = self.owners.fetch(self.ends, "predict/pairs", step)
        with torch.no_grad():
            rows = fetch(out, shard.full.owners, shard.eval_clock, "predict/rows")
        left, right = fetch.rows.unbind(1)
        chances = self.blockwise(rows, Sample(left, right[:, None], self.y)).sigmoid().view(-1).float()
        index = self.index.cpu().numpy()
        node_rows = out.float().cpu().numpy(), shard.full.ids.cpu().numpy(), self.num_nodes
        return {
            "embeddings": Table(*node_rows),
            "pairs": Table((self.ends - self.starts).cpu().numpy(), index, self.num_pairs),
            "scores": Table(chances.cpu().numpy(), index, self.num_pairs),
        }


def _first_is_edge(pairs: int, each: int, like: Tensor) -> Tensor:
    """Labels [p, k]: the first pair of every row is an edge, the others are not."""
    y = torch.zeros(pairs, each, dtype=torch.uint8, device=like.device)
    y[:, :1] = 1
    return y


class PairStep(WholeStep):
    """One forward and backward pass over all owned rows, then over the pairs that begin at them."""

    def __init__(self, rows: RankView, task: LinkTask, transport: Transport) -> None:
        super().__init__(rows)
        self.task, self.transport = task, transport
        self._given: tuple[Fetch, Tensor] | None = None  # set if every step has the same pairs

    def step(self, model: nn.Module, shard: Shard, loss: Loss) -> Tensor:
        fetch, y = self._pairs(shard.clock.step)
        out = model(self.rows.x, self.rows.view)
        places = fetch.places(len(out))
        rows = fetch(out, self.transport, shard.clock, "pairs")
        scores = self.task.score(rows, Sample(places[:, 0], places[:, 1:], y)).view(-1, 1)
        value = loss(scores, y.reshape(-1, 1).to(scores.dtype), self.task.total("train"))
        value.backward()
        return value.detach()

    def _pairs(self, step: int) -> tuple[Fetch, Tensor]:
        """How this step's pairs get their rows, and the labels of these pairs."""
        if self._given is not None:
            return self._given
        left, right, y = self.task.labelled("train", step, "training")
        fetch = self.task.owners.fetch(torch.cat([left[:, None], right], 1), "pairs", step)
        found = fetch, y
        if self.task.counts["train"][1]:
            self._given = found
        return found
