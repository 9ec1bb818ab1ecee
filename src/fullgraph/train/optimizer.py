"""Torch's optimizers and a user's own, as values of a run, and their state as named tensors.

Torch's optimizers are used without importing torch's compiler, whose import takes longer than torch itself.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from fullgraph.axes import OPTIMIZERS
from fullgraph.described import described
from fullgraph.errors import InputError
from fullgraph.own_code import DEFINITION, own_code, unfit
from fullgraph.train.config import TrainConfig
from fullgraph.values import Range, Value

# torch wraps these methods to exclude them from compilation; the wrapper imports the compiler.
WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
GIVEN = ("params", "lr", "weight_decay")  # arguments that the run sets
PLAIN = (bool, int, float, str)
Beta = Annotated[float, Range(0, 1, below=True)]


def uncompiled(kind: type[Optimizer]) -> type[Optimizer]:
    """Return the same optimizer without torch's compiler wrappers. Nothing in a rank is compiled."""
    bare: dict[str, Any] = {
        name: inspect.unwrap(getattr(Optimizer, name))
        for name in WRAPPED
        if getattr(kind, name) is getattr(Optimizer, name)
    }
    if kind.__module__.startswith("torch."):
        bare["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**bare, DEFINITION: kind})


@dataclass(frozen=True, kw_only=True)
class Described(Value):
    """An optimizer and its constructor's arguments; the run sets the weights (or groups), `lr` and `weight_decay`."""

    kind: ClassVar[type[Optimizer]]
    slots: ClassVar[int] = 2  # tensors that it keeps per weight

    def build(self, weights: list[Any], *, lr: float, weight_decay: float) -> Optimizer:
        takes = inspect.signature(self.kind).parameters
        if "weight_decay" not in takes and (weight_decay or any(isinstance(group, dict) for group in weights)):
            raise InputError(f"optimizer {OPTIMIZERS.label(self)} takes no weight_decay; leave out --weight-decay and "
                             "--embedding-weight-decay")  # fmt: skip
        given = {name: value for name, value in {"lr": lr, "weight_decay": weight_decay}.items() if name in takes}
        given |= {one.name: getattr(self, one.name) for one in fields(self)}
        with own_code(self.kind, fix=f"optimizer {OPTIMIZERS.label(self)} cannot be made; change its options"):
            return uncompiled(self.kind)(weights, **given)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Adam(Described):
    """Adam (Kingma and Ba, arXiv:1412.6980)."""

    kind: ClassVar[type[Optimizer]] = torch.optim.Adam
    betas: tuple[Beta, ...] = (0.9, 0.999)
    eps: Annotated[float, Range(0, 1)] = 1e-8


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101)."""

    kind: ClassVar[type[Optimizer]] = torch.optim.AdamW


@dataclass(frozen=True, kw_only=True)
class SGD(Described):
    """Gradient descent with momentum."""

    kind: ClassVar[type[Optimizer]] = torch.optim.SGD
    slots: ClassVar[int] = 1
    momentum: Beta = 0.9
    nesterov: bool = False


@cache
def as_optimizer(kind: type) -> type:
    """Return the values that describe an optimizer's class; return any other class unchanged."""
    if not issubclass(kind, Optimizer):
        return kind
    needed = [p for p in inspect.signature(kind.step).parameters.values() if p.default is p.empty and p.name != "self"]
    if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in needed):
        raise InputError(
            f"optimizer {kind.__name__} runs the model several times per step, which ranks do not; use another"
        )
    return described(kind, Described, "kind", _field, GIVEN)


def _field(parameter: inspect.Parameter) -> tuple[Any, Any] | None:
    """Return an argument's type and default; None if no file can hold it, so that it keeps its default."""
    default = parameter.default
    if default is parameter.empty:
        return int | float | str, field()
    if default is None:
        return (bool if "bool" in str(parameter.annotation) else int | float) | None, field(default=None)
    if isinstance(default, tuple) and all(isinstance(item, int | float) for item in default):
        return tuple[float, ...], field(default=default)
    if isinstance(default, PLAIN):
        return float if isinstance(default, float) else type(default), field(default=default)
    return None


# --- the state of an optimizer, as a checkpoint holds it

READ: dict[str, Callable[[Tensor], Any]] = {
    "": lambda value: value,
    "bool": lambda value: bool(value),
    "int": lambda value: int(value),
    "float": lambda value: float(value),
    "none": lambda value: None,
}


def state_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the state of weights ("0.exp_avg") and of groups of weights ("group0.k#int"), numbers included."""
    with own_code(optimizer):
        state = optimizer.state_dict()
        kept = [(index, slot, value) for index, slots in state["state"].items() for slot, value in slots.items()]
    tensors: dict[str, Tensor] = {}
    for index, slot, value in kept:
        name, tensor = _named(f"{index}.{slot}", value)
        if tensor is None:
            problem = f"keeps {slot!r} as a {type(value).__name__}, which a checkpoint cannot hold"
            label = f"optimizer {type(optimizer).__name__}"
            raise unfit(optimizer, f"{problem}; keep tensors and numbers, or --checkpoint-every 0", label)
        tensors[name] = tensor
    for number, group in enumerate(state["param_groups"]):
        for key, value in group.items():
            name, tensor = _named(f"group{number}.{key}", value)
            if key not in GIVEN and tensor is not None:
                tensors[name] = tensor
    return tensors


def _named(name: str, value: Any) -> tuple[str, Tensor | None]:
    if isinstance(value, Tensor):
        return name, value
    if value is None:
        return f"{name}#none", torch.zeros(0)
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64}
    kind = kinds.get(type(value))
    return (name, None) if kind is None else (f"{name}#{type(value).__name__}", torch.tensor(value, dtype=kind))


def load_state(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors of `state_tensors` into an optimizer."""
    state = optimizer.state_dict()
    for name, tensor in tensors.items():
        owner, slot = name.split(".", 1)
        slot, _, kind = slot.partition("#")
        slots_of = state["param_groups"][int(owner[5:])] if owner.startswith("group") else None
        slots_of = state["state"].setdefault(int(owner), {}) if slots_of is None else slots_of
        slots_of[slot] = READ[kind](tensor)
    optimizer.load_state_dict(state)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for index, slots in state["state"].items():
        kept = optimizer.state[weights[index]]
        for slot, value in slots.items():
            if isinstance(value, Tensor) and kept[slot].dtype != value.dtype:  # torch casts to the weight's type
                scalar = value.dim() == 0 and value.dtype == torch.float32  # ASGD keeps such scalars
                if type(optimizer).__module__.startswith("torch.") and not scalar:
                    raise ValueError(f"{slot} is of type {value.dtype}, which {type(optimizer).__name__} never keeps")
                kept[slot] = value.to(kept[slot].device)


BY_NUMBER = (
    "Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip


def works_by_number(optimizer: Optimizer) -> bool:
    """Whether each number of a weight is updated only from its own gradient; False for a user's optimizer."""
    kinds = [kind for kind in type(optimizer).__mro__ if not kind.__module__.startswith("fullgraph.")]
    return kinds[0].__module__.startswith("torch.optim.") and kinds[0].__name__ in BY_NUMBER


def learning_rate(config: TrainConfig, before: int) -> float:
    """constant: lr.  cosine: lr (1 + cos(pi t/T)) / 2.  step: lr, divided by ten after each third of the run.

    t = before: the number of finished epochs. Epochs after the planned T keep the last rate.
    """
    done = min(before, config.planned - 1) / config.planned
    if config.lr_schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    if config.lr_schedule == "step":
        return config.lr * 0.1 ** int(3 * done)
    return config.lr
