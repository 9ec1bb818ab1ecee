"""A graph on ever more devices: what an epoch takes, where a strategy stops gaining, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fullgraph.lab.cost.choose import Choice, ranked
from fullgraph.lab.cost.cluster import Cluster
from fullgraph.lab.cost.counting import Halo, even
from fullgraph.lab.cost.rates import Rates
from fullgraph.partition import GraphFacts
from fullgraph.recipes import Strategy
from fullgraph.run import Run

GAIN = 1.1  # doubling the devices has to make an epoch shorter by this factor
NEAR = 0.5  # which share of arcs is taken to read rows close to one another, where nobody has looked


def _facts(name: str, nodes: int, arcs: int, features: int, classes: int, *, multilabel: bool = False) -> GraphFacts:
    return GraphFacts(
        name=name, nodes=nodes, arcs=arcs, features=features, classes=classes, multilabel=multilabel, weighted=False,
        splits=1, sparse=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Known:
    """A graph by name: its size, the share of training nodes, and how its cut grows."""

    facts: GraphFacts
    train: float
    halo: Halo


# Sizes as published. Halos are assumed, and were not fitted to cuts of these graphs: give a graph of your own to
# `fullgraph plan` for fitted ones.
KNOWN = {
    "reddit": Known(facts=_facts("reddit", 232_965, 114_615_892, 602, 41), train=0.66,
                    halo=Halo(rows=0.6, rows_power=-0.4, arcs=0.25, arcs_power=0.1)),
    "products": Known(facts=_facts("products", 2_449_029, 123_718_280, 100, 47), train=0.08,
                      halo=Halo(rows=0.12, rows_power=-0.5, arcs=0.05, arcs_power=0.2)),
    "yelp": Known(facts=_facts("yelp", 716_847, 13_954_819, 300, 100, multilabel=True), train=0.75,
                  halo=Halo(rows=0.3, rows_power=-0.5, arcs=0.15, arcs_power=0.15)),
    "papers100M": Known(facts=_facts("papers100M", 111_059_956, 3_231_371_744, 128, 172), train=0.011,
                        halo=Halo(rows=0.15, rows_power=-0.6, arcs=0.1, arcs_power=0.15)),
    "ten-billion": Known(facts=_facts("ten-billion", 500_000_000, 20_000_000_000, 128, 64), train=0.1,
                         halo=Halo(rows=0.15, rows_power=-0.6, arcs=0.1, arcs_power=0.15)),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Point:
    """All strategies on so many devices."""

    ranks: int
    choices: dict[str, Choice]  # by name


def sweep(
    run: Run, facts: GraphFacts, halo: Halo, cluster: Cluster, rates: Rates, sizes: Sequence[int], *, train: float,
    near: float = NEAR, strategies: Sequence[tuple[str, Strategy]] = (),
) -> list[Point]:  # fmt: skip
    """The same machines, more of them: `cluster` says what one is like."""
    points = []
    for ranks in sizes:
        each = min(ranks, cluster.ranks_per_machine)
        there = replace(cluster, machines=-(-ranks // each), ranks_per_machine=each)
        counts = even(facts, there.ranks, halo, train=train, hops=() if run.train.all_rows else run.model.hops)
        found = ranked(run, counts, there, rates, near=near, strategies=strategies)
        points.append(Point(ranks=there.ranks, choices={choice.name: choice for choice in found}))
    return points


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The most devices that a strategy still gains from, and what takes its time there."""

    name: str
    ranks: int
    epoch_s: float
    reason: str


def limits(points: Sequence[Point]) -> list[Limit]:
    """Of every strategy that fits somewhere, the quickest first."""
    names = list(dict.fromkeys(name for point in points for name in point.choices))
    found = [limit for name in names if (limit := _limit(name, points)) is not None]
    return sorted(found, key=lambda limit: limit.epoch_s)


def _limit(name: str, points: Sequence[Point]) -> Limit | None:
    line = [(p.ranks, p.choices[name]) for p in points if name in p.choices and not p.choices[name].refused]
    if not line:
        return None
    best = 0
    for index in range(1, len(line)):
        if line[index][1].epoch_s * GAIN < line[best][1].epoch_s:
            best = index
    ranks, choice = line[best]
    reason = "it still gains" if best == len(line) - 1 else _reason(choice)
    return Limit(name=name, ranks=ranks, epoch_s=choice.epoch_s, reason=reason)


def _reason(choice: Choice) -> str:
    assert choice.prediction is not None
    taken = choice.prediction.taken
    parts = {
        "its own work": taken.compute_s,
        "the links": taken.link_s,
        "waiting for others and for the time a message takes": max(0.0, taken.wait_s - taken.link_s),
    }
    most = max(parts, key=lambda part: parts[part])
    return f"{most}: {100 * parts[most] / max(taken.epoch_s, 1e-12):.0f} % of the epoch"
