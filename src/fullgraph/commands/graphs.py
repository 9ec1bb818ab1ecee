"""Commands on a graph: partition it, or describe it and a partition."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullgraph.axes import MODELS
from fullgraph.commands.shared import (
    FeaturesOption,
    GraphArgument,
    JsonOption,
    OldOption,
    PartitionerName,
    PartitionerOption,
    PartsOption,
    ReversesOption,
    SplitOption,
    chosen_from,
    partitioner_of,
    print_json,
    with_fields,
)
from fullgraph.display import shown
from fullgraph.errors import InputError
from fullgraph.model_options import KINDS, StackOptions
from fullgraph.named import pairs_of
from fullgraph.options import options_of, run_of
from fullgraph.report import Phases
from fullgraph.report.terminal import note
from fullgraph.train.config import TrainConfig
from fullgraph.values import hints_of, read_option

if TYPE_CHECKING:
    from fullgraph.data import Graph, TypedGraph


@with_fields(TrainConfig)
def partition(
    graph: GraphArgument,
    out: Annotated[Path, typer.Option(help="folder to write")],
    parts: PartsOption = 2,
    partitioner: PartitionerName = "metis",
    partitioner_option: PartitionerOption = [],  # noqa: B006
    features: FeaturesOption = "none",
    split: SplitOption = "0",
    reverses: ReversesOption = False,
    seed: int = TrainConfig.seed,
    task: str = TrainConfig.task,
    train_option: Annotated[list[str], typer.Option("-t", "--train-option", help="KEY=VALUE of the task")] = [],  # noqa: B006
    scratch: Annotated[
        Path | None,
        typer.Option(help="cut tables of nodes and edges through files in this folder, as is done with tables that do "
                     "not fit in memory"),
    ] = None,
    option: OldOption = [],  # noqa: B006
) -> None:  # fmt: skip
    """Partition a graph into a folder of shards, one per rank.

    Example:  fullgraph partition mygraph.npz --parts 4 --out parts/ -p node_weight=1 -p degree_weight=0.5
    """
    from fullgraph.cutting import cut, fitting, source, write_shards
    from fullgraph.report.tables import print_quality
    from fullgraph.run import Run
    from fullgraph.tasks import TASKS, Link, fitted

    read_option(hints_of(Run)["features"], "features", features)
    wanted = read_option(hints_of(Run)["split"], "split", split)
    chosen = partitioner_of(partitioner, partitioner_option, option)  # refuses bad options before the graph is read
    given = pairs_of(train_option, "-t")
    if given and task == TrainConfig.task:
        raise InputError("-t gives options to a task: name the task, as in --task link -t val=0.1")
    learned = TASKS.make(task, **given) if given else task
    with shown() as display:
        phases = Phases(display=display)
        link = learned == "link" or isinstance(learned, Link)
        with source(graph, out, scratch, phases, reverses=reverses, whole=link) as read:
            _, whole = fitted(learned, read.graph, seed, wanted)
            if read.scratch is not None:
                chosen, why = fitting(chosen, whole)
                whole = whole.noted(*([why] if why else []))
            assignment = cut(whole, parts, chosen, seed, phases, read.scratch)
            manifest = write_shards(
                out, whole, assignment, phases, features=features, split=0 if isinstance(wanted, str) else wanted
            )
    _say(whole)
    print_quality(asdict(manifest.figures), manifest.method)
    print(f"wrote {out}")


@with_fields(*KINDS, TrainConfig)
def inspect(
    ctx: typer.Context,
    graph: GraphArgument,
    parts: PartsOption = 2,
    partitioner: PartitionerName = "metis",
    partitioner_option: PartitionerOption = [],  # noqa: B006
    seed: int = TrainConfig.seed,
    ranks_per_host: Annotated[
        int | None, typer.Option(min=1, help="also count the rows that cross between hosts of so many ranks")
    ] = None,
    as_json: JsonOption = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="print the memory plan of a run on one rank, with the options below")
    ] = False,
    model: Annotated[str | None, chosen_from(MODELS, default="sage")] = None,
    layers: int = StackOptions.layers,
    hidden: int = StackOptions.hidden,
    host_memory: str = TrainConfig.host_memory,
    precompute: bool = TrainConfig.precompute,
    option: OldOption = [],  # noqa: B006
) -> None:
    """Describe a graph and the quality of a partition: edges cut, halo rows, each rank's share, and advice.

    Example:  fullgraph inspect parts/        or:  fullgraph inspect mygraph.npz --memory --host-memory 8GiB
    """
    if memory:
        _print_plan(graph, options_of(ctx), as_json=as_json)
        return
    from fullgraph.cutting import cut
    from fullgraph.data import Graph, as_union
    from fullgraph.data.describe import describe, describe_typed
    from fullgraph.partition import is_partition_folder, quality, read_manifest
    from fullgraph.partition.cover import count_between_hosts, covered_rows, covered_rows_in
    from fullgraph.report.inspection import print_graph, remarks_on
    from fullgraph.report.tables import print_quality

    about: dict[str, Any]
    if is_partition_folder(Path(graph)):
        if ranks_per_host is not None:
            raise InputError("--ranks-per-host counts edges of the whole graph; give the graph instead of its parts")
        manifest = read_manifest(Path(graph))
        about, figures, method = asdict(manifest.graph), asdict(manifest.figures), manifest.method
        figures["covered_rows"] = sum(covered_rows_in(graph))
    else:
        chosen = partitioner_of(partitioner, partitioner_option, option)  # refuses bad options before the graph is read
        with shown(errors=as_json) as display:
            phases = Phases(display=display)
            read = _read(graph, phases)
            with phases("look", "describing the graph"):
                about = asdict(describe(read) if isinstance(read, Graph) else describe_typed(read))
                whole = as_union(read)
            assignment = cut(whole, parts, chosen, seed, phases)
            with phases("look", "measuring the partition"):
                figures, method = asdict(quality(whole, assignment)), assignment.method
                figures["covered_rows"] = sum(covered_rows(whole, assignment))
                if ranks_per_host is not None:
                    figures["between_hosts"] = asdict(count_between_hosts(whole, assignment, ranks_per_host))
        _say(whole)
    found = remarks_on(about, figures)
    if as_json:
        print_json({"graph": about, "partition": {"method": method, **figures}, "remarks": found})
        return
    print_graph(about)
    print_quality(figures, method)
    for remark in found:
        print(f"- {remark}")


def _print_plan(graph: str, given: dict[str, Any], *, as_json: bool) -> None:
    from fullgraph.partition import is_partition_folder
    from fullgraph.preparing import memory_plan

    run = run_of({name: value for name, value in given.items() if name not in ("parts", "partitioner")})
    with shown(errors=as_json) as display:
        phases = Phases(display=display)
        held = Path(graph) if is_partition_folder(Path(graph)) else as_graph(_read(graph, phases))
        with phases("look", "planning the memory"):
            plan = memory_plan(run, held)
    if as_json:
        print_json(asdict(plan))
    else:
        print("\n".join(plan.table()))


def as_graph(graph: "Graph | TypedGraph") -> "Graph":
    """Refuse a typed graph, which is trained in memory."""
    from fullgraph.data import Graph

    if not isinstance(graph, Graph):
        raise InputError("--memory: typed graphs are trained in memory; leave it out")
    return graph


def _read(graph: str, phases: Phases) -> "Graph | TypedGraph":
    from fullgraph.data import load_any

    with phases("read", f"reading {graph}"):
        return load_any(graph)


def _say(graph: "Graph") -> None:
    for line in graph.notes:
        note(line)
