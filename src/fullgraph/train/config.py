"""The training configuration of a run, as a frozen value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fullgraph.axes import CALLBACKS, LOSSES, METRICS, OPTIMIZERS, TASKS
from fullgraph.errors import InputError
from fullgraph.storage import read_document
from fullgraph.values import Bytes, OneOf, Range, Value

LR_SCHEDULES = ("constant", "cosine", "step")
DTYPES = ("float32", "float64")
FILE = "config.json"  # in a run's folder
FIX = "name a folder that `fullgraph train` wrote"

Count = Annotated[int, Range(0, 10**9)]
Auto = Annotated[str, OneOf("auto")]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Value):
    """The training loop: its length, optimizer, scores, and reaction to failures."""

    epochs: Annotated[int, Range(1, 10**9)] = 200
    schedule_epochs: Count = 0  # length of the schedules of learning rate and strategy; 0: epochs
    task: Annotated[Any, TASKS] | Auto = "auto"  # auto: chosen by the labels
    loss: Annotated[Any, LOSSES] | Auto = "auto"
    optimizer: Annotated[Any, OPTIMIZERS] = "adam"
    lr: Annotated[float, Range(0, 1e6, above=True)] = 0.01
    weight_decay: Annotated[float, Range(0, 1e6)] = 0.0
    lr_schedule: Annotated[str, OneOf(*LR_SCHEDULES)] = "constant"
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    eval_every: Annotated[int, Range(1, 10**9)] = 10
    patience: Count = 0  # stop after this many evaluations without a better validation score; 0: never
    checkpoint_every: Count = 10  # epochs; 0: never
    on_signal: Annotated[str, OneOf("checkpoint", "stop")] = "checkpoint"  # first reaction to SIGTERM and SIGINT
    max_restarts: Annotated[int, Range(0, 10**6)] = 0  # restart at most this many times after a rank dies
    metric: Annotated[Any, METRICS] | Auto = "auto"
    callbacks: tuple[Annotated[Any, CALLBACKS], ...] = ()  # called after every epoch, on rank 0
    check: bool = True  # check that operations of a user's own model do not mix rows of one rank alone
    inductive: bool = False
    precompute: bool = True
    all_rows: bool = False  # compute all rows in every layer, including rows that the loss does not need
    order: Annotated[str, OneOf("auto", "given")] = "auto"  # of a rank's rows; auto: by clusters in large graphs
    dtype: Annotated[str, OneOf(*DTYPES)] = "float32"
    precision: Annotated[str, OneOf("fp32", "tf32", "bf16")] = "fp32"  # of matrix products; bf16: also rows and wires
    features_on: Annotated[str, OneOf("device", "host")] = "device"  # memory that keeps dense input rows
    message_memory: Annotated[str, Bytes(("auto",))] = "auto"  # of the messages of one layer of a user's own model
    checkpoint_layers: bool = False  # keep only the rows between layers; recompute the rest in the backward pass
    device: Annotated[str, OneOf("cpu", "cuda")] = "cpu"
    backend: Annotated[str, OneOf("gloo", "nccl")] = "gloo"
    timeout: Annotated[float, Range(1, 86400)] = 60.0  # seconds after which a silent rank, host or link is given up
    tensorboard: bool = False
    report: bool = True  # measure where time goes in an epoch, and write report.html
    trace: bool = False  # write trace.json for a few epochs
    trace_epochs: Annotated[int, Range(1, 1000)] = 3  # number of traced epochs
    trace_skip: Count = 1  # epochs before the traced ones; the first epoch compiles kernels
    trace_torch: bool = False  # also write torch's profile of the traced epochs
    threads: Annotated[int, Range(0, 4096)] = 0  # per rank; 0: this machine's cores divided by its ranks

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
        if self.backend == "nccl" and self.device != "cuda":
            raise InputError("backend nccl needs --device cuda; use gloo on a CPU")

    @property
    def planned(self) -> int:
        """Epochs that schedules are laid out for. A run continued beyond its end keeps its first schedule."""
        return self.schedule_epochs or self.epochs


def device_in(file: Path) -> str:
    """Return the device named in a config.json. This runs first; problems in the file are reported later."""
    loop = read_document(file, fix=FIX).get("train")
    return "cuda" if isinstance(loop, dict) and loop.get("device") == "cuda" else "cpu"
