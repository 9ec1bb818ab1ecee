"""Predictions in the papers' own settings, compared with the papers' results.

    .venv/bin/python benchmarks/papers.py          # a minute; nothing is trained

Graphs have the published sizes. Their halos are assumed, for want of the authors' own cuts. Devices and links are what
the papers name, by their data sheets. Ratios are to exact training on the same machines, in which a layer's input
crosses as in the papers; our own `vanilla` sends mapped rows where those are narrower.
"""

from dataclasses import dataclass, field

from common import seconds, show, size

from fullgraph import nn
from fullgraph.lab.cost.cluster import Cluster, Link
from fullgraph.lab.cost.counting import Halo, even
from fullgraph.lab.cost.plan import NEAR, Choice, ranked
from fullgraph.lab.cost.rates import rates_of
from fullgraph.nn import ModelSpec
from fullgraph.partition import GraphFacts
from fullgraph.recipes import STRATEGIES
from fullgraph.run import Run


def _facts(name: str, nodes: int, arcs: int, features: int, classes: int, *, multilabel: bool = False) -> GraphFacts:
    return GraphFacts(
        name=name, nodes=nodes, arcs=arcs, features=features, classes=classes, multilabel=multilabel, weighted=False,
        splits=1, sparse=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Known:
    """A graph by name: its size, the share of training nodes, and how its cut is assumed to grow."""

    facts: GraphFacts
    train: float
    halo: Halo


KNOWN = {
    "reddit": Known(facts=_facts("reddit", 232_965, 114_615_892, 602, 41), train=0.66,
                    halo=Halo(rows=0.6, rows_power=-0.4, arcs=0.25, arcs_power=0.1)),
    "products": Known(facts=_facts("products", 2_449_029, 123_718_280, 100, 47), train=0.08,
                      halo=Halo(rows=0.12, rows_power=-0.5, arcs=0.05, arcs_power=0.2)),
    "yelp": Known(facts=_facts("yelp", 716_847, 13_954_819, 300, 100, multilabel=True), train=0.75,
                  halo=Halo(rows=0.3, rows_power=-0.5, arcs=0.15, arcs_power=0.15)),
}  # fmt: skip
PCIE3 = Link(bits_per_s=48e9, latency_s=20e-6)  # through the host's memory, shared by the devices of a machine
NVLINK = Link(bits_per_s=1200e9, latency_s=5e-6)


@dataclass(frozen=True)
class Setting:
    """A row of a paper's table."""

    paper: str
    graph: str
    model: ModelSpec
    machines: int
    per_machine: int
    device: str
    link: Link
    inside: Link
    said: dict[str, str] = field(default_factory=dict)  # by strategy, the paper's ratio to vanilla


ETHERNET = Link(bits_per_s=1e9, latency_s=50e-6)
GCN3 = nn.GCN(layers=3, hidden=128, norm="none", input_dropout=True)
SETTINGS = [
    Setting("PipeGCN", "reddit", nn.GraphSAGE(layers=4, hidden=256, norm="layer"), 1, 2, "rtx2080ti", PCIE3, PCIE3,
            {"pipegcn": "1.7 - 2.2"}),
    Setting("PipeGCN", "products", nn.GraphSAGE(layers=3, hidden=128, norm="layer"), 1, 5, "rtx2080ti", PCIE3, PCIE3,
            {"pipegcn": "1.7 - 2.2"}),
    Setting("PipeGCN", "yelp", nn.GraphSAGE(layers=4, hidden=512, linear_layers=2, norm="layer"), 1, 3, "rtx2080ti",
            PCIE3, PCIE3, {"pipegcn": "1.7 - 2.2"}),
    Setting("Sylvie", "products", GCN3, 2, 4, "v100", ETHERNET, PCIE3,
            {"sylvie-a": "28.1", "sylvie-s": "18.4", "pipegcn": "1.2"}),
    Setting("Sylvie", "products", GCN3, 1, 4, "v100", ETHERNET, PCIE3,
            {"sylvie-a": "2.5 - 3"}),
    Setting("GNNPipe", "reddit", nn.GCN(layers=32, hidden=100, norm="layer"), 2, 4, "a100",
            Link(bits_per_s=100e9, latency_s=10e-6), NVLINK, {"gnnpipe": "2.45", "gnnpipe-hybrid": "up to 2.45"}),
]  # fmt: skip


def predict(setting: Setting) -> dict[str, Choice]:
    known = KNOWN[setting.graph]
    cluster = Cluster(
        machines=setting.machines, ranks_per_machine=setting.per_machine, cores=setting.per_machine,
        link=setting.link, inside=setting.inside, rates=setting.device,
    )  # fmt: skip
    run = Run(model=setting.model)
    counts = even(known.facts, cluster.ranks, known.halo, train=known.train, hops=())
    names = [("exact", STRATEGIES.make("free", schedule="sync", codec="full"))]
    names += [(name, STRATEGIES.make(name)) for name in setting.said]
    choices = ranked(run, counts, cluster, rates_of(setting.device), near=NEAR, strategies=names)
    return {choice.name: choice for choice in choices}


def constant_volume() -> list[tuple[str, ...]]:
    """Show that MixGCN's bytes do not grow with the ranks, and a halo's do."""
    known, run, rows = KNOWN["products"], Run(model=GCN3), []
    for ranks in (2, 4, 8, 16, 32):
        cluster = Cluster(machines=ranks, cores=1, rates="a100")
        counts = even(known.facts, ranks, known.halo, train=known.train, hops=())
        names = [(name, STRATEGIES.make(name)) for name in ("mixgcn", "vanilla")]
        found = {c.name: c for c in ranked(run, counts, cluster, rates_of("a100"), near=NEAR, strategies=names)}
        taken = [found[name].prediction.taken for name in ("mixgcn", "vanilla") if found[name].prediction]
        rows.append((str(ranks), *(size(one.bytes) for one in taken), *(seconds(one.epoch_s) for one in taken)))
    return rows


def main() -> None:
    rows = []
    for setting in SETTINGS:
        found = predict(setting)
        exact = found["exact"].prediction
        assert exact is not None
        taken = exact.taken
        share = 1 - taken.compute_s / taken.epoch_s
        place = f"{setting.graph}, {setting.model.name} {setting.model.layers}x{setting.model.hidden}, "
        place += f"{setting.machines} x {setting.per_machine} {setting.device}"
        for name, said in setting.said.items():
            choice = found[name]
            if choice.prediction is None:
                rows.append((setting.paper, place, name, "", "", said, choice.refused))
                continue
            ratio = taken.epoch_s / choice.epoch_s
            volume = taken.bytes / max(1, choice.prediction.taken.bytes)
            told = (f"{100 * share:.0f} %", f"{ratio:.2f}", said, f"{volume:.1f}x fewer")
            rows.append((setting.paper, place, name, *told))
    columns = ["paper", "setting", "strategy", "exact waits", "predicted", "paper", "bytes"]
    show("Time of an exact epoch divided by the strategy's", columns, rows)
    columns = ["ranks", "mixgcn, bytes", "vanilla, bytes", "mixgcn, epoch", "vanilla, epoch"]
    show("products, GCN 3x128, A100s over 10 Gbit/s", columns, constant_volume())


if __name__ == "__main__":
    main()
