"""A shard whose rows are in stores, for a run that does not fit its memory."""

from pathlib import Path

import torch
from torch import Tensor

from fullgraph.exchange import Clock, Wire
from fullgraph.nn import Chain
from fullgraph.partition import Part
from fullgraph.placement.base import Placement
from fullgraph.placement.holding.adjacency import ATTENDS, Arcs, fine
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.partitioned import Partitioned
from fullgraph.placement.rank_graph import NodeRows, RankGraph
from fullgraph.placement.shard import Shard
from fullgraph.placement.streamed.memory import Planner
from fullgraph.placement.streamed.step import Streamed, StreamedStep, StreamedView
from fullgraph.placement.streamed.trial import Trial
from fullgraph.placement.view import counted
from fullgraph.plan import HaloRoute
from fullgraph.report.memory import MemoryPlan
from fullgraph.transport import Transport


def why_not(placement: Placement, ranks: int, *, sparse: bool = False) -> str:
    """Why a run cannot keep its rows outside memory, with the way out; empty if it can."""
    if ranks > 1:
        return "several ranks share the rows already: use --parts 1, or more machines"
    if type(placement) is not Partitioned:
        return "this strategy needs all its rows in memory: use --strategy vanilla"
    if placement.inductive:
        return "inductive training makes a second graph in memory: leave out --inductive"
    if sparse:
        return "sparse features stay in memory: give dense features"
    return ""


def planner_of(placement: Partitioned, part: Part, model: Chain, aggregation: str, *, on_disk: bool) -> Planner:
    """What finds the plan of a rank.

    model: a copy that trials may change. on_disk: whether the part is files when it trains.
    """
    assert isinstance(part.x, Tensor)
    rules = placement.rules
    known = rules.known_ahead(sparse=False, attends=aggregation in ATTENDS, halo_is_less=lambda: False)
    trial = Trial(
        model=model, in_width=part.x.shape[1], aggregation=aggregation, rules=rules, known=known == "aggregate",
        weighted=part.weight is not None, dtype=placement.dtype,
    )  # fmt: skip
    return Planner(trial, part, on_disk)


def streamed_shard(
    placement: Partitioned, part: Part, transport: Transport, planner: Planner, plan: MemoryPlan, scratch: Path
) -> Shard:  # fmt: skip
    """A shard whose rows are in stores, as planned. scratch: the folder of files without names."""
    streamed = Streamed.of(part, planner, plan, scratch)
    graph = _rows_alone(part, placement.dtype)
    nodes, counts = counted(graph, transport, "full")
    full = StreamedView(graph=graph, transport=transport, num_nodes=nodes, counts=counts, streamed=streamed)
    train = full.opened(placement.channels, Wire(), placement.new_clock(), placement.rules)
    evaluation = full.opened("eval", Wire(), Clock(), Rules(whole_rows=placement.rules.whole_rows))
    return Shard(train, evaluation, StreamedStep(train), transport, part.manifest.graph, plan)


def _rows_alone(part: Part, dtype: torch.dtype) -> RankGraph:
    """The rank's rows without edges; input rows stay where they are, in their own type."""
    n = len(part.ids)
    rows = NodeRows(
        ids=part.ids,
        halo_ids=part.halo_ids,
        route=HaloRoute(part.send_rows, part.send_counts, part.recv_counts, n),
        x=part.x,  # type: ignore[arg-type]  # a Tensor
        y=part.y.to(fine(dtype)) if part.y.is_floating_point() else part.y,
        masks={"train": part.train_mask, "val": part.val_mask, "test": part.test_mask},
        fields=part.node_fields,
    )
    return RankGraph.of(rows, Arcs(part.indptr, part.indices, None, 0))
