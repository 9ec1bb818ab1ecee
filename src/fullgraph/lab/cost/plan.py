"""A plan: ranks strategies for a graph on given machines; and the choice of `auto`.

Every strategy gets a predicted epoch, its risks, and whether it fits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fullgraph.errors import InputError
from fullgraph.exchange import Wire
from fullgraph.lab.cost import layouts
from fullgraph.lab.cost.auto import Auto
from fullgraph.lab.cost.calibrate import of_matrix
from fullgraph.lab.cost.cluster import Cluster
from fullgraph.lab.cost.counting import Halo, counted, even
from fullgraph.lab.cost.counts import Counts
from fullgraph.lab.cost.local_machine import cluster_here, rates_for
from fullgraph.lab.cost.predict import WARM_UP, Prediction, predict
from fullgraph.lab.cost.rates import Rates
from fullgraph.lab.cost.replay import Piece
from fullgraph.named import pairs_of
from fullgraph.ops import Adjacency, Structure
from fullgraph.partition import open_part, read_manifest
from fullgraph.recipes import STRATEGIES, Strategy, vanilla
from fullgraph.run import Run, placement_of
from fullgraph.transport import Key
from fullgraph.words import size

PROCESS_BYTES = 350 << 20  # memory of a rank without data: torch and its libraries
FULL_BITS = 32.0
ROW = (1, 256)
STALE, LOSSY = "stale", "lossy"
# The candidates, each with its defaults unless options follow its name.
OFFERED = (
    "vanilla", "mixgcn", "pipegcn", "pipegcn narrow=true", "sylvie-s", "sylvie-a", "varco", "gnnpipe", "gnnpipe-hybrid",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Risk:
    """How a strategy differs from exact training: how many steps old rows are, and with how many bits."""

    steps: int = 0
    bits: float = FULL_BITS

    @property
    def kinds(self) -> frozenset[str]:
        found = {STALE: self.steps > 0, LOSSY: self.bits < FULL_BITS}
        return frozenset(kind for kind, has in found.items() if has)

    def __str__(self) -> str:
        parts = [f"up to {self.steps} step{'s' * (self.steps > 1)} old"] * (self.steps > 0)
        parts += [f"{self.bits:.3g} bits per number"] * (self.bits < FULL_BITS)
        return ", ".join(parts) or "exact"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy with its prediction, or with the reason why there is none."""

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


def offered() -> list[tuple[str, Strategy]]:
    """The candidates, by name and options."""
    named = ((text, *text.split()) for text in OFFERED)
    return [(text, STRATEGIES.make(name, **pairs_of(options))) for text, name, *options in named]


def ranked(
    run: Run, counts: Counts, cluster: Cluster, rates: Rates, *, near: float = 0.0,
    strategies: Sequence[tuple[str, Strategy]] = (),
) -> list[Choice]:  # fmt: skip
    """Predict all strategies, the fastest first; those that do not fit or have no prediction come last, with the
    reason.
    """
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
    """The fastest strategy that fits and whose risk is allowed."""
    fitting = [choice for choice in choices if not choice.refused]
    allowed = [choice for choice in fitting if choice.risk.kinds <= set(allow)]
    if not allowed:
        why = "; ".join(f"{choice.name}: {choice.refused}" for choice in choices if choice.refused)
        raise InputError(f"no strategy fits: {why or 'every strategy that fits is more risky than allowed'}")
    return min(allowed, key=lambda choice: choice.epoch_s)


def risk_of(run: Run) -> Risk:
    """The risk, according to the wires and the placement."""
    placement = placement_of(run)
    steps, bits = layouts.stale_steps(placement), FULL_BITS
    for wire in (*(run.wires.at(layer) for layer in range(run.model.graph_layers)), *layouts.hops_between(placement)):
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
    needs = f"needs {size(choice.memory_bytes)} per rank, which has {size(cluster.memory_bytes)}"
    return f"{needs}; use more ranks, --checkpoint-layers or --precision bf16"


NEAR = 0.5  # assumed share of arcs that read rows close to one another, if it was not measured
PLANNING_S = 15.0  # to measure a new machine and to predict every strategy
ARC_S, FLOP_S, STEP_S = (
    4e-10,
    1e-10,
    0.02,
)  # guesses for any CPU: a number read along an arc, an operation, the rest of a step
SAMPLED_ARCS = 4_000_000  # arcs of a part; their product shows how local its reads are


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The ranked strategies, with the graph and the cluster."""

    counts: Counts
    cluster: Cluster
    rates: Rates
    choices: list[Choice]
    pieces: tuple[Piece, ...] = ()  # a step of the first strategy, in pieces

    def tree(self) -> dict[str, Any]:
        return {
            "graph": self.counts.graph.name,
            "ranks": self.cluster.ranks,
            "device": self.rates.device,
            "strategies": [_row(choice) for choice in self.choices],
        }


def _row(choice: Choice) -> dict[str, Any]:
    taken = choice.prediction.taken if choice.prediction is not None else None
    return {
        "strategy": choice.name,
        "epoch_s": None if taken is None else taken.epoch_s,
        "compute_s": None if taken is None else taken.compute_s,
        "wait_s": None if taken is None else taken.wait_s,
        "link_s": None if taken is None else taken.link_s,
        "bytes_per_epoch": None if taken is None else taken.bytes,
        "memory_bytes": None if taken is None else choice.memory_bytes,
        "stale_steps": choice.risk.steps,
        "bits": choice.risk.bits,
        "refused": choice.refused,
    }


def planned(run: Run, shards: Path, cluster: Cluster, strategies: Sequence[tuple[str, Strategy]] = ()) -> Plan:
    """Plan for a graph with as many parts as the cluster has ranks."""
    hops = () if run.train.all_rows else run.model.hops
    counts = counted(shards, hops, run.column)
    rates = rates_for(cluster.rates, run.train.device)
    if cluster.rates == "here" and run.train.device == "cpu":
        rates = rates_on(shards, rates)
    return _plan(run, counts, cluster, rates, strategies)


def planned_even(
    run: Run, folders: Sequence[Path], cluster: Cluster, strategies: Sequence[tuple[str, Strategy]] = ()
) -> Plan:
    """Plan for more ranks than there are parts: equal parts, with a halo extrapolated from the partitions in
    `folders`.
    """
    cuts = [counted(folder, ()) for folder in folders]
    graph, train = cuts[0].graph, cuts[0].train / cuts[0].graph.nodes
    hops = () if run.train.all_rows else run.model.hops
    counts = even(graph, cluster.ranks, Halo.fitted(cuts), train=train, hops=hops)
    rates = rates_for(cluster.rates, run.train.device)
    if cluster.rates == "here" and run.train.device == "cpu":
        rates = rates_on(folders[-1], rates)
    return _plan(run, counts, cluster, rates, strategies)


def _plan(run: Run, counts: Counts, cluster: Cluster, rates: Rates, strategies: Sequence[tuple[str, Strategy]]) -> Plan:
    choices = ranked(run, counts, cluster, rates, near=NEAR, strategies=strategies)
    pieces: tuple[Piece, ...] = ()
    if choices and not choices[0].refused:
        first = replace(run, strategy=choices[0].strategy, parts=cluster.ranks)
        pieces = predict(first, counts, cluster, rates, near=NEAR, pictured=True).taken.pieces
    return Plan(counts=counts, cluster=cluster, rates=rates, choices=choices, pieces=pieces)


def choose(run: Run, auto: Auto, shards: Path) -> tuple[str, Strategy, str]:
    """The strategy that `auto` chooses, as a name and as a value, and the reason."""
    guess = guessed_s(run, shards)
    if not auto.cluster and run.train.device == "cpu" and guess < PLANNING_S:
        told = f"its {run.train.epochs} epochs are guessed to take {guess:.1g} s, less than predicting every strategy"
        return "vanilla", vanilla(), told
    cluster = Cluster.read(Path(auto.cluster)) if auto.cluster else cluster_here(run.parts)
    plan = planned(replace(run, strategy=Strategy()), shards, cluster)
    taken = best(plan.choices, auto.allow)
    allowed = [c for c in plan.choices if not c.refused and c.risk.kinds <= set(auto.allow) and c is not taken]
    reason = f"{taken.epoch_s * 1e3:.3g} ms per epoch are predicted, {taken.risk}"
    if allowed:
        second = min(allowed, key=lambda choice: choice.epoch_s)
        reason += f"; {second.name} would take {second.epoch_s * 1e3:.3g} ms"
    return taken.name, taken.strategy, reason


def guessed_s(run: Run, shards: Path) -> float:
    """A guess of the seconds of all epochs on one core of any CPU, from the size of the graph and the model."""
    graph, model = read_manifest(shards).graph, run.model
    width = max(graph.features, model.hidden)
    layer = model.hidden * ARC_S * graph.arcs + 2 * width * model.hidden * FLOP_S * graph.nodes
    return run.train.epochs * (STEP_S + 3 * model.layers * layer)


def rates_on(shards: Path, rates: Rates) -> Rates:
    """The rates with a graph's own sparse products, measured on a sample of the first part's rows."""
    part = open_part(shards, 0, verify=False)
    arcs = int(part.indptr[-1])
    rows = len(part.ids)
    if arcs > SAMPLED_ARCS:
        rows = int(torch.searchsorted(part.indptr, SAMPLED_ARCS))
    indptr = part.indptr[: rows + 1]
    indices = part.indices[: int(indptr[-1])]
    if not rows or not len(indices):
        return rates
    structure = Structure(indptr, indices, len(part.ids) + len(part.halo_ids))
    return of_matrix(rates, Adjacency(structure, None, torch.ones(rows), None), torch.device("cpu"))
