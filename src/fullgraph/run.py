"""A run as a value, its file, and the function that builds a rank's trainer from it."""

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from fullgraph.axes import FEATURE_KINDS, MODELS, STRATEGIES
from fullgraph.data.splits import Drawn
from fullgraph.device import HOST, device_of, require
from fullgraph.errors import InputError, one_line
from fullgraph.exchange import Wires
from fullgraph.nn import AnyModel, Chain, GraphSAGE, ModelSpec, NodeEmbedding, check_spec
from fullgraph.own_code import is_ours, own_code, told, unfit
from fullgraph.partition import AnyPartitioner, GraphFacts, Metis, Part
from fullgraph.placement import AllLayers, Partitioned, Placement, Shard, WholeStep
from fullgraph.placement.streamed import Planner, planner_of, streamed_shard, why_not
from fullgraph.recipes import Strategy, check_strategy, vanilla, wires_of
from fullgraph.reference import checksum_of, files_in, packed, reference_to
from fullgraph.report import Meter
from fullgraph.resources import free_memory
from fullgraph.storage import read_document, record_of, write_document
from fullgraph.tasks import task_for
from fullgraph.train.config import FILE, FIX, TrainConfig
from fullgraph.train.precision import allow_tf32, rows_dtype
from fullgraph.train.spread import Held, SpreadRows
from fullgraph.train.trackers import require_tracker
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Counting, Transport
from fullgraph.values import OneOf, Range, Value, flat, tree_of
from fullgraph.words import bytes_in, count

SCHEMA = 3  # version of config.json; schema 2 dropped input features silently, schema 1 had no schema number

NAMES = ("id", "graph", "shards", "shards_checksum")  # fields that name a run and its graph


@dataclass(frozen=True, kw_only=True)
class Run(Value):
    """Everything that decides a run's result, and which files belong to it."""

    id: str = ""  # carried by the run's checkpoints and model
    graph: str = "demo"
    parts: Annotated[int, Range(0, 65535)] = 1
    shards: str = ""  # folder of the parts; empty: `shards` beside this file; a name: another folder beside it
    shards_checksum: Annotated[int, Range(0, 2**32 - 1)] = 0  # checksum of their manifest
    reverses: bool = False  # add a reversed relation beside each relation of a typed graph
    partitioner: AnyPartitioner | None = Metis()  # None: the graph came partitioned
    features: Annotated[str, OneOf(*FEATURE_KINDS)] = "none"
    # one of the graph's splits, or the shares of a split to draw
    split: Annotated[int, Range(0, 10**6)] | Annotated[str, Drawn()] = 0
    model: AnyModel = GraphSAGE()
    strategy: Annotated[Strategy, STRATEGIES] = vanilla()
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def wires(self) -> Wires:
        """How the strategy's channels send, for the run's epochs and layers."""
        return wires_of(self.strategy, epochs=self.train.planned, layers=self.model.graph_layers)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strategy(self.strategy)
        check_spec(self.model)

    @property
    def column(self) -> int:
        """The column of the run's split in the shards; a drawn split is the only column."""
        return 0 if isinstance(self.split, str) else self.split

    def shards_in(self, folder: Path) -> Path:
        """The folder of the parts of the run in `folder`."""
        return folder / (self.shards or "shards")

    def on_shards(self, shards: str, checksum: int) -> "Run":
        """The same model for evaluation on another graph: vanilla, all rows, in the given order."""
        train = replace(self.train, inductive=False, all_rows=True, order="given")
        there = str(Path(shards).resolve())
        return replace(self, shards=there, shards_checksum=checksum, split=0, strategy=vanilla(), train=train)

    def write(self, folder: Path) -> None:
        """Write names and fields of every value, and the checksums of the user's files that are named."""
        tree = tree_of(self)
        files = {path: checksum_of(path) for path in sorted(_files_in(tree))}
        write_document(folder / FILE, {"schema": SCHEMA, **tree, "files": files})

    @classmethod
    def read(cls, folder: Path, model: Any = None) -> "Run":
        """Read the run of a folder. The user's files that it names are run, if they have not changed since the run
        began.

        model: its class, function or module, if no file holds it.
        """
        passed = "" if model is None else reference_to(model)
        run = cls.read_file(folder / FILE)
        if passed and MODELS.name_of(run.model) != passed:
            raise InputError(
                f"the model of the run in {folder} is {run.model.name}, found by its name; leave model= out"
            )
        return run

    @classmethod
    def read_file(cls, path: Path) -> "Run":
        """Read the run in a config.json."""
        tree = read_document(path, fix=FIX)
        schema, files = tree.pop("schema", 1), tree.pop("files", {})
        if schema != SCHEMA:
            known = f"this version reads schema {SCHEMA}; start a new run"
            raise InputError(f"{path} is of a run of schema {one_line(schema, 20)}, {known}")
        for file in _files_in(tree):
            if not isinstance(files, dict) or files.get(file) != checksum_of(file):
                raise InputError(
                    f"{file} has changed since the run in {path.parent} began; restore it, or start a new run"
                )
        return record_of(cls, tree, str(path), FIX)

    def facts(self) -> dict[str, object]:
        """Everything that decides the run's result, by name: every field, and the checksums of the user's files."""
        tree, found = tree_of(self), dict[str, object]()
        files = {path: Path(path).name for path in sorted(_files_in(tree))}  # hosts may keep them in different folders
        for name, value in flat(tree).items():
            path = value.rpartition(":")[0] if isinstance(value, str) else ""
            found[name] = value.replace(path, files[path], 1) if path in files else value
        return found | {f"the content of {name}": checksum_of(path) for path, name in files.items()}

    def decisive(self) -> dict[str, Any]:
        """Every field but names of the run and its folders, as a JSON tree."""
        return {name: value for name, value in tree_of(self).items() if name not in NAMES}

    def packed(self) -> str:
        """The serialised notebook classes that the run refers to, for its ranks."""
        return packed(tree_of(self))


def _files_in(tree: dict[str, Any]) -> set[str]:
    """The user's files that a run names, except the file that loaded its graph: the graph is already partitioned."""
    return files_in({name: value for name, value in tree.items() if name != "graph"})


def build_trainer(run: Run, part: Part, transport: Transport, scratch: Path | None = None) -> Trainer:
    """Build a rank's trainer: the one place where a run's values become objects.

    scratch: the folder for rows that do not fit in memory, if the run names none.
    """
    config, spec, facts = run.train, run.model, part.manifest.graph
    allow_tf32(config.precision)
    device = devices_of(run, transport.rank)[0]
    meter = Meter(device, detail=config.report or config.trace)
    probe = meter if meter.detail else None
    counting = Counting(transport, meter.sent, meter.waiting, probe)
    shard = shard_within(run, part, counting, scratch)
    model = build_model(run, facts, shard.full.ids).to(device)
    for name, held in model.named_modules():
        if isinstance(held, NodeEmbedding):  # a typed model has at most one
            model.tables = SpreadRows({f"{name}.weight": Held(held.nodes, held.total)}, shard.transport, "embedding")  # type: ignore[assignment]
    own, distributed = model, None
    if hasattr(spec, "distributed"):  # a user's module, which reads the edges itself
        model = distributed = spec.distributed(
            model, shard, run.strategy, epochs=config.planned, seed=config.seed, check=config.check,
            message_memory=config.message_memory, about=run.decisive() | {"parts": part.manifest.tree},
        )  # fmt: skip
        own, shard = model.module, model.shard
    task = task_for(config.task, facts, cut=True).build(
        facts, metric=config.metric, loss=config.loss, seed=config.seed, part=part, shard=shard, model=own
    )
    shard = task.placed(shard)
    if distributed is not None and not config.all_rows and type(shard.executor) is WholeStep:  # reads training rows
        distributed.trim()
    return Trainer(model, shard, task, config, meter)


def build_model(run: Run, facts: GraphFacts, ids: Tensor | None = None) -> nn.Module:
    """Build the model with the widths of the graph and the task, and with the modules that the task adds.

    ids: of a rank's rows, for which a typed model holds learned rows; None: of all nodes.
    """
    require_types(run.model, facts)
    task, seed, dtype = task_for(run.train.task, facts, cut=True), run.train.seed, getattr(torch, run.train.dtype)
    spec, width = run.model, task.out_width(facts)
    sized: dict[str, Any] = {"types": facts.types, "ids": ids} if facts.types else {}
    sized |= {"facts": facts} if hasattr(spec, "distributed") else {}  # a user's module may have lazy layers
    with own_code(spec):
        model: nn.Module = spec.build(facts.features, width, seed=seed, dtype=dtype, **sized)
    if not isinstance(model, nn.Module if "facts" in sized else Chain):
        raise unfit(spec, f"built {told(model)}; `build` has to return a fullgraph.nn.Chain")
    task.equip(model, seed=seed, dtype=dtype)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise unfit(spec, "has no weights to train: give it parameters, and leave some of them trainable")
    return model


def require_types(model: ModelSpec, facts: GraphFacts) -> None:
    """Refuse a model for typed graphs on a homogeneous graph, and the reverse."""
    takes_types, own = getattr(model, "typed", False), hasattr(model, "distributed")
    if facts.types and not takes_types and not own:
        held = f"{count(len(facts.types.nodes), 'node type')} and {count(len(facts.types.relations), 'relation')}"
        fix = f"use --model {', '.join(name for name in MODELS if getattr(MODELS[name], 'typed', False))}"
        raise InputError(f"{facts.name} is a typed graph ({held}), and {model.name} is for homogeneous graphs: {fix}")
    if takes_types and not facts.types:
        raise InputError(f"{facts.name} has one node type and one relation, and {model.name} is for typed graphs: use "
                         "--model sage, or give a typed graph (docs/typed.md)")  # fmt: skip


def build_shard(run: Run, part: Part, transport: Transport, aggregation: str = "") -> Shard:
    """Build a rank's shard with the strategy's placement; the aggregation is the model's unless it is given."""
    if hasattr(run.model, "distributed") and not aggregation:
        return rows_alone(run, part, transport)
    placement = replace(placement_of(run), device=devices_of(run, transport.rank)[0])
    shard = placement.place(part, transport, run.wires, aggregation or run.model.aggregation)
    if not isinstance(shard, Shard):
        raise unfit(placement.place, f"returned {told(shard)}: return a fullgraph.placement.Shard")
    return shard


def shard_within(run: Run, part: Part, transport: Transport, scratch: Path | None) -> Shard:
    """A rank's shard within the run's memory: with all rows in memory if they fit, else with rows in stores."""
    config, facts, given = run.train, part.manifest.graph, run.train.host_memory != "auto"
    reason = not_in_parts(run, transport.size, facts)
    if reason and given:
        raise InputError(f"--host-memory {config.host_memory}: {reason}")
    budget = bytes_in(config.host_memory) or free_memory()
    if reason or (not given and (surely_fits(run, part, budget) or not is_ours(run.model))):
        return build_shard(run, part, transport)
    planner = planner_for(run, part)
    plan = planner.plan(budget)
    if not plan.streams:
        return replace(build_shard(run, part, transport), memory=plan)
    folder = Path(config.scratch) if config.scratch else scratch or Path(tempfile.gettempdir())
    placement = placement_of(run)
    assert isinstance(placement, Partitioned)
    return streamed_shard(placement, part, transport, planner, plan, folder)


def planner_for(run: Run, part: Part, *, on_disk: bool | None = None) -> Planner:
    """What finds the memory plan of a run whose layers can be computed in parts.

    on_disk: whether the part is files when it trains; None: whether it is now.
    """
    placement, model = placement_of(run), build_model(run, part.manifest.graph)
    assert isinstance(placement, Partitioned)
    assert isinstance(model, Chain)
    on_disk = part.folder is not None if on_disk is None else on_disk
    return planner_of(placement, part, model, run.model.aggregation, on_disk=on_disk)


def not_in_parts(run: Run, ranks: int, facts: GraphFacts | None = None) -> str:
    """Why the layers of a run cannot be computed in parts, with the way out; empty if they can."""
    if hasattr(run.model, "distributed"):
        return f"{run.model.name} is a model of your own: use --message-memory, or one of gcn, sage, gin, gat"
    if getattr(run.model, "norm", "") == "batch":
        return "a batch norm needs all rows at once: use --norm layer"
    if getattr(run.model, "typed", False) or (facts is not None and facts.types):
        return "typed graphs are trained in memory: use more machines, or the features of one type"
    tables = getattr(run.train.task, "predicts", ())
    if (facts is not None and facts.pairs) or any(table.of == "pairs" for table in tables):
        return "link prediction needs all rows at once: use more machines"
    if run.train.checkpoint_layers:
        return "parts are computed again in any case: leave out --checkpoint-layers"
    if run.train.device != HOST:
        return "on a GPU use --features-on host or --checkpoint-layers; layers in parts are for --device cpu"
    return why_not(placement_of(run), ranks, sparse=facts is not None and facts.sparse)


def surely_fits(run: Run, part: Part, free: int) -> bool:
    """Whether a run takes so little that it needs no plan: several times the rows of its layers are less."""
    numbers = 2 * part.manifest.graph.features + 10 * run.model.layers * run.model.hidden
    item: int = getattr(torch, run.train.dtype).itemsize
    return len(part.ids) * numbers * item + 100 * int(part.indptr[-1]) < free


def rows_alone(run: Run, part: Part, transport: Transport) -> Shard:
    """A rank's rows and edges for a user's module; refuse strategies that need their own view."""
    placement = replace(placement_of(run), device=devices_of(run, transport.rank)[0])
    if not isinstance(placement, AllLayers):
        raise InputError(f"strategy {run.strategy.name} splits a step into pieces, and your own loop cannot do that")
    return placement.rows_alone(part, transport)


def placement_of(run: Run) -> Placement:
    """The strategy's placement with all settings of the run except the device."""
    config, spec, layout = run.train, run.model, run.strategy.layout()
    return replace(
        layout,
        inductive=config.inductive,
        precompute=config.precompute,
        encodes=spec.encodes,
        hops=layout.hops or (() if config.all_rows else spec.hops),
        order=config.order if layout.order == "auto" else layout.order,
        host_rows=layout.host_rows or config.features_on == "host",
        seed=config.seed,
        epochs=config.planned,
        dtype=rows_dtype(config.precision, getattr(torch, config.dtype)),
    )


def require_device(run: Run) -> None:
    """Refuse a run whose device or tracker this machine lacks, before anything is written."""
    for tracker in (run.train.log, *(["tensorboard"] if run.train.tensorboard else [])):
        require_tracker(tracker)
    of_ranks = [run.strategy.devices_of(rank) for rank in range(max(1, run.parts))]
    for name in dict.fromkeys(name for names in of_ranks for name in names or (run.train.device,)):
        require(name)


def devices_of(run: Run, rank: int) -> list[torch.device]:
    """The devices that a rank uses; the device of its rows comes first."""
    return [device_of(name) for name in run.strategy.devices_of(rank) or (run.train.device,)]
