"""MixGCN: ranks own rows for the update and columns for the aggregation; equal to one process (arXiv:2501.01951)."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.device import NCCL, OneDevice, is_accelerator
from fullgraph.errors import InputError
from fullgraph.partition import Banded, Contiguous
from fullgraph.placement import Mixture
from fullgraph.recipes.base import Strategy
from fullgraph.values import OneOf, Range


@dataclass(frozen=True, kw_only=True)
class MixGCN(Strategy):
    """Exact training without halos: every machine holds the whole structure, and ranks swap blocks of rows for columns.

    blocks: number of row ranges; one is aggregated while the previous one is sent and updated. roles: the work of each
    rank, such as sparse,dense,dense or both,both. devices: the device of each rank, such as cpu,cuda:0,cuda:1; a rank
    with cpu+cuda:0 aggregates on the first device and updates on the second.
    """

    blocks: Annotated[int, Range(1, 2**31)] = 1
    roles: tuple[Annotated[str, OneOf("sparse", "dense", "both")], ...] = ()
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for needed, work in (("sparse", "aggregate"), ("dense", "update")):
            if self.roles and not {needed, "both"} & set(self.roles):
                raise InputError(f"roles={','.join(self.roles)}: no rank to {work}; make one {needed} or both")

    def layout(self) -> Mixture:
        aggregate_on = tuple(_devices(text)[0] for text in self.devices)
        return Mixture(blocks=self.blocks, roles=self.roles, aggregate_on=aggregate_on)

    def partitioner(self) -> Banded | Contiguous:
        empty = tuple(rank for rank, role in enumerate(self.roles) if role == "sparse")
        return Banded(blocks=self.blocks, empty=empty) if self.blocks > 1 or empty else Contiguous()

    def devices_of(self, rank: int) -> tuple[str, ...]:
        return _devices(self.devices[rank])[::-1] if rank < len(self.devices) else ()


def _devices(text: str) -> tuple[str, str]:
    """The devices of a rank's sparse work and of its dense work."""
    names = text.split("+")
    known = all(OneDevice().problem(name) is None and is_accelerator(name) == (":" in name) for name in names)
    if len(names) not in (1, 2) or not known:
        raise InputError(f"device {text!r} is unknown; write cpu, {NCCL}:0, or both as cpu+{NCCL}:0")
    return names[0], names[-1]
