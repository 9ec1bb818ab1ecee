"""A run as a tree of frozen values; unknown keys are errors, and the resolved tree is in the run's folder."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fullgraph.errors import InputError
from fullgraph.storage import read_record, write_document
from fullgraph.values import OneOf, Range, Value

OPTIMIZERS = ("adam", "adamw", "sgd")
LR_SCHEDULES = ("constant", "cosine", "step")
DTYPES = ("float32", "float64")
FILE = "config.json"

Count = Annotated[int, Range(0, 10**9)]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Value):
    """The loop: how long, how fast, how it is scored, and what happens when something goes wrong."""

    epochs: Annotated[int, Range(1, 10**9)] = 200
    optimizer: Annotated[str, OneOf(*OPTIMIZERS)] = "adam"
    lr: Annotated[float, Range(0, 1e6, above=True)] = 0.01
    weight_decay: Annotated[float, Range(0, 1e6)] = 0.0
    lr_schedule: Annotated[str, OneOf(*LR_SCHEDULES)] = "constant"
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    eval_every: Annotated[int, Range(1, 10**9)] = 10
    patience: Count = 0  # evaluations without a better validation score before stopping; 0: never
    checkpoint_every: Count = 10  # epochs; 0: never
    on_signal: Annotated[str, OneOf("checkpoint", "stop")] = "checkpoint"  # what SIGTERM and SIGINT do first
    max_restarts: Annotated[int, Range(0, 10**6)] = 0  # resume by itself so often after a rank died
    metric: Annotated[str, OneOf("auto", "accuracy", "micro_f1", "roc_auc")] = "auto"
    inductive: bool = False
    precompute: bool = True
    all_rows: bool = False  # layers compute rows, too, that the loss does not read
    order: Annotated[str, OneOf("auto", "given")] = "auto"  # of a rank's rows; auto: on a GPU by clusters
    dtype: Annotated[str, OneOf(*DTYPES)] = "float32"
    precision: Annotated[str, OneOf("fp32", "tf32", "bf16")] = "fp32"  # of matrix products; bf16: of rows and wires too
    features_on: Annotated[str, OneOf("device", "host")] = "device"  # where dense input rows are kept
    checkpoint_layers: bool = False  # keep the rows between layers alone, compute the rest again in the backward pass
    device: Annotated[str, OneOf("cpu", "cuda")] = "cpu"
    backend: Annotated[str, OneOf("gloo", "nccl")] = "gloo"
    timeout: Annotated[float, Range(1, 86400)] = 60.0  # seconds in which a silent rank, host or link is given up
    tensorboard: bool = False
    threads: Annotated[int, Range(0, 4096)] = 0  # per rank; 0: this machine's cores over its ranks

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision != "fp32" and self.dtype != "float32":
            raise InputError(f"precision {self.precision} is for float32; leave out --dtype or --precision")
        if self.features_on == "host" and not self.precompute:
            raise InputError(
                "--features-on host brings input rows to the first layer's weights; leave out --no-precompute"
            )
        if self.backend == "nccl" and self.device != "cuda":
            raise InputError("backend nccl needs --device cuda; use gloo on a CPU")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Value):
    """Everything that decides a run's result, and which files are its own."""

    id: str = ""  # of this run: its checkpoints and its model carry it
    graph: str = "demo"
    parts: Annotated[int, Range(0, 65535)] = 1
    shards: str = ""  # folder of the parts; empty: beside this file
    shards_checksum: Annotated[int, Range(0, 2**32 - 1)] = 0  # of their manifest
    partitioner: str = "metis"
    partitioner_options: dict[str, Any] = field(default_factory=dict)
    features: Annotated[str, OneOf("none", "row", "standard")] = "none"
    split: Annotated[int, Range(0, 10**6)] = 0
    model: dict[str, Any] = field(default_factory=dict)  # name and its fields
    strategy: dict[str, Any] = field(default_factory=dict)  # name and its options
    train: TrainConfig = field(default_factory=TrainConfig)

    def shards_in(self, folder: Path) -> Path:
        """Where the parts of the run in `folder` are."""
        return Path(self.shards) if self.shards else folder / "shards"

    def write(self, folder: Path) -> None:
        write_document(folder / FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "RunConfig":
        return read_record(cls, folder / FILE, fix="name a folder that `fullgraph train` wrote")
