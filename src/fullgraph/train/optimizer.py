"""Torch's optimisers, without the import of torch's compiler: it takes longer than that of torch itself."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

# What torch wraps so that its compiler leaves the method alone; the wrapper imports the compiler to say so.
WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def uncompiled(kind: type[Optimizer]) -> Callable[..., Optimizer]:
    """The same optimiser with its methods bare. Nothing in a rank is compiled."""
    bare: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in WRAPPED}
    bare["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), bare)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": uncompiled(torch.optim.Adam),
    "adamw": uncompiled(torch.optim.AdamW),
    "sgd": partial(uncompiled(torch.optim.SGD), momentum=0.9),
}
