"""Commands that predict: which strategy suits which machines."""

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
    with_fields,
)
from fullgraph.display import shown
from fullgraph.errors import InputError
from fullgraph.model_options import ModelOptions
from fullgraph.named import pairs_of
from fullgraph.options import fields_of
from fullgraph.report import Phases
from fullgraph.train.config import TrainConfig
from fullgraph.values import hints_of, read_option

# How a file of `probe` begins, so that a user's own file is not taken for one.
CLUSTER, RATES = "# written by fullgraph probe\n", '{\n "device": '

if TYPE_CHECKING:
    from fullgraph.recipes import Strategy
    from fullgraph.run import Run

MOST_CUT = 32  # ranks; beyond, the graph is divided into fewer parts and their halos are extrapolated
FITTED = (2, 4, 8, 16)
StrategyOption = Annotated[
    list[str],
    typer.Option("--strategy", help="only these; options follow the name: 'sylvie-a bits=2'",
                 autocompletion=offer(STRATEGIES)),
]  # fmt: skip
ModelOption = Annotated[list[str], typer.Option("-m", "--model-option", help="KEY=VALUE of the model; may be repeated")]
PageOption = Annotated[Path | None, typer.Option("--page", help="write a page for a browser, FILE.html")]


@with_fields(ModelOptions)
def plan(
    graph: GraphArgument = "demo",
    cluster: Annotated[Path | None, typer.Option(help="a TOML file; see the documentation, Planning")] = None,
    parts: Annotated[int, typer.Option(help="ranks on this machine, if no cluster is given")] = 2,
    model: Annotated[str, chosen_from(MODELS)] = "sage",
    layers: int = ModelOptions.layers,
    hidden: int = ModelOptions.hidden,
    model_option: ModelOption = [],  # noqa: B006
    strategy: StrategyOption = [],  # noqa: B006
    partitioner: PartitionerName = "metis",
    partitioner_option: PartitionerOption = [],  # noqa: B006
    as_json: JsonOption = False,
    page: PageOption = None,
) -> None:
    """Rank strategies by predicted seconds per epoch, with bytes, memory per rank, and the risk of each.

    Example:  fullgraph plan mygraph.npz --cluster cluster.toml --model gcn --layers 4
    """
    with shown() as display:
        from fullgraph.lab.cost.cluster import Cluster
        from fullgraph.lab.cost.local_machine import cluster_here
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
                with display.phase("predicting"):
                    found = planned(run, shards, machines, offered)
            else:
                folders = [_cut(graph, size, cutter, work, phases) for size in FITTED]
                with display.phase("predicting"):
                    found = planned_even(run, folders, machines, offered)
    if page is not None:
        write_whole(_html(page), plan_page(found), MARK)
    if as_json:
        print_json(found.tree())
        return
    print(plan_table(found))
    if page is not None:
        print(f"wrote {page}")


@with_fields(TrainConfig)
def calibrate(
    out: Annotated[Path | None, typer.Option(help="write FILE.json too, for another machine's plan")] = None,
    device: str = TrainConfig.device,
    threads: Annotated[int, typer.Option(help="threads per rank")] = 1,
) -> None:
    """Measure how long each kind of work takes on this machine, and save it for `plan` and `auto`.

    Example:  fullgraph calibrate --out here.json
    """
    read_option(hints_of(TrainConfig)["device"], "device", device)
    with shown() as display, display.phase("measuring"):
        from fullgraph.lab.cost.local_machine import kept_at, measured

        rates = measured(device, threads)
        path = kept_at(device, threads)
        path.parent.mkdir(parents=True, exist_ok=True)
        rates.write(path)
        if out is not None:
            rates.write(out, over=RATES)
    print(f"wrote {out or path}")


def probe(
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("cluster.toml"),
    parts: Annotated[int, typer.Option(help="ranks on this machine; under torchrun, its ranks are used")] = 2,
) -> None:
    """Measure the links between ranks for a second, and write the file that `plan --cluster` reads.

    Example:  torchrun --nnodes 2 --nproc-per-node 1 ... -m fullgraph probe --out cluster.toml
    """
    from fullgraph.environ import in_job
    from fullgraph.lab.cost.local_machine import cluster_here, probe_here, probe_in_job
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
        raise InputError("your own model cannot be predicted; measure it with `fullgraph bench`")
    return Run(model=spec)


def _strategies(texts: list[str]) -> "list[tuple[str, Strategy]]":
    from fullgraph.lab.bench.matrix import strategy_of

    return [(text, strategy_of(text)) for text in texts]


def _cut(graph: str, parts: int, partitioner: Any, work: Path, phases: Phases) -> Path:
    """A folder with that many parts: the given one, or a new one."""
    from fullgraph.cutting import cut, write_shards
    from fullgraph.data import load, refused
    from fullgraph.partition import is_partition_folder, read_manifest

    if is_partition_folder(Path(graph)):
        manifest = read_manifest(Path(graph))
        if manifest.parts != parts:
            raise InputError(f"{graph} does not have the {parts} parts of the cluster; give the graph itself")
        if types := manifest.graph.types:
            raise refused(graph, len(types.nodes), len(types.relations))
        return Path(graph)
    with phases("read", f"reading {graph}"):
        whole = load(graph)
    folder = work / str(parts)
    write_shards(folder, whole, cut(whole, parts, partitioner, 0, phases), phases)
    return folder


def _html(path: Path) -> Path:
    if path.suffix != ".html":
        raise InputError(f"--page {path}: name a file that ends in .html")
    return path
