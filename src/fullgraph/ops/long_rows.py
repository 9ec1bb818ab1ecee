"""Rows with very many arcs, cut into pieces: as a whole, a GPU program would finish them long after all others."""

from dataclasses import dataclass

import torch
from torch import Tensor

SCANNED_AT_ONCE = 1 << 24  # rows


@dataclass(frozen=True)
class LongRows:
    """The rows with more than `chunk` arcs. Piece p: up to `chunk` arcs of row rows[p], from places[p] * chunk on."""

    rows: Tensor  # int32 [P]
    places: Tensor  # int32 [P]
    distinct: Tensor  # int32 [L], the long rows, ascending
    first: Tensor  # int32 [L+1]; row distinct[k] has the pieces first[k] .. first[k+1]-1

    @property
    def num_pieces(self) -> int:
        return self.rows.numel()


def long_rows(indptr: Tensor, chunk: int) -> LongRows:
    """Find the long rows. The table is small, because it has no entry for other rows."""
    found = []
    for start in range(0, indptr.numel() - 1, SCANNED_AT_ONCE):
        degree = indptr[start : start + SCANNED_AT_ONCE + 1].diff()
        found.append((degree > chunk).nonzero().view(-1) + start)
    rows = torch.cat(found) if found else indptr.new_empty(0)
    counts = (indptr[rows + 1] - indptr[rows] + chunk - 1) // chunk
    first = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    owner = torch.repeat_interleave(torch.arange(rows.numel(), device=rows.device), counts)
    places = torch.arange(owner.numel(), device=rows.device) - first[owner]
    return LongRows(rows[owner].int(), places.int(), rows.int(), first.int())
