"""Which strategy on which machines: each one's epoch foretold, with what it risks and whether it fits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from fullgraph.errors import InputError
from fullgraph.exchange import Wire
from fullgraph.lab.cost.cluster import Cluster
from fullgraph.lab.cost.predict import WARM_UP, Prediction, predict
from fullgraph.lab.cost.rates import Rates
from fullgraph.placement.counts import Counts
from fullgraph.recipes import STRATEGIES, Strategy
from fullgraph.resources import size
from fullgraph.run import Run, placement_of
from fullgraph.transport import Key

PROCESS_BYTES = 350 << 20  # of a rank before it holds anything: torch and its libraries
FULL_BITS = 32.0
ROW = (1, 256)
STALE, LOSSY = "stale", "lossy"
# What may be chosen from, each with its defaults; names in a list are options that are worth a try of their own.
OFFERED: dict[str, list[dict[str, str]]] = {
    "vanilla": [{}],
    "mixgcn": [{}],
    "pipegcn": [{}, {"narrow": "true"}],
    "sylvie-s": [{}],
    "sylvie-a": [{}],
    "varco": [{}],
    "gnnpipe": [{}],
    "gnnpipe-hybrid": [{}],
}


@dataclass(frozen=True, kw_only=True)
class Risk:
    """How far a strategy is from exact training: rows some steps old, in fewer bits than they have."""

    steps: int = 0
    bits: float = FULL_BITS

    @property
    def kinds(self) -> frozenset[str]:
        found = {STALE: self.steps > 0, LOSSY: self.bits < FULL_BITS}
        return frozenset(kind for kind, has in found.items() if has)

    def __str__(self) -> str:
        parts = [f"up to {self.steps} step{'s' * (self.steps > 1)} old"] * (self.steps > 0)
        parts += [f"{self.bits:.3g} bits a number"] * (self.bits < FULL_BITS)
        return ", ".join(parts) or "exact"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy, and what was found: a prediction, or why there is none."""

    name: str  # with its options
    strategy: Strategy
    risk: Risk
    prediction: Prediction | None
    refused: str = ""

    @property
    def epoch_s(self) -> float:
        return self.prediction.taken.epoch_s if self.prediction is not None else float("inf")

    @property
    def memory_bytes(self) -> int:
        return PROCESS_BYTES + (0 if self.prediction is None else self.prediction.peak_bytes)


def offered(names: Iterable[str] = OFFERED) -> list[tuple[str, Strategy]]:
    """Strategies under their names and options."""
    found = []
    for name in names:
        for options in OFFERED.get(name, [{}]):
            label = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
            found.append((label, STRATEGIES.make(name, **options)))
    return found


def ranked(
    run: Run, counts: Counts, cluster: Cluster, rates: Rates, *, near: float = 0.0,
    strategies: Sequence[tuple[str, Strategy]] = (), steps: int = 0,
) -> list[Choice]:  # fmt: skip
    """All strategies, the quickest first; those that do not fit, or cannot be foretold, come last with the reason."""
    found = []
    for name, strategy in strategies or offered():
        one = replace(run, strategy=strategy, parts=len(counts.ranks))
        try:
            placement_of(one).check(run.model.outline(1, 2), cluster.ranks)
            risk = risk_of(one)
            prediction = predict(one, counts, cluster, rates, near=near)
        except InputError as error:
            found.append(Choice(name=name, strategy=strategy, risk=Risk(), prediction=None, refused=str(error)))
            continue
        choice = Choice(name=name, strategy=strategy, risk=risk, prediction=prediction)
        if cluster.memory_bytes and choice.memory_bytes > cluster.memory_bytes:
            choice = replace(choice, refused=_too_large(choice, cluster))
        found.append(choice)
    return sorted(found, key=lambda choice: (bool(choice.refused), choice.epoch_s))


def best(choices: Sequence[Choice], allow: Iterable[str] = ()) -> Choice:
    """The quickest of those that fit and risk no more than is allowed."""
    fitting = [choice for choice in choices if not choice.refused]
    allowed = [choice for choice in fitting if choice.risk.kinds <= set(allow)]
    if not allowed:
        why = "; ".join(f"{choice.name}: {choice.refused}" for choice in choices if choice.refused)
        raise InputError(f"no strategy fits: {why or 'all that fit risk more than is allowed'}")
    return min(allowed, key=lambda choice: choice.epoch_s)


def risk_of(run: Run) -> Risk:
    """What the wires and the placement say of themselves."""
    placement = placement_of(run)
    steps, bits = placement.stale_steps(run.parts), FULL_BITS
    for wire in (*(run.wires.at(layer) for layer in range(run.model.graph_layers)), *placement.hops_between()):
        if not isinstance(wire, Wire):
            return Risk(steps=max(1, steps), bits=1.0)
        late = [step - turn.read for step in range(WARM_UP, WARM_UP + 64)
                if (turn := wire.schedule.turn(step)).read is not None]  # fmt: skip
        steps = max(steps, *late)
        for codec in (wire.codec, wire.backward or wire.codec):
            taken = codec.nbytes(ROW, torch.float32, Key("risk", 0))
            bits = min(bits, 8 * taken / ROW[1])
    return Risk(steps=steps, bits=bits)


def _too_large(choice: Choice, cluster: Cluster) -> str:
    needs = f"needs {size(choice.memory_bytes)} a rank, which has {size(cluster.memory_bytes)}"
    return f"{needs}; use more ranks, --checkpoint-layers or --precision bf16"
