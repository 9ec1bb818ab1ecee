"""Commands that look ahead: which strategy on which machines, and how far it would scale."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullgraph.axes import MODELS, STRATEGIES
from fullgraph.commands.shared import (
    GraphArgument,
    JsonOption,
    PartitionerName,
    PartitionerOption,
    chosen_from,
    offer,
    partitioner_of,
    print_json,
)
from fullgraph.display import shown
from fullgraph.errors import InputError, nearest, one_line
from fullgraph.options import fields_of, pairs_of
from fullgraph.report import Phases
from fullgraph.values import Range

# What a file of ours begins with, so that a file of the user's is not taken for one.
CLUSTER, RATES = "# written by fullgraph probe\n", '{\n "device": '

if TYPE_CHECKING:
    from fullgraph.lab.cost.counting import Halo
    from fullgraph.partition import GraphFacts
    from fullgraph.recipes import Strategy
    from fullgraph.run import Run

MOST_CUT = 32  # ranks; for more a graph is cut into fewer parts, and what they read of one another is extrapolated
FITTED = (2, 4, 8, 16)
MOST_OF_ANY = 10**15  # nodes, arcs, features or classes
StrategyOption = Annotated[
    list[str],
    typer.Option("--strategy", help="only these; options follow the name: 'sylvie-a bits=2'",
                 autocompletion=offer(STRATEGIES)),
]  # fmt: skip
ModelOption = Annotated[list[str], typer.Option("-m", "--model-option", help="KEY=VALUE of the model, many times")]
PageOption = Annotated[Path | None, typer.Option("--page", help="write a page for a browser, FILE.html")]


def plan(
    graph: GraphArgument = "demo",
    cluster: Annotated[Path | None, typer.Option(help="a TOML file; see the documentation, Planning")] = None,
    parts: Annotated[int, typer.Option(help="ranks of this machine, where no cluster is given")] = 2,
    model: Annotated[str, chosen_from(MODELS)] = "sage",
    layers: int = 3,
    hidden: int = 128,
    model_option: ModelOption = [],  # noqa: B006
    strategy: StrategyOption = [],  # noqa: B006
    partitioner: PartitionerName = "metis",
    partitioner_option: PartitionerOption = [],  # noqa: B006
    as_json: JsonOption = False,
    page: PageOption = None,
) -> None:
    """Rank strategies by the seconds an epoch would take, with bytes, memory a rank, and what each one risks.

    Example:  fullgraph plan mygraph.npz --cluster cluster.toml --model gcn --layers 4
    """
    with shown() as display:
        from fullgraph.lab.cost.cluster import Cluster
        from fullgraph.lab.cost.here import cluster_here
        from fullgraph.lab.cost.plan import planned, planned_even
        from fullgraph.lab.cost.show import plan_page, plan_table
        from fullgraph.lab.html.document import MARK
        from fullgraph.storage import scratch, write_whole

        phases = Phases(display=display)
        machines = Cluster.read(cluster) if cluster is not None else cluster_here(parts)
        run, offered = _run(model, layers, hidden, model_option), _strategies(strategy)
        cutter = partitioner_of(partitioner, partitioner_option, [])
        with scratch(Path(tempfile.gettempdir())) as work:
            if machines.ranks <= MOST_CUT:
                shards = _cut(graph, machines.ranks, cutter, work, phases)
                with display.phase("foretelling"):
                    found = planned(run, shards, machines, offered)
            else:
                folders = [_cut(graph, size, cutter, work, phases) for size in FITTED]
                with display.phase("foretelling"):
                    found = planned_even(run, folders, machines, offered)
    if page is not None:
        write_whole(_html(page), plan_page(found), MARK)
    if as_json:
        print_json(found.tree())
        return
    print(plan_table(found))
    if page is not None:
        print(f"wrote {page}")


def simulate(
    graph: Annotated[
        str, typer.Argument(help="a graph by name, or nodes=N,arcs=E,features=F,classes=C")
    ] = "papers100M",
    device: Annotated[str, typer.Option(help="a device by name, or a file of `fullgraph calibrate`")] = "a100",
    most: Annotated[int, typer.Option(help="devices; 1, 2, 4, .. up to so many are tried")] = 4096,
    per_machine: Annotated[int, typer.Option(help="devices of a machine")] = 8,
    link: Annotated[str, typer.Option(help="between machines, each way")] = "200gbit",
    inside: Annotated[str, typer.Option(help="between devices of a machine, each way")] = "2400gbit",
    train: Annotated[float | None, typer.Option(help="share of training nodes")] = None,
    model: Annotated[str, chosen_from(MODELS)] = "sage",
    layers: int = 3,
    hidden: int = 256,
    model_option: ModelOption = [],  # noqa: B006
    strategy: StrategyOption = [],  # noqa: B006
    as_json: JsonOption = False,
    page: PageOption = None,
) -> None:
    """Foretell an epoch on machines that nobody here has: how far each strategy scales, and what stops it.

    Example:  fullgraph simulate papers100M --device a100 --most 1024 --page scale.html
    """
    with shown() as display:
        from fullgraph.lab.cost.cluster import Cluster, Link
        from fullgraph.lab.cost.devices import DEVICES
        from fullgraph.lab.cost.here import rates_for
        from fullgraph.lab.cost.scale import limits, sweep
        from fullgraph.lab.cost.show import limits_tree, scale_page, scale_table
        from fullgraph.lab.html.document import MARK
        from fullgraph.storage import write_whole

        facts, share, halo = _shape(graph, train)
        rates = rates_for(device)
        machines = Cluster(
            ranks_per_machine=per_machine,
            cores=per_machine,
            memory_bytes=DEVICES[device].memory_bytes if device in DEVICES else 0,
            rates=device,
            link=Link(bits_per_s=_bits(link), latency_s=10e-6),
            inside=Link(bits_per_s=_bits(inside), latency_s=5e-6),
        )
        sizes = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
        run = _run(model, layers, hidden, model_option)
        points = []
        for size in sizes:  # the work grows with the devices, so the wait is shown for each size
            with display.phase(f"foretelling {size} of {sizes[-1]} devices"):
                points += sweep(
                    run, facts, halo, machines, rates, [size], train=share, strategies=_strategies(strategy)
                )
    if page is not None:
        write_whole(_html(page), scale_page(facts.name, device, points), MARK)
    if as_json:
        print_json(limits_tree(points))
        return
    print(scale_table(facts.name, device, points, limits(points)))
    if page is not None:
        print(f"wrote {page}")


def calibrate(
    out: Annotated[Path | None, typer.Option(help="write FILE.json too, for another machine's plan")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    threads: Annotated[int, typer.Option(help="of a rank")] = 1,
) -> None:
    """Measure what each kind of work takes on this machine, and keep it for `plan` and `auto`.

    Example:  fullgraph calibrate --out here.json
    """
    with shown() as display, display.phase("measuring"):
        from fullgraph.lab.cost.here import kept_at, measured

        rates = measured(device, threads)
        path = kept_at(device, threads)
        path.parent.mkdir(parents=True, exist_ok=True)
        rates.write(path)
        if out is not None:
            rates.write(out, over=RATES)
    print(f"wrote {out or path}")


def probe(
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("cluster.toml"),
    parts: Annotated[int, typer.Option(help="ranks of this machine; under torchrun, its ranks are taken")] = 2,
) -> None:
    """Look at the links between ranks for a second, and write the file that `plan --cluster` reads.

    Example:  torchrun --nnodes 2 --nproc-per-node 1 ... -m fullgraph probe --out cluster.toml
    """
    from fullgraph.environ import in_job
    from fullgraph.lab.cost.here import cluster_here, probe_here, probe_in_job
    from fullgraph.storage import write_whole

    if in_job():
        found = probe_in_job()
        if found is None:
            return
    else:
        found = probe_here(parts) if parts > 1 else cluster_here(1)
    write_whole(out, CLUSTER + found.text(), CLUSTER)
    print(f"wrote {out}")


def _run(model: str, layers: int, hidden: int, options: list[str]) -> "Run":
    from fullgraph.run import Run

    given = fields_of(MODELS[model], {"layers": layers, "hidden": hidden}) | pairs_of(options, "-m")
    spec = MODELS.make(model, **given)
    if not hasattr(spec, "graph_layers"):
        raise InputError("a model of your own cannot be foretold; measure it with `fullgraph bench`")
    return Run(model=spec)


def _strategies(texts: list[str]) -> "list[tuple[str, Strategy]]":
    from fullgraph.lab.bench.matrix import strategy_of

    return [(text, strategy_of(text)) for text in texts]


def _cut(graph: str, parts: int, partitioner: Any, work: Path, phases: Phases) -> Path:
    """A folder of so many parts: the one given, or a new one."""
    from fullgraph.cutting import cut, write_shards
    from fullgraph.data import load
    from fullgraph.partition import is_partition_folder, read_manifest

    if is_partition_folder(Path(graph)):
        if read_manifest(Path(graph)).parts != parts:
            raise InputError(f"{graph} is cut into other parts than the cluster's {parts} ranks; give the graph itself")
        return Path(graph)
    with phases("read", f"reading {graph}"):
        whole = load(graph)
    folder = work / str(parts)
    write_shards(folder, whole, cut(whole, parts, partitioner, 0, phases), phases)
    return folder


def _shape(text: str, train: float | None) -> "tuple[GraphFacts, float, Halo]":
    from fullgraph.lab.cost.counting import Halo
    from fullgraph.lab.cost.scale import KNOWN
    from fullgraph.partition import GraphFacts

    if train is not None and not 0 < train <= 1:
        raise InputError(f"--train {train}: a share of the nodes, above 0 and at most 1")
    if text in KNOWN:
        known = KNOWN[text]
        return known.facts, known.train if train is None else train, known.halo
    if "=" not in text:
        names = ", ".join(KNOWN)
        raise InputError(f"graph {text!r} is unknown{nearest(text, KNOWN)}; known: {names}, or nodes=N,arcs=E,...")
    sizes = {"features": 128, "classes": 64}
    for key, value in pairs_of(text.split(","), "graph").items():
        if key not in ("nodes", "arcs", "features", "classes"):
            raise InputError(f"a graph has no {key}; give nodes, arcs, features and classes")
        try:
            sizes[key] = int(float(value))
        except (ValueError, OverflowError):
            raise InputError(f"{key}={one_line(value, 40)}: give a number, such as 1e9") from None
        problem = Range(0 if key == "arcs" else 1, MOST_OF_ANY).problem(sizes[key])
        if problem:
            raise InputError(f"{key}={one_line(value, 40)}: {problem}")
    missing = [key for key in ("nodes", "arcs") if key not in sizes]
    if missing:
        raise InputError(f"a graph needs {' and '.join(missing)}, such as nodes=1e8,arcs=2e9")
    facts = GraphFacts(
        name=text, nodes=sizes["nodes"], arcs=sizes["arcs"], features=sizes["features"], classes=sizes["classes"],
        multilabel=False, weighted=False, splits=1, sparse=False,
    )  # fmt: skip
    return facts, 0.5 if train is None else train, Halo()


def _bits(text: str) -> float:
    from fullgraph.lab.cost.cluster import bits_of

    bits = bits_of(text)
    if bits is None:
        raise InputError(f"rate {one_line(text, 40)!r}: write it as 200gbit or 50mbit")
    return bits


def _html(path: Path) -> Path:
    if path.suffix != ".html":
        raise InputError(f"--page {path}: name a file that ends in .html")
    return path
