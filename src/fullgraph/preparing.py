"""The work before any rank starts: read the graph, check it against the run, partition it, write the config.

A run that cannot fit this machine is refused.
"""

import time
from dataclasses import replace
from pathlib import Path
from threading import get_native_id
from typing import Protocol, runtime_checkable
from uuid import uuid4

from torch.nn.parameter import is_lazy

from fullgraph.cutting import cut, write_shards
from fullgraph.data import Graph, load_union
from fullgraph.data.splits import is_drawn
from fullgraph.errors import InputError, explain
from fullgraph.nn import ModelSpec, Usual
from fullgraph.own_code import own_code
from fullgraph.partition import (
    GraphFacts,
    Manifest,
    Metis,
    facts_of,
    is_partition_folder,
    open_part,
    read_manifest,
    whole_part,
)
from fullgraph.recipes import Strategy
from fullgraph.remarks import remarks
from fullgraph.report import Phases
from fullgraph.report.memory import MemoryPlan
from fullgraph.report.terminal import note
from fullgraph.resources import free_memory, require_memory, require_ranks
from fullgraph.run import Run, not_in_parts, planner_for, require_types
from fullgraph.storage import scratch
from fullgraph.tasks import TaskSpec, check_task, fitted, task_for
from fullgraph.train.config import TrainConfig
from fullgraph.train.folder import SHARDS, RunFolder
from fullgraph.words import bytes_in


@runtime_checkable
class Chooser(Protocol):
    """A strategy that chooses another strategy once the graph is partitioned."""

    def choose(self, run: Run, shards: Path) -> tuple[str, Strategy, str]:
        """Return the chosen strategy, as a name and as a value, and the reason."""


@own_code()
def prepare(config: Run, graph: Graph | str | Path, run: RunFolder, phases: Phases) -> Run:
    """Fill the run's folder: shards (unless the graph is a folder of shards) and the resolved config."""
    folder = run.path
    try:
        check_host_memory(config)
        if not isinstance(graph, Graph) and is_cut(graph):
            config, manifest = _with_shards(config, Path(graph))
            task = task_for(config.train.task, manifest.graph, cut=True)
            task.check(manifest.graph, cut=True)
            config = with_task(config, task, manifest.graph)
            check_types(config, manifest.graph)
            config = chosen(config, Path(graph), phases)
            check_placement(config)
        else:
            if not isinstance(graph, Graph):
                with phases("read", f"reading {graph}"):
                    graph = load_union(str(graph), reverses=config.reverses)
            task, graph = fitted(config.train.task, graph, config.train.seed, config.split)
            facts = facts_of(graph)
            config = with_task(replace(config, parts=config.parts or 1), task, facts)
            check_types(config, facts)
            check_placement(config)
            partitioner = config.strategy.partitioner() or config.partitioner or Metis()
            config = replace(config, partitioner=partitioner)
            if config.column >= graph.num_splits:
                raise InputError(
                    f"split {config.split} does not exist; the graph has splits 0 to {graph.num_splits - 1}"
                )
            assignment = cut(graph, config.parts, partitioner, config.train.seed, phases)
            how = {"features": config.features, "split": config.column}
            with scratch(folder) as work:
                try:
                    manifest = write_shards(work / SHARDS, graph, assignment, phases, **how)
                except InputError as error:
                    raise InputError(str(error).replace(str(work), str(folder))) from None
                run.place_shards(work / SHARDS)
            config = chosen(config, folder / SHARDS, phases)
        config = replace(config, id=uuid4().hex, shards_checksum=manifest.checksum)
        config.write(folder)
        run.ready()
        for remark in [*(graph.notes if isinstance(graph, Graph) else ()), *remarks(config, manifest)]:
            note(remark)
    except Exception as error:
        raise explain(error, folder) or error from error
    return config


# the default model for a typed graph, and its options, if the task does not name others
USUAL_TYPED = ("hetero-sage", dict[str, object]())


def with_task(config: Run, task: TaskSpec, facts: GraphFacts | None = None) -> Run:
    """The run with its task, and with the default model of the task, or of typed graphs, if no model was named."""
    check_task(task)
    typed = facts is not None and bool(facts.types)
    usual = getattr(task, "usual_typed", USUAL_TYPED) if typed else task.usual
    model = config.model.settled(*usual) if isinstance(config.model, Usual) else config.model
    return replace(config, model=model, train=replace(config.train, task=task))


def chosen(config: Run, shards: Path, phases: Phases) -> Run:
    """The run with a chosen strategy, if it left the choice open."""
    if not isinstance(config.strategy, Chooser):
        return config
    with phases("choose", "choosing a strategy"):
        name, strategy, reason = config.strategy.choose(config, shards)
    note(f"auto chose {name}: {reason}")
    return replace(config, strategy=strategy)


def is_cut(graph: Graph | str | Path) -> bool:
    """Whether the graph is a folder of shards."""
    return not isinstance(graph, Graph) and is_partition_folder(Path(graph))


def _with_shards(config: Run, shards: Path) -> tuple[Run, Manifest]:
    """The config of a run on a folder of shards, with the settings of that partition."""
    manifest = read_manifest(shards)
    if config.parts not in (0, manifest.parts):
        raise InputError(f"{shards} holds {manifest.parts} parts, not {config.parts}; pass --parts {manifest.parts}")
    if is_drawn(config.split):
        raise InputError(f"{shards} has its splits; run `fullgraph partition` again with --split {config.split}")
    if config.reverses:
        raise InputError(f"{shards} has its relations; run `fullgraph partition` again with --reverses")
    if config.features not in ("none", manifest.features):
        raise InputError(f"{shards} was written with features {manifest.features!r}; partition again to change them")
    config = replace(
        config, shards=str(shards.resolve()), parts=manifest.parts, features=manifest.features, partitioner=None
    )
    return config, manifest


def check_placement(config: Run) -> None:
    """Refuse a model that the strategy cannot place on this number of ranks, before any rank starts."""
    model = config.model.outline(1, 2)
    model.checkpoint_layers = config.train.checkpoint_layers
    layout = replace(config.strategy.layout(), host_rows=config.train.features_on == "host")
    layout.check(model, config.parts)
    task: TaskSpec = config.train.task  # type: ignore[assignment]  # `prepare` has found it
    task.check_placement(layout, inductive=config.train.inductive)


def check_host_memory(config: Run) -> None:
    """Refuse a run that was given a memory to stay within, and cannot, before anything is read."""
    given = config.train.host_memory
    if given == "auto" or isinstance(config.strategy, Chooser):
        return
    reason = not_in_parts(config, config.parts or 1)
    if reason:
        raise InputError(f"--host-memory {given}: {reason}")


def memory_plan(config: Run, graph: Graph | Path) -> MemoryPlan:
    """The memory plan of a run on one rank, without its features: a graph, or a folder of shards."""
    if isinstance(graph, Graph):
        task, graph = fitted(config.train.task, graph, config.train.seed, config.split)
        facts = facts_of(graph)
        if facts.sparse:
            raise InputError("--memory: sparse features stay in memory; give dense features")
        part = whole_part(graph)
    else:
        part = open_part(graph, 0, verify=False)
        facts = part.manifest.graph
        task = task_for(config.train.task, facts, cut=True)
    config = with_task(replace(config, parts=1), task, facts)
    reason = not_in_parts(config, part.parts, facts)
    if reason:
        raise InputError(f"--memory: {reason}")
    return planner_for(config, part, on_disk=True).plan(bytes_in(config.train.host_memory) or free_memory())


def check_types(config: Run, facts: GraphFacts) -> None:
    """Refuse a model that does not fit the graph's types, and what cannot train on a typed graph."""
    require_types(config.model, facts)
    if hasattr(config.model, "distributed"):  # a user's model
        task = task_for(config.train.task, facts, cut=True)
        of_pairs = any(table.of == "pairs" for table in task.predicts)
        config.model.check_types(facts, task.out_width(facts), of_pairs=of_pairs)  # type: ignore[attr-defined]
    if not facts.types:
        return
    if isinstance(config.strategy, Chooser) or not config.strategy.layout().by_relation:
        known = "use vanilla, none, or one that exchanges halo rows, such as pipegcn"
        raise InputError(f"strategy {config.strategy.name} cannot train on typed graphs: {known}")
    attends, layers = config.model.aggregation == "relation attention", range(config.model.graph_layers)
    if attends and any(getattr(config.wires.at(layer), "share", 1) < 1 for layer in layers):
        raise InputError(
            f"attention by relation needs all rows of the halo, and strategy {config.strategy.name} leaves some out: "
            "use --model rgcn or hetero-sage"
        )
    if config.train.inductive:
        raise InputError("inductive training keeps only the training nodes, which are of one type: leave it out")


def new_folder(config: Run, out: str | Path | None) -> Path:
    """The requested folder, or a new one under runs/."""
    if out is not None:
        return Path(out)
    links = isinstance(config.model, Usual) and config.train.task not in ("auto", None)
    model = with_task(config, config.train.task).model if links else config.model  # type: ignore[arg-type]
    stem = f"{Path(config.graph).stem.split(':')[0]}-{model.name}-{config.strategy.name}".replace(":", "-")
    return Path("runs") / f"{stem[:100]}-{time.strftime('%Y%m%d-%H%M%S')}-{get_native_id()}"


COPIES = 3  # of the weights: current weights, gradients, best weights; the optimizer's copies are added


def require_run_fits(manifest: Manifest, spec: ModelSpec, config: TrainConfig, *, in_parts: bool = False) -> None:
    """Refuse a run that cannot fit, before its ranks allocate memory, descriptors, ports or threads.

    in_parts: its layers can be computed in parts, so its ranks find out what fits.
    """
    require_ranks(manifest.parts, config.threads)
    if config.device == "cpu" and not in_parts:
        width = task_for(config.task, manifest.graph, cut=True).out_width(manifest.graph)
        outline = spec.outline(manifest.graph.features, width)
        with own_code(outline):
            weights = list(outline.parameters())
        count = sum(weight.numel() for weight in weights if not is_lazy(weight)) * (
            COPIES + getattr(config.optimizer, "slots", 2)
        )
        least = manifest.parts * count * _itemsize(config)
        least += sum(least_bytes(manifest, spec, config, rank) for rank in range(manifest.parts))
        require_memory(least, f"training on {manifest.parts} ranks of this machine")


def least_bytes(manifest: Manifest, spec: ModelSpec, config: TrainConfig, rank: int) -> int:
    """Return the minimum memory of a rank: edges, aggregated input, and every layer's output and its gradient."""
    nodes, arcs = manifest.figures.nodes[rank], manifest.figures.edges[rank]
    ahead = config.precompute and not spec.encodes and not manifest.graph.sparse
    columns = (manifest.graph.features if ahead else 0) + 2 * spec.layers * spec.hidden
    return 4 * arcs + 8 * nodes + nodes * columns * _itemsize(config)


def _itemsize(config: TrainConfig) -> int:
    return 8 if config.dtype == "float64" else 4
