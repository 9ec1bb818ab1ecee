"""What each layer of a run will send, computed from the graph before any rank starts."""

import numpy as np

from fullgraph.axes import CODECS
from fullgraph.codec import Full
from fullgraph.data import Graph
from fullgraph.exchange import Wire
from fullgraph.nn.layer_plan import LayerPlan
from fullgraph.partition import Assignment, cut_parts, facts_of
from fullgraph.placement import RankGraph
from fullgraph.run import Run, placement_of
from fullgraph.tasks import task_for


def plans_of(run: Run, graph: Graph) -> tuple[LayerPlan, ...]:
    """The plans of the run's layers; none for a user's own model."""
    facts, placement = facts_of(graph), placement_of(run)
    model = run.model.outline(facts.features, task_for(run.train.task, facts, cut=False).out_width(facts))
    whole = Assignment(np.zeros(graph.num_nodes, np.int32), 1, "", 0)
    rank = RankGraph.of_part(cut_parts(graph, whole, 0), placement.dtype)
    return placement.plans(rank, model, run.model.aggregation)


def line_of(plan: LayerPlan, wire: object) -> str:
    """What a layer sends, in how many bits, and how late it is read, in one line."""
    if plan.sends == "nothing" or not isinstance(wire, Wire):
        return str(plan)
    late = wire.schedule.depth
    when = "fresh" if not late else f"{late} step{'s' * (late > 1)} late"
    return f"layer {plan.layer}: sends {plan.sends}, {plan.width} columns, {_bits(wire)}, {when}, {plan.rows:,} rows"


def _bits(wire: Wire) -> str:
    codec = wire.codec
    bits = 32 if isinstance(codec, Full) else getattr(codec, "bits", None)
    if hasattr(codec, "wire_dtype"):
        bits = 8 * codec.wire_dtype.itemsize
    return CODECS.label(codec) if bits is None else f"{bits} bit{'s' * (bits > 1)}"


def lines_of(run: Run, graph: Graph) -> list[str]:
    """One line per layer."""
    plans, wires = plans_of(run, graph), run.wires
    if placement_of(run).isolated:
        return [f"layer {plan.layer}: no edges between parts, sends nothing, {plan.rows:,} rows" for plan in plans]
    return [line_of(plan, wires.at(plan.layer)) for plan in plans]
