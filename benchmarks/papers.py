"""The papers' own settings, foretold, beside what the papers say.

    .venv/bin/python benchmarks/papers.py          # a minute; nothing is trained

Graphs have the published sizes. Their halos are assumed, for want of the authors' own cuts (cost/scale.py). Devices
and links are what the papers name, by their data sheets. Ratios are to exact training on the same machines, in which a
layer's input crosses as in the papers; our own `vanilla` sends mapped rows where those are narrower.
"""

from dataclasses import dataclass, field

from common import seconds, show, size

from fullgraph import nn
from fullgraph.lab.cost.choose import Choice, ranked
from fullgraph.lab.cost.cluster import Cluster, Link
from fullgraph.lab.cost.counting import even
from fullgraph.lab.cost.devices import rates_of
from fullgraph.lab.cost.scale import KNOWN, NEAR
from fullgraph.nn import ModelSpec
from fullgraph.recipes import STRATEGIES
from fullgraph.run import Run

PCIE3 = Link(bits_per_s=48e9, latency_s=20e-6)  # through the host's memory, shared by the devices of a machine
NVLINK = Link(bits_per_s=1200e9, latency_s=5e-6)


@dataclass(frozen=True)
class Setting:
    """A table's row of a paper."""

    paper: str
    graph: str
    model: ModelSpec
    machines: int
    per_machine: int
    device: str
    link: Link
    inside: Link
    said: dict[str, str] = field(default_factory=dict)  # by strategy, the ratio to vanilla that the paper has


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


def foretold(setting: Setting) -> dict[str, Choice]:
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
    """MixGCN's bytes do not grow with the ranks; a halo's do."""
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
        found = foretold(setting)
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
    columns = ["paper", "setting", "strategy", "exact waits", "foretold", "paper", "bytes"]
    show("An epoch of exact training to an epoch of the strategy", columns, rows)
    columns = ["ranks", "mixgcn, bytes", "vanilla, bytes", "mixgcn, epoch", "vanilla, epoch"]
    show("products, GCN 3x128, A100s over 10 Gbit/s", columns, constant_volume())


if __name__ == "__main__":
    main()
