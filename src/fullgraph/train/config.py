"""A run as a tree of frozen values; unknown keys are errors, and the resolved tree is in the run's folder."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fullgraph.errors import InputError

OPTIMIZERS = ("adam", "adamw", "sgd")
LR_SCHEDULES = ("constant", "cosine", "step")
DTYPES = ("float32", "float64")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The loop: how long, how fast, how it is scored."""

    epochs: int = 200
    optimizer: str = "adam"
    lr: float = 0.01
    weight_decay: float = 0.0
    lr_schedule: str = "constant"
    seed: int = 0
    eval_every: int = 10
    patience: int = 0  # evaluations without a better validation score before stopping; 0: never
    checkpoint_every: int = 10  # epochs; 0: never
    metric: str = "auto"
    inductive: bool = False
    precompute: bool = True
    dtype: str = "float32"
    device: str = "cpu"
    backend: str = "gloo"
    timeout: float = 300.0  # seconds to wait for a message; a rank that died is noticed at once
    tensorboard: bool = False
    threads: int = 0  # per rank; 0: this machine's cores over its ranks

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, f"epochs={self.epochs}: at least 1")
        _require(self.lr > 0, f"lr={self.lr}: above 0")
        _require(self.weight_decay >= 0, f"weight_decay={self.weight_decay}: at least 0")
        _require(self.eval_every >= 1, f"eval_every={self.eval_every}: at least 1")
        _require(self.patience >= 0, f"patience={self.patience}: at least 0")
        _require(self.checkpoint_every >= 0, f"checkpoint_every={self.checkpoint_every}: at least 0")
        _require(self.threads >= 0, f"threads={self.threads}: at least 0")
        _require(self.timeout > 0, f"timeout={self.timeout}: above 0")
        _choice("lr_schedule", self.lr_schedule, LR_SCHEDULES)
        _choice("dtype", self.dtype, DTYPES)
        _choice("device", self.device, ("cpu", "cuda"))
        _choice("backend", self.backend, ("gloo", "nccl"))
        _choice("optimizer", self.optimizer, OPTIMIZERS)
        _require(self.backend == "gloo" or self.device == "cuda", "backend nccl needs --device cuda; use gloo on a CPU")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run's result."""

    graph: str = "demo"
    parts: int = 1
    shards: str = ""  # folder of the parts; empty: beside this file
    partitioner: str = "metis"
    partitioner_options: dict[str, Any] = field(default_factory=dict)
    features: str = "none"
    split: int = 0
    model: dict[str, Any] = field(default_factory=dict)  # name and its fields
    strategy: dict[str, Any] = field(default_factory=dict)  # name and its options
    train: TrainConfig = field(default_factory=TrainConfig)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, tree: dict[str, Any]) -> "RunConfig":
        tree = dict(tree)
        _known(cls, tree, "the run's config")
        train = tree.pop("train", {})
        _known(TrainConfig, train, "the config's train table")
        return cls(**tree, train=TrainConfig(**train))

    @classmethod
    def read(cls, folder: Path) -> "RunConfig":
        path = folder / "config.json"
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except (OSError, json.JSONDecodeError, TypeError) as error:
            raise InputError(
                f"{path}: not a run's config ({error}); name a folder that `fullgraph train` wrote"
            ) from error


def _known(kind: type, tree: dict[str, Any], where: str) -> None:
    names = [f.name for f in fields(kind)]
    unknown = [key for key in tree if key not in names]
    if unknown:
        raise InputError(f"{where} has unknown keys {', '.join(unknown)}; known: {', '.join(names)}")


def _require(good: bool, text: str) -> None:
    if not good:
        raise InputError(text)


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    _require(value in known, f"{name} {value!r} is unknown; known: {', '.join(known)}")
