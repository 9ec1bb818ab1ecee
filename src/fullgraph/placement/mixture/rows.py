"""How the rows of a mixture lie: by block, and by owner within."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockRows:
    """How many rows every rank has in every block. Nodes are numbered by block, by owner within."""

    rank: int
    table: tuple[tuple[int, ...], ...]  # [block][rank]

    @property
    def own(self) -> list[int]:
        """Rows of this rank, by block."""
        return [rows[self.rank] for rows in self.table]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of all ranks, by block."""
        return tuple(map(sum, self.table))

    @property
    def of_ranks(self) -> tuple[int, ...]:
        """Rows in all blocks, by rank."""
        return tuple(map(sum, zip(*self.table, strict=True)))

    def numbers(self) -> Tensor:
        """Of this rank's rows."""
        starts = [sum(self.sizes[:b]) + sum(rows[: self.rank]) for b, rows in enumerate(self.table)]
        return torch.cat([torch.arange(start, start + n) for start, n in zip(starts, self.own, strict=True)])

    def by_block(self, x_ND: Tensor) -> list[Tensor]:
        """All rows by block, where they came by rank."""
        blocks = len(self.table)
        if blocks == 1:
            return [x_ND]
        parts = x_ND.split([n for rank in zip(*self.table, strict=True) for n in rank])
        return [torch.cat(parts[b::blocks]) for b in range(blocks)]
