"""Rows in host memory, which a device reads block by block.

Two blocks of device memory alternate: while one is read, the next rows are copied into the other, on a separate
stream. Events order the two streams, and the host does not wait for either.

Legend: n rows, b of them in a block, D features.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fullgraph.device import is_accelerator, marked, module_of


def elsewhere(x_nD: Tensor, device: torch.device) -> bool:
    """Whether the rows must be copied to the device that reads them."""
    return x_nD.device != device


def blocks_on(x_nD: Tensor, device: torch.device, size: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield (slice, x[slice]) in blocks of `size` rows on a device. A block is valid until the next request."""
    spans = [slice(first, min(first + size, len(x_nD))) for first in range(0, len(x_nD), size)]
    if not elsewhere(x_nD, device):
        yield from ((rows, x_nD[rows]) for rows in spans)
        return
    room = [x_nD.new_empty(min(size, len(x_nD)), x_nD.shape[1], device=device) for _ in range(2)]

    def bring(k: int) -> tuple[Tensor, Any]:
        here_bD = room[k % 2][: spans[k].stop - spans[k].start]
        return here_bD, _copy(x_nD[spans[k]], here_bD)

    coming = bring(0) if spans else None
    for k, rows in enumerate(spans):
        assert coming is not None
        here_bD, arrived = coming
        if k + 1 < len(spans):
            coming = bring(k + 1)  # into the memory of block k - 1, which is no longer read
        if arrived is not None:
            module_of(device).current_stream(device).wait_event(arrived)
        yield rows, here_bD


def _copy(x_bD: Tensor, here_bD: Tensor) -> Any:
    """Copy after all earlier work of the current stream; return the event of its end, None on a CPU."""
    if not is_accelerator(here_bD.device):
        here_bD.copy_(x_bD)
        return None
    stream = _stream(here_bD.device)
    stream.wait_event(marked(here_bD.device))
    with module_of(here_bD.device).stream(stream):
        here_bD.copy_(x_bD, non_blocking=True)
    return stream.record_event()


@cache
def _stream(device: torch.device) -> Any:
    return module_of(device).Stream(device)
