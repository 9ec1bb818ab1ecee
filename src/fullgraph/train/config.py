"""The training configuration of a run, as a frozen value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fullgraph.axes import CALLBACKS, LOSSES, METRICS, OPTIMIZERS, TASKS
from fullgraph.device import HOST, NCCL, DeviceName, OneDevice
from fullgraph.errors import InputError
from fullgraph.reference import libraries_in
from fullgraph.storage import read_document
from fullgraph.values import Bytes, Help, OneOf, Range, Value

LR_SCHEDULES = ("constant", "cosine", "step")
DTYPES = ("float32", "float64")
FILE = "config.json"  # in a run's folder
FIX = "name a folder that `fullgraph train` wrote"

Count = Annotated[int, Range(0, 10**9)]
Auto = Annotated[str, OneOf("auto")]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Value):
    """The training loop: its length, optimizer, scores, and reaction to failures.

    Every field but `callbacks` is an option of `fullgraph train` (commands/shared.py).
    """

    epochs: Annotated[int, Range(1, 10**9), Help("passes over the whole graph")] = 200
    schedule_epochs: Annotated[
        Count,
        Help("number of epochs in the schedules of learning rate and strategy", "the run's first --epochs"),
    ] = 0
    task: Annotated[Annotated[Any, TASKS] | Auto, Help("the prediction to learn; auto depends on the labels")] = "auto"
    loss: Annotated[Annotated[Any, LOSSES] | Auto, Help("auto depends on the task")] = "auto"
    optimizer: Annotated[Any, OPTIMIZERS] = "adam"
    lr: Annotated[float, Range(0, 1e6, above=True), Help("learning rate")] = 0.01
    weight_decay: Annotated[float, Range(0, 1e6), Help("penalty on the squares of the weights")] = 0.0
    embedding_weight_decay: Annotated[
        Annotated[float, Range(0, 1e6)] | None, Help("of learned rows of nodes", "that of --weight-decay")
    ] = None
    lr_schedule: Annotated[str, OneOf(*LR_SCHEDULES), Help("learning rate over the epochs")] = "constant"
    seed: Annotated[int, Range(0, 2**63 - 1), Help("seed of all random numbers")] = 0
    eval_every: Annotated[int, Range(1, 10**9), Help("epochs from one evaluation to the next")] = 10
    patience: Annotated[Count, Help("stop after this many evaluations without a better validation score; 0: never")] = 0
    checkpoint_every: Annotated[Count, Help("epochs from one checkpoint to the next; 0: never")] = 10
    on_signal: Annotated[str, OneOf("checkpoint", "stop"), Help("first reaction to SIGTERM and SIGINT")] = "checkpoint"
    max_restarts: Annotated[int, Range(0, 10**6), Help("restart at most this many times after a rank dies")] = 0
    metric: Annotated[Annotated[Any, METRICS] | Auto, Help("auto depends on the task")] = "auto"
    callbacks: tuple[Annotated[Any, CALLBACKS], ...] = ()  # called after every epoch, on rank 0
    check: Annotated[bool, Help("check that operations of a model of your own do not mix rows of one rank alone")] = (
        True
    )
    inductive: Annotated[bool, Help("train on the subgraph of training nodes")] = False
    precompute: Annotated[bool, Help("aggregate dense input features once")] = True
    all_rows: Annotated[bool, Help("also compute rows that the loss does not read")] = False
    order: Annotated[str, OneOf("auto", "given"), Help("order of a rank's rows; auto clusters large graphs")] = "auto"
    dtype: Annotated[str, OneOf(*DTYPES), Help("number format of rows and weights")] = "float32"
    precision: Annotated[
        str, OneOf("fp32", "tf32", "bf16"), Help("format of matrix products; bf16 also of rows and messages")
    ] = "fp32"
    features_on: Annotated[
        str, OneOf("device", "host"), Help("where dense input rows stay; from the host they are streamed to a GPU")
    ] = "device"
    message_memory: Annotated[
        str,
        Bytes(("auto",)),
        Help(
            "of a layer's messages in a model of your own; beyond it, rows come in chunks; auto: a quarter of the free"
        ),
    ] = "auto"
    host_memory: Annotated[
        str,
        Bytes(("auto",)),
        Help("of a rank; a run that needs more computes its layers in parts, with rows on disk; auto: what is free"),
    ] = "auto"
    scratch: Annotated[str, Help("folder for rows on disk", "the run's folder")] = ""
    checkpoint_layers: Annotated[
        bool, Help("keep only the rows between layers; compute the rest again in the backward pass")
    ] = False
    device: Annotated[DeviceName, Help("device of every rank's rows; with a number, that device")] = HOST
    backend: Annotated[str, OneOf("gloo", "nccl"), Help("library that sends messages between ranks")] = "gloo"
    timeout: Annotated[float, Range(1, 86400), Help("seconds until a silent rank, host or link counts as lost")] = 60.0
    log: Annotated[str, OneOf("none", "tensorboard", "wandb", "mlflow"), Help("tell a tracker every number")] = "none"
    tensorboard: Annotated[bool, Help("the same as --log tensorboard, and beside another tracker")] = False
    report: Annotated[bool, Help("measure where the time of an epoch goes, and write report.html")] = True
    trace: Annotated[bool, Help("write trace.json, for Perfetto or chrome://tracing")] = False
    trace_epochs: Annotated[int, Range(1, 1000), Help("number of traced epochs")] = 3
    trace_skip: Annotated[Count, Help("epochs before the traced ones; the first epoch compiles kernels")] = 1
    trace_torch: Annotated[bool, Help("also write torch's profile of the traced epochs")] = False
    threads: Annotated[int, Range(0, 4096), Help("threads per rank; 0: this machine's cores divided by its ranks")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision != "fp32" and self.dtype != "float32":
            raise InputError(f"precision {self.precision} is for float32; leave out --dtype or --precision")
        if self.features_on == "host" and not self.precompute:
            raise InputError(
                "--features-on host sends input rows to the first layer's weights; leave out --no-precompute"
            )
        if self.trace_torch and not self.trace:
            raise InputError("--trace-torch needs --trace; give both")
        if self.backend == "nccl" and self.device.partition(":")[0] != NCCL:
            raise InputError(f"backend nccl needs --device {NCCL}; use gloo on a CPU")

    @property
    def planned(self) -> int:
        """The number of epochs that schedules are planned for. A continued run keeps its first schedule."""
        return self.schedule_epochs or self.epochs


def libraries_of(file: Path) -> list[str]:
    """Return large libraries that users' files named in a config.json import."""
    return libraries_in(read_document(file, fix=FIX))


def device_in(file: Path) -> str:
    """Return the device named in a config.json. This runs first; problems in the file are reported later."""
    loop = read_document(file, fix=FIX).get("train")
    name = loop.get("device") if isinstance(loop, dict) else None
    return name if isinstance(name, str) and OneDevice().problem(name) is None else HOST
