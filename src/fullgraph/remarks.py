"""What may surprise a user about a run, told before it starts: none of it is an error."""

from fullgraph.exchange import Wire
from fullgraph.partition import Manifest
from fullgraph.run import Run


def remarks(run: Run, manifest: Manifest) -> list[str]:
    """One line each."""
    model, facts, found = run.model, manifest.graph, []
    weights_do = getattr(model, "weights_do", "")
    if facts.weighted and weights_do:
        found.append(f"the graph's edges have weights, which with --model {model.name} {weights_do}")
    if facts.multilabel and facts.classes == 1:
        found.append("labels of shape [nodes, 1] are one yes-or-no label a node; give them as [nodes] to mean classes")
    if run.parts > 1 and _idle(run):
        found.append(
            f"--strategy {run.strategy.name} changes nothing here: its first layer's rows are known ahead, and the "
            "last layer's are sent as they are; use more layers, or -o every_layer=true"
        )
    return found


def _idle(run: Run) -> bool:
    """Whether the strategy's wires differ from plain ones only in layers whose rows do not cross."""
    layers, model = run.model.graph_layers, run.model
    wires = run.strategy.wires(epochs=run.train.planned, layers=layers)
    ahead = run.train.precompute and not model.encodes and model.aggregation != "attention"
    plain = [wires.at(layer) == Wire() for layer in range(layers)]
    return not all(plain) and all(plain[1 if ahead else 0 :])
