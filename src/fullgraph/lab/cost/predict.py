"""Predict an epoch of a run on a cluster: record its steps, then replay them in simulated time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from fullgraph.errors import InputError
from fullgraph.exchange import Wire
from fullgraph.lab.cost import layouts
from fullgraph.lab.cost.cluster import Cluster
from fullgraph.lab.cost.counts import Counts
from fullgraph.lab.cost.dry import dry_run
from fullgraph.lab.cost.rates import Rates
from fullgraph.lab.cost.replay import Replay, Taken
from fullgraph.lab.cost.script import Event, Post, Step, Sum, Wait
from fullgraph.placement import Placement
from fullgraph.run import Run, placement_of

WARM_UP = 2  # steps before late rows exist
SETTLED = 5  # steps after which the load of the links is steady
MEASURED = 6
MOST_PERIOD = 32


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Recorded steps: of all ranks, or of one rank that stands for all."""

    steps: list[list[Step]]
    alike: bool

    @property
    def peak_bytes(self) -> int:
        return max(step.peak_bytes for of_rank in self.steps for step in of_rank)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A mean epoch of the run, and the memory that its largest rank needs."""

    taken: Taken
    peak_bytes: int  # memory of the largest rank's tensors within a step


def predict(
    run: Run, counts: Counts, cluster: Cluster, rates: Rates, *, near: float = 0.0, pictured: bool = False
) -> Prediction:
    """near: the share of arcs that read rows close to one another. pictured: keep the pieces of a step."""
    if len(counts.ranks) != cluster.ranks:
        raise InputError(f"the graph has {len(counts.ranks)} parts, and the cluster has {cluster.ranks}")
    phases = layouts.phases(placement_of(run))
    written = [recorded(run, counts, placement) for placement, _ in phases]
    taken = [replayed(steps, cluster, rates, near=near, pictured=pictured) for steps in written]
    return Prediction(
        taken=mean_of(taken, [epochs for _, epochs in phases]), peak_bytes=max(steps.peak_bytes for steps in written)
    )


def mean_of(taken: Sequence[Taken], epochs: Sequence[int]) -> Taken:
    """The mean epoch of phases with different numbers of epochs; its pieces come from the longest phase."""
    if len(taken) == 1:
        return taken[0]

    def mean(of: Callable[[Taken], float]) -> float:
        return sum(count * of(phase) for phase, count in zip(taken, epochs, strict=True)) / sum(epochs)

    return Taken(
        epoch_s=mean(lambda phase: phase.epoch_s),
        compute_s=mean(lambda phase: phase.compute_s),
        wait_s=mean(lambda phase: phase.wait_s),
        link_s=mean(lambda phase: phase.link_s),
        bytes=round(mean(lambda phase: phase.bytes)),
        pieces=taken[epochs.index(max(epochs))].pieces,
    )


def recorded(run: Run, counts: Counts, placement: Placement | None = None) -> Recorded:
    """Record enough steps to see the steady state. placement: of a phase; else the run's placement."""
    placement = placement or placement_of(run)
    period, alike = period_of(run), counts.even and layouts.alike(placement)
    standing = range(1) if alike else range(len(counts.ranks))
    steps = [continued(dry_run(run, counts, rank, WARM_UP + period, placement), period) for rank in standing]
    return Recorded(steps=steps, alike=alike)


def replayed(written: Recorded, cluster: Cluster, rates: Rates, *, near: float = 0.0, pictured: bool = False) -> Taken:
    price = lru_cache(1 << 16)(partial(rates.seconds, near=near))
    return Replay(cluster, price, pictured=pictured, alike=written.alike).run(written.steps, SETTLED)


def period_of(run: Run) -> int:
    """The number of steps after which the wires repeat."""
    wire = run.wires.at(1)
    if not isinstance(wire, Wire):
        return 1
    turns = [wire.schedule.turn(step) for step in range(WARM_UP, WARM_UP + 3 * MOST_PERIOD)]
    seen = [(turn.send, None if turn.read is None else step - turn.read) for step, turn in enumerate(turns, WARM_UP)]
    return next((p for p in range(1, MOST_PERIOD + 1) if seen[p:] == seen[:-p]), 1)


def continued(steps: Sequence[Step], period: int) -> list[Step]:
    """The steps, with the last `period` of them repeated until there are enough to measure."""
    found = list(steps)
    while len(found) < SETTLED + max(period, MEASURED):
        found.append(_later(found[-period], period))
    return found


def _later(step: Step, by: int) -> Step:
    return Step(tuple(_shifted(event, by) for event in step.events), step.peak_bytes)


def _shifted(event: Event, by: int) -> Event:
    match event:
        case Post():
            return replace(event, key=replace(event.key, step=event.key.step + by))
        case Sum():
            return replace(event, key=replace(event.key, step=event.key.step + by))
        case Wait(on):
            return Wait(replace(on, key=replace(on.key, step=on.key.step + by)))
        case _:
            return event
