"""Check that buffers which a model updates itself, such as a running mean, are equal on every rank."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.own_model.rows.spaces import rows_of
from fullgraph.transport import Key, Transport, rank_table


class Buffers:
    """Compares a model's buffers over ranks whenever a forward pass has changed one.

    Batch norms are left out: their buffers are written from sums over all ranks.
    """

    def __init__(self, module: nn.Module, transport: Transport, tables: Collection[str] = ()) -> None:
        """tables: names of buffers with one row per node; each rank holds different rows."""
        self.transport, self._checks = transport, 0
        self._parts = [
            (name, part, {key for key in part._buffers if _full(name, key) in tables})
            for name, part in module.named_modules()
            if not isinstance(part, nn.modules.batchnorm._BatchNorm)
        ]
        self._seen = self._now()

    def _now(self) -> list[tuple[Tensor, int]]:
        return [
            (value, value._version)
            for _, part, tables in self._parts
            if part._buffers
            for key, value in part._buffers.items()
            if value is not None and key not in tables
        ]

    def _named(self) -> dict[str, Tensor]:
        return {
            _full(name, key): value
            for name, part, tables in self._parts
            for key, value in part._buffers.items()
            if value is not None and key not in tables
        }

    def check(self) -> None:
        """Raise if a buffer holds rows of one rank, or differs between ranks."""
        now, before = self._now(), self._seen
        self._seen = now
        if len(now) == len(before) and all(
            value is known and version == then and rows_of(value) is None
            for (value, version), (known, then) in zip(now, before, strict=True)
        ):
            return
        named = self._named()
        for name, value in named.items():
            if rows_of(value) is not None:
                raise InputError(
                    f"the buffer {name} holds rows of nodes, which a checkpoint would not keep for all ranks; "
                    "register it with a row for each of the graph's nodes, keep a mean or sum, or a plain attribute"
                )
        if self.transport.size > 1:
            self._compare(named)

    def _compare(self, buffers: dict[str, Tensor]) -> None:
        self._checks += 1
        for name in differing(buffers, self.transport, Key("buffers of the model", self._checks)):
            raise InputError(
                f"the buffer {name} has other values on one rank than on another after a forward pass; update it "
                "from a mean or sum over nodes (h.mean(0), fg.mean_over_nodes)"
            )


def _full(name: str, key: str) -> str:
    return f"{name}.{key}".lstrip(".")


@torch.no_grad()
def differing(tensors: Mapping[str, Tensor], transport: Transport, key: Key) -> list[str]:
    """The names of tensors that differ between ranks."""
    digests = torch.stack([_digest(value) for value in tensors.values()]) if tensors else torch.zeros(0, 2)
    each = rank_table(transport, key, digests)
    same = (each == each[0]) | (each.isnan() & each[0].isnan())
    return [name for name, equal in zip(tensors, same.all(2).all(0).tolist(), strict=True) if not equal]


def _digest(value: Tensor) -> Tensor:
    """Two numbers that differ if the values or their order differ."""
    flat = value.detach().flatten().double().cpu()
    return torch.stack([flat.sum(), (flat * torch.arange(1, len(flat) + 1, dtype=torch.float64)).sum()])
