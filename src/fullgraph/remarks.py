"""Notes before a run: facts that may surprise a user, none of them an error; and what each layer will send.

Both are computed from the graph before any rank starts.
"""

import numpy as np

from fullgraph.axes import CODECS
from fullgraph.codec import Full
from fullgraph.data import Graph
from fullgraph.device import HOST
from fullgraph.environ import in_job
from fullgraph.exchange import Adaptive, Steady, Wire
from fullgraph.nn.layer_plan import LayerPlan
from fullgraph.partition import Assignment, GraphFacts, Manifest, cut_parts, facts_of
from fullgraph.placement import Partitioned, Pipeline, RankGraph
from fullgraph.proc import num_cores
from fullgraph.recipes import wires_of
from fullgraph.run import Run, placement_of
from fullgraph.tasks import task_for
from fullgraph.words import count

CROWD = 8  # ranks per core; with more, a note is printed before the run


def remarks(run: Run, manifest: Manifest) -> list[str]:
    """The notes about a run, one line each."""
    model, facts, found = run.model, manifest.graph, []
    weights_do = getattr(model, "weights_do", "")
    if facts.weighted and weights_do:
        found.append(f"the graph's edges have weights, which with --model {model.name} {weights_do}")
    if unused := _unused(run, manifest):
        found.append(f"{unused} (docs/own_models.md)")
    if facts.multilabel and facts.classes == 1:
        found.append("labels of shape [nodes, 1] are one yes-or-no label per node; give them as [nodes] for classes")
    if run.parts == 1 and _sends(run):
        found.append(
            f"one rank sends nothing, so --strategy {run.strategy.name} changes nothing; give --parts 2 or more"
        )
    if crowd := _crowd(run):
        found.append(crowd)
    if run.parts > 1 and _idle(run, facts):
        exempt = getattr(run.strategy, "every_layer", None) is False
        last, way = (", and the last layer's are sent in full", ", or -o every_layer=true") if exempt else ("", "")
        found.append(
            f"--strategy {run.strategy.name} changes nothing here: its first layer's input is known ahead{last}; use "
            f"more layers{way if run.model.graph_layers > 1 else ''}"
        )
    if whole := _behind_batch_norm(run):
        found.append(
            f"batch norm takes its statistics from all rows, so {whole} all rows, not only those that the loss reads; "
            "with --norm layer they would not"
        )
    return found


def _crowd(run: Run) -> str:
    """Many more ranks than cores of this machine; empty under torchrun, where ranks may be on other machines."""
    cores = num_cores()
    if in_job() or run.train.device != HOST or run.parts <= CROWD * cores:
        return ""
    told = f"{count(run.parts, 'rank')} share {count(cores, 'core')}, so most of an epoch is waiting for a core"
    return f"{told}; use --parts {cores}"


def _unused(run: Run, manifest: Manifest) -> str:
    """Arrays of the graph, beside x and the edges, that the model does not read."""
    facts, own = manifest.graph, getattr(run.model, "forward_inputs", ())
    if own is None:
        return ""
    is_own = hasattr(run.model, "forward_inputs")
    has = {"edge_attr": facts.edge_features > 0, "edge_weight": facts.weighted and is_own}
    has |= dict.fromkeys(facts.field_names, not facts.types)  # a typed graph's are its types and relations
    lost = [name for name, there in has.items() if there and name not in own]
    if not lost:
        return ""
    how = "it takes them as arguments of its forward" if is_own else "a model of your own may"
    named = f"{', '.join(lost[:-1])} and {lost[-1]}" if len(lost) > 1 else lost[0]
    of = "graph" if set(lost) & set(facts.field_names) else "graph's edges"
    return f"--model {run.model.name} does not use the {named} of the {of}; {how}"


def _wires(run: Run) -> list[object]:
    """The wires of each graph layer."""
    return [run.wires.at(layer) for layer in range(run.model.graph_layers)]


def late_halos(run: Run) -> bool:
    """Whether the strategy may read halo rows of an earlier step."""
    return run.parts > 1 and isinstance(placement_of(run), Partitioned) and any(map(is_late, _wires(run)))


def follows_drift(run: Run) -> bool:
    """Whether the strategy measures by itself when late rows are safe."""
    return any(isinstance(wire, Wire) and isinstance(wire.schedule, Steady) for wire in _wires(run))


def is_late(wire: object) -> bool:
    """Whether a wire may give rows of earlier steps."""
    if isinstance(wire, Adaptive):
        return wire.switch
    if not isinstance(wire, Wire):
        return False
    return wire.turns > 1 or wire.drift is not None or wire.most < 1 or wire.schedule.depth > 0


def is_lossy(wire: object) -> bool:
    """Whether a wire rounds rows, or leaves some of them out."""
    if not isinstance(wire, Wire):
        return True
    return wire.share < 1 or any(not isinstance(codec, Full) for codec in (wire.codec, wire.backward) if codec)


def averaged(run: Run) -> bool:
    """Whether the strategy averages rows or gradients over steps."""
    return any(isinstance(wire, Wire) and wire.smooth is not None for wire in _wires(run))


def _behind_batch_norm(run: Run) -> str:
    """Name the layers that compute all rows because a batch norm reads their output; empty if there are none."""
    if getattr(run.model, "norm", "") != "batch" or run.train.inductive:  # inductive: all rows are training nodes
        return ""
    layers = [layer for layer, hop in enumerate(placement_of(run).hops, start=1) if hop is None]
    if len(layers) < 2:
        return f"layer {layers[0]} computes" if layers else ""
    return f"layers {layers[0]} to {layers[-1]} compute"


def _sends(run: Run) -> bool:
    """Whether the strategy changes what ranks send, and not how they divide the work."""
    plain = wires_of(run.strategy, epochs=100, layers=2).at(0) == Wire()
    return not plain and not isinstance(placement_of(run), Pipeline)


def _idle(run: Run, facts: GraphFacts) -> bool:
    """Whether the strategy's wires differ from plain ones only in layers that send nothing."""
    if not _sends(run):
        return False
    attends = run.model.aggregation == "attention"
    ahead = placement_of(run).rules.known_ahead(sparse=facts.sparse, attends=attends, halo_is_less=lambda: True)
    plain = [wire == Wire() for wire in _wires(run)]
    return all(plain[1 if ahead else 0 :])


def plans_of(run: Run, graph: Graph) -> tuple[LayerPlan, ...]:
    """The plans of the run's layers; none for a user's own model."""
    facts, placement = facts_of(graph), placement_of(run)
    model = run.model.outline(facts.features, task_for(run.train.task, facts, cut=False).out_width(facts))
    whole = Assignment(np.zeros(graph.num_nodes, np.int32), 1, "", 0)
    rank = RankGraph.of_part(cut_parts(graph, whole, 0), placement.dtype)
    return placement.plans(rank, model, run.model.aggregation)


def line_of(plan: LayerPlan, wire: object) -> str:
    """One line about a layer: the rows that it sends, their bits, and how late they are read."""
    if plan.sends == "nothing" or not isinstance(wire, Wire):
        return str(plan)
    late = wire.schedule.depth
    most = "at most " if isinstance(wire.schedule, Steady) else ""
    when = "fresh" if not late else f"{most}{late} step{'s' * (late > 1)} late"
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
