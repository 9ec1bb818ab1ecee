"""What an epoch of a run takes on a cluster: its steps written down, then carried out in time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from fullgraph.cost.cluster import Cluster
from fullgraph.cost.dry import dry_run
from fullgraph.cost.rates import Rates
from fullgraph.cost.replay import Replay, Taken
from fullgraph.cost.script import Event, Post, Step, Sum, Wait
from fullgraph.exchange import Wire
from fullgraph.placement.counts import Counts
from fullgraph.run import Run

WARM_UP = 2  # steps in which nothing late is there yet
MEASURED = 4
MOST_PERIOD = 32


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """An epoch, and what a rank needs for it."""

    taken: Taken
    peak_bytes: int  # of the fullest rank's tensors within a step


def predict(run: Run, counts: Counts, cluster: Cluster, rates: Rates, *, near: float = 0.0, pictured: bool = False) -> Prediction:
    period = period_of(run)
    recorded = [dry_run(run, counts, rank, WARM_UP + period) for rank in range(len(counts.ranks))]
    steps = [continued(of_rank, period) for of_rank in recorded]
    taken = Replay(cluster, partial(rates.seconds, near=near), pictured=pictured).run(steps, WARM_UP)
    return Prediction(taken=taken, peak_bytes=max(step.peak_bytes for of_rank in recorded for step in of_rank))


def period_of(run: Run) -> int:
    """After how many steps the wires do the same again."""
    wires = run.strategy.wires(epochs=run.train.planned, layers=run.model.graph_layers)
    wire = wires.at(1)
    if not isinstance(wire, Wire):
        return 1
    turns = [wire.schedule.turn(step) for step in range(WARM_UP, WARM_UP + 3 * MOST_PERIOD)]
    seen = [(turn.send, None if turn.read is None else step - turn.read) for step, turn in enumerate(turns, WARM_UP)]
    return next((p for p in range(1, MOST_PERIOD + 1) if seen[p:] == seen[:-p]), 1)


def continued(steps: Sequence[Step], period: int) -> list[Step]:
    """The steps, and the last `period` of them again and again until enough can be measured."""
    found = list(steps)
    while len(found) < WARM_UP + max(period, MEASURED):
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
        case Wait():
            post = event.post
            return Wait(replace(post, key=replace(post.key, step=post.key.step + by)))
        case _:
            return event
