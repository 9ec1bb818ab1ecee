"""Weights in float32 for a model that computes with fewer bits.

With `bf16` a model's parameters, rows and wires are bfloat16. The optimizer updates float32 masters of the parameters:
gradients are cast to float32, summed over ranks and applied to the masters; after a step the masters are cast back.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fullgraph.train.spread import SpreadRows
from fullgraph.train.sync import holds_own_rows


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
        self.tables: SpreadRows | None = getattr(model, "tables", None) or None
        self._names, self._own = [name for name, _ in model.named_parameters()], list(model.parameters())
        self.masters = [_master(p) if p.dtype != dtype else p for p in self._own]
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
        """Return the model's state, with the masters instead of the model's parameters.

        Weights with a row per node contain only this rank's rows; `whole` adds the rows of all ranks.
        """
        state: dict[str, Tensor] = self._holder().state_dict()
        for (name, _), master in zip(self.model.named_parameters(), self.masters, strict=True):
            state[name] = master.detach()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._holder().load_state_dict(state)
        for (name, _), master in zip(self.model.named_parameters(), self.masters, strict=True):
            master.copy_(state[name])

    def whole(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Complete a state with all ranks' rows of weights with a row per node; every rank calls this."""
        return state if self.tables is None else self.tables.whole(state)

    def own_rows(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Reduce a whole state to this rank's rows."""
        return state if self.tables is None else self.tables.own(state)

    def whole_slots(self, slots: dict[str, Tensor]) -> dict[str, Tensor]:
        """Complete the state of an optimizer, named by the number of each weight ("0.exp_avg")."""
        return {
            name: self.tables.gathered(self._names[int(name.partition(".")[0])], x) if self._has_rows(name, x) else x  # type: ignore[union-attr]
            for name, x in slots.items()
        }

    def own_slots(self, slots: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: self.tables.rows_of(self._names[int(name.partition(".")[0])], x) if self._has_rows(name, x) else x  # type: ignore[union-attr]
            for name, x in slots.items()
        }

    def _has_rows(self, name: str, x: Tensor) -> bool:
        """Whether an optimizer keeps one row per node under this name."""
        number = name.partition(".")[0]
        return number.isdigit() and holds_own_rows(self.masters[int(number)]) and x.dim() > 0

    def _holder(self) -> nn.Module:
        """The module whose state has this rank's rows; a user's model returns the rows of all ranks itself."""
        own: nn.Module = getattr(self.model, "module", self.model)
        return self.model if self.tables is None else own


def _master(parameter: nn.Parameter) -> nn.Parameter:
    master = nn.Parameter(parameter.detach().clone())
    if holds_own_rows(parameter):
        master.holds_own_rows = True  # type: ignore[attr-defined]
    return master
