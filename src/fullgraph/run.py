"""A run as a value, how it is written and read back, and the one function that makes a rank's trainer of it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from fullgraph.axes import MODELS, STRATEGIES
from fullgraph.data.splits import Drawn
from fullgraph.device import device_of, require
from fullgraph.errors import InputError, one_line
from fullgraph.exchange import Wires
from fullgraph.nn import AnyModel, Chain, GraphSAGE, check_spec
from fullgraph.own_code import own_code, told, unfit
from fullgraph.partition import AnyPartitioner, GraphFacts, Metis, Part
from fullgraph.placement import AllLayers, Placement, Shard
from fullgraph.recipes import Strategy, check_strategy, vanilla, wires_of
from fullgraph.reference import checksum_of, files_in, packed, reference_to
from fullgraph.report import Meter
from fullgraph.storage import read_document, record_of, write_document
from fullgraph.tasks import task_for
from fullgraph.train.config import FILE, FIX, TrainConfig
from fullgraph.train.precision import allow_tf32, rows_dtype
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Counting, Transport
from fullgraph.values import OneOf, Range, Value, flat, tree_of

SCHEMA = 3  # of config.json; 2 dropped input features without saying so, 1 had none of its own


@dataclass(frozen=True, kw_only=True)
class Run(Value):
    """Everything that decides a run's result, and which files are its own."""

    id: str = ""  # of this run: its checkpoints and its model carry it
    graph: str = "demo"
    parts: Annotated[int, Range(0, 65535)] = 1
    shards: str = ""  # folder of the parts; empty: beside this file
    shards_checksum: Annotated[int, Range(0, 2**32 - 1)] = 0  # of their manifest
    partitioner: AnyPartitioner | None = Metis()  # None: the graph was cut before
    features: Annotated[str, OneOf("none", "row", "standard")] = "none"
    split: Annotated[int, Range(0, 10**6)] | Annotated[str, Drawn()] = 0  # one of the graph's, or shares to draw
    model: AnyModel = GraphSAGE()
    strategy: Annotated[Strategy, STRATEGIES] = vanilla()
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def wires(self) -> Wires:
        """What the strategy's channels do in a run of so many epochs and layers."""
        return wires_of(self.strategy, epochs=self.train.planned, layers=self.model.graph_layers)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strategy(self.strategy)
        check_spec(self.model)

    @property
    def column(self) -> int:
        """Which of the splits in the shards is the run's; one that was drawn is the only one."""
        return 0 if isinstance(self.split, str) else self.split

    def shards_in(self, folder: Path) -> Path:
        """Where the parts of the run in `folder` are."""
        return Path(self.shards) if self.shards else folder / "shards"

    def on_shards(self, shards: str, checksum: int) -> "Run":
        """The same model on another graph that no one trains on: exact, by rows, all of them, as they come."""
        train = replace(self.train, inductive=False, all_rows=True, order="given")
        return replace(self, shards=shards, shards_checksum=checksum, split=0, strategy=vanilla(), train=train)

    def write(self, folder: Path) -> None:
        """Names and fields of every value, and the checksums of a user's own files among the names."""
        tree = tree_of(self)
        files = {path: checksum_of(path) for path in sorted(_files_in(tree))}
        write_document(folder / FILE, {"schema": SCHEMA, **tree, "files": files})

    @classmethod
    def read(cls, folder: Path, model: Any = None) -> "Run":
        """The run of a folder. A user's own files that it names are run, if they are what they were when it began.

        model: its class, function or module, where that is in no file.
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
        """The run that a config.json holds."""
        tree = read_document(path, fix=FIX)
        schema, files = tree.pop("schema", 1), tree.pop("files", {})
        if schema != SCHEMA:
            known = f"this version reads schema {SCHEMA}; start a new run"
            raise InputError(f"{path} is of a run of schema {one_line(schema, 20)}, {known}")
        for file in _files_in(tree):
            if not isinstance(files, dict) or files.get(file) != checksum_of(file):
                raise InputError(
                    f"{file} is not what it was when the run in {path.parent} began; put that back, or start anew"
                )
        return record_of(cls, tree, str(path), FIX)

    def facts(self) -> dict[str, object]:
        """All that decides its result, by name: every field, and the checksums of the user's own files."""
        tree, found = tree_of(self), dict[str, object]()
        files = {path: Path(path).name for path in sorted(_files_in(tree))}  # hosts may have them in other folders
        for name, value in flat(tree).items():
            path = value.rpartition(":")[0] if isinstance(value, str) else ""
            found[name] = value.replace(path, files[path], 1) if path in files else value
        return found | {f"the content of {name}": checksum_of(path) for path, name in files.items()}

    def packed(self) -> str:
        """The classes of no file that the run names, for its ranks."""
        return packed(tree_of(self))


def _files_in(tree: dict[str, Any]) -> set[str]:
    """The user's own files that a run names, but for the one that made its graph, which is cut already."""
    return files_in({name: value for name, value in tree.items() if name != "graph"})


def build_trainer(run: Run, part: Part, transport: Transport) -> Trainer:
    """All that a rank trains with: the one place where a run's values become objects."""
    config, spec, facts = run.train, run.model, part.manifest.graph
    allow_tf32(config.precision)
    device = devices_of(run, transport.rank)[0]
    meter = Meter(device, detail=config.report or config.trace)
    probe = meter if meter.detail else None
    shard = build_shard(run, part, Counting(transport, meter.sent, meter.waiting, probe))
    own = model = build_model(run, facts).to(device)
    if hasattr(spec, "distributed"):  # a module of the user's, which reads the edges itself
        model = spec.distributed(
            model, shard, run.strategy, epochs=config.planned, seed=config.seed, check=config.check,
            message_memory=config.message_memory,
        )  # fmt: skip
        own, shard = model.module, model.shard
    task = task_for(config.task, facts, cut=True).build(
        facts, metric=config.metric, loss=config.loss, seed=config.seed, part=part, shard=shard, model=own
    )
    shard = task.placed(shard)
    return Trainer(model, shard, task, config, meter)


def build_model(run: Run, facts: GraphFacts) -> nn.Module:
    """The model, as wide as the graph and the task ask for, with what the task trains beside it."""
    task, seed, dtype = task_for(run.train.task, facts, cut=True), run.train.seed, getattr(torch, run.train.dtype)
    spec, width = run.model, task.out_width(facts)
    sized = {"facts": facts} if hasattr(spec, "distributed") else {}  # a module of the user's may have lazy layers
    with own_code(spec):
        model: nn.Module = spec.build(facts.features, width, seed=seed, dtype=dtype, **sized)
    if not isinstance(model, nn.Module if sized else Chain):
        raise unfit(spec, f"built {told(model)}; `build` has to return a fullgraph.nn.Chain")
    task.equip(model, seed=seed, dtype=dtype)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise unfit(spec, "has no weights to train: give it parameters, and leave some of them trainable")
    return model


def build_shard(run: Run, part: Part, transport: Transport, aggregation: str = "") -> Shard:
    """A rank's share of the work, placed as the strategy says; its aggregation is the model's, unless it is given."""
    if hasattr(run.model, "distributed") and not aggregation:
        return rows_alone(run, part, transport)
    placement = replace(placement_of(run), device=devices_of(run, transport.rank)[0])
    return placement.place(part, transport, run.wires, aggregation or run.model.aggregation)


def rows_alone(run: Run, part: Part, transport: Transport) -> Shard:
    """A rank's rows and edges, for a module of the user's; strategies that need a view of their own are refused."""
    placement = replace(placement_of(run), device=devices_of(run, transport.rank)[0])
    if not isinstance(placement, AllLayers):
        raise InputError(f"strategy {run.strategy.name} runs a step in pieces, which a loop of one's own does not")
    return placement.rows_alone(part, transport)


def placement_of(run: Run) -> Placement:
    """The strategy's placement, with all that the run has to say to it but the device."""
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
    """Refuse a run whose device this machine lacks, before anything is written."""
    for name in run.strategy.devices_of(0) or (run.train.device,):
        require(name)


def devices_of(run: Run, rank: int) -> list[torch.device]:
    """Those that a rank uses, the one of its rows first."""
    return [device_of(name) for name in run.strategy.devices_of(rank) or (run.train.device,)]
