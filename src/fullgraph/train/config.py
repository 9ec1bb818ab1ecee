"""How a run trains, as a frozen value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fullgraph.axes import CALLBACKS, LOSSES, METRICS, OPTIMIZERS, TASKS
from fullgraph.errors import InputError
from fullgraph.storage import read_document
from fullgraph.values import OneOf, Range, Value

LR_SCHEDULES = ("constant", "cosine", "step")
DTYPES = ("float32", "float64")
FILE = "config.json"  # of a run
FIX = "name a folder that `fullgraph train` wrote"

Count = Annotated[int, Range(0, 10**9)]
Auto = Annotated[str, OneOf("auto")]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Value):
    """The loop: how long, how fast, how it is scored, and what happens when something goes wrong."""

    epochs: Annotated[int, Range(1, 10**9)] = 200
    schedule_epochs: Count = 0  # that learning rates and strategies are laid out for; 0: all
    task: Annotated[Any, TASKS] | Auto = "auto"  # auto: what the labels are for
    loss: Annotated[Any, LOSSES] | Auto = "auto"
    optimizer: Annotated[Any, OPTIMIZERS] = "adam"
    lr: Annotated[float, Range(0, 1e6, above=True)] = 0.01
    weight_decay: Annotated[float, Range(0, 1e6)] = 0.0
    lr_schedule: Annotated[str, OneOf(*LR_SCHEDULES)] = "constant"
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    eval_every: Annotated[int, Range(1, 10**9)] = 10
    patience: Count = 0  # evaluations without a better validation score before stopping; 0: never
    checkpoint_every: Count = 10  # epochs; 0: never
    on_signal: Annotated[str, OneOf("checkpoint", "stop")] = "checkpoint"  # what SIGTERM and SIGINT do first
    max_restarts: Annotated[int, Range(0, 10**6)] = 0  # resume by itself so often after a rank died
    metric: Annotated[Any, METRICS] | Auto = "auto"
    callbacks: tuple[Annotated[Any, CALLBACKS], ...] = ()  # told of every epoch, on rank 0
    check: bool = True  # watch a user's own model for operations that mix rows of one rank alone
    inductive: bool = False
    precompute: bool = True
    all_rows: bool = False  # layers compute rows, too, that the loss does not read
    order: Annotated[str, OneOf("auto", "given")] = "auto"  # of a rank's rows; auto: by clusters where there are many
    dtype: Annotated[str, OneOf(*DTYPES)] = "float32"
    precision: Annotated[str, OneOf("fp32", "tf32", "bf16")] = "fp32"  # of matrix products; bf16: of rows and wires too
    features_on: Annotated[str, OneOf("device", "host")] = "device"  # where dense input rows are kept
    checkpoint_layers: bool = False  # keep the rows between layers alone, compute the rest again in the backward pass
    device: Annotated[str, OneOf("cpu", "cuda")] = "cpu"
    backend: Annotated[str, OneOf("gloo", "nccl")] = "gloo"
    timeout: Annotated[float, Range(1, 86400)] = 60.0  # seconds in which a silent rank, host or link is given up
    tensorboard: bool = False
    report: bool = True  # measure where epochs go, and write report.html
    trace: bool = False  # write trace.json, of a few epochs
    trace_epochs: Annotated[int, Range(1, 1000)] = 3  # how many
    trace_skip: Count = 1  # epochs before them; the first one compiles kernels
    trace_torch: bool = False  # torch's own profile of the same epochs too
    threads: Annotated[int, Range(0, 4096)] = 0  # per rank; 0: this machine's cores over its ranks

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision != "fp32" and self.dtype != "float32":
            raise InputError(f"precision {self.precision} is for float32; leave out --dtype or --precision")
        if self.features_on == "host" and not self.precompute:
            raise InputError(
                "--features-on host brings input rows to the first layer's weights; leave out --no-precompute"
            )
        if self.trace_torch and not self.trace:
            raise InputError("--trace-torch runs beside --trace; give both")
        if self.backend == "nccl" and self.device != "cuda":
            raise InputError("backend nccl needs --device cuda; use gloo on a CPU")

    @property
    def planned(self) -> int:
        """Epochs that schedules are laid out for. A run that is continued beyond its end keeps those it began with."""
        return self.schedule_epochs or self.epochs


def device_in(file: Path) -> str:
    """The device that a config.json names; it is read before all else, and what is wrong there is told later."""
    loop = read_document(file, fix=FIX).get("train")
    return "cuda" if isinstance(loop, dict) and loop.get("device") == "cuda" else "cpu"
