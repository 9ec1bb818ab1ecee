"""Weights in float32 for a model that computes with fewer bits.

With `bf16` a model's parameters, rows and wires are bfloat16. The optimizer updates float32 masters of the parameters:
gradients are cast to float32, summed over ranks and applied to the masters; after a step the masters are cast back.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def rows_dtype(precision: str, dtype: torch.dtype) -> torch.dtype:
    """Return the type of rows, activations and wires."""
    return torch.bfloat16 if precision == "bf16" else dtype


def allow_tf32(precision: str) -> None:
    """Let matrix products round float32 operands to 10 bits if the precision is `tf32`."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


class Weights:
    """The parameters that the optimizer updates: the model's own, or float32 masters of 16-bit parameters."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        """`dtype`: the type in which the model computes from now on."""
        self.model = model
        self._own = list(model.parameters())
        self.masters = [nn.Parameter(p.detach().clone()) if p.dtype != dtype else p for p in self._own]
        for own in self._own:
            own.data = own.data.to(dtype)

    @property
    def in_full(self) -> bool:
        """Whether the model computes with the parameters that the optimizer updates."""
        return all(master is own for master, own in zip(self.masters, self._own, strict=True))

    def gather(self) -> Iterable[nn.Parameter]:
        """Return the parameters to update, each with the gradient of its model parameter."""
        for master, own in zip(self.masters, self._own, strict=True):
            if master is not own:
                master.grad = None if own.grad is None else own.grad.to(master.dtype)
                own.grad = None
        return self.masters

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the updated masters into the model."""
        for master, own in zip(self.masters, self._own, strict=True):
            if master is not own:
                own.copy_(master)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the model's state with the masters in place of the model's own parameters."""
        state: dict[str, Tensor] = self.model.state_dict()
        for (name, _), master in zip(self.model.named_parameters(), self.masters, strict=True):
            state[name] = master.detach()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.model.load_state_dict(state)
        for (name, _), master in zip(self.model.named_parameters(), self.masters, strict=True):
            master.copy_(state[name])
