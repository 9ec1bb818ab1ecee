"""How rows get from the memory where they are computed to the memory that the backend reads, and back.

On a CPU both are the same memory. On a GPU the transport encodes and copies on separate streams; events mark when rows
are ready to send and when they have arrived. Only the transport's threads wait for a copy on the host; the computing
stream waits for an event, on the device.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fullgraph.device import is_accelerator, marked, module_of

Mark = Any  # an event; None on the host


class OnHost:
    """Rows in host memory, which the backend reads; `OnDevice` has the same methods."""

    def mark(self) -> Mark:
        """Mark the current point of the current stream."""
        return None

    def leaving(self, ready: Mark) -> AbstractContextManager[None]:
        """Enclose the encoding and sending of rows that are ready at a mark."""
        return nullcontext()

    def to_wire(self, x: Tensor) -> Tensor:
        """Return x in memory that the backend can read after `left` has returned."""
        return x

    def left(self) -> None:
        """Wait until the backend may read the results of `to_wire`."""

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of these tensors until the backend, which has been waited for, has read them."""

    def arriving(self) -> AbstractContextManager[None]:
        """Enclose receiving and decoding."""
        return nullcontext()

    def empty_wire(self, nbytes: int) -> Tensor:
        """Allocate bytes that the backend writes."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def from_wire(self, wire: Tensor) -> Tensor:
        """Return received bytes in memory where they can be decoded."""
        return wire

    def take(self, tensors: Iterable[Tensor], arrived: Mark) -> None:
        """Let the current stream use tensors that arrived at a mark."""


class OnDevice:
    """Rows on a GPU; wires in pinned host memory for gloo, or on the GPU for nccl."""

    def __init__(self, device: torch.device, *, host_wires: bool) -> None:
        self.device, self.host_wires = device, host_wires
        # High priority: encoding and decoding are short, and a peer waits for them.
        self.module = module_of(device)
        self.out, self.back = (self.module.Stream(device, priority=-1) for _ in range(2))

    def mark(self) -> Mark:
        return marked(self.device)

    @contextmanager
    def leaving(self, ready: Mark) -> Iterator[None]:
        with self.module.device(self.device), self.module.stream(self.out):
            self.out.wait_event(ready)
            yield

    def to_wire(self, x: Tensor) -> Tensor:
        if not self.host_wires:
            return x.to(self.device)
        if not is_accelerator(x.device):
            return x
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)

    def left(self) -> None:
        if self.host_wires:  # the backend reads host memory as soon as a send is posted
            sleeps = {"blocking": True} if self.device.type == "cuda" else {}  # spinning would take a core from a rank
            copied = self.module.Event(**sleeps)
            copied.record(self.out)
            copied.synchronize()

    def keep(self, tensors: Iterable[Tensor]) -> None:
        if not self.host_wires:  # nccl reads device memory later, and `back` waits for nccl
            for tensor in tensors:
                if is_accelerator(tensor.device):
                    tensor.record_stream(self.back)

    @contextmanager
    def arriving(self) -> Iterator[None]:
        with self.module.device(self.device), self.module.stream(self.back):
            yield

    def empty_wire(self, nbytes: int) -> Tensor:
        if self.host_wires:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def from_wire(self, wire: Tensor) -> Tensor:
        if is_accelerator(wire.device):
            wire.record_stream(self.back)
            return wire
        return wire.to(self.device, non_blocking=True)

    def take(self, tensors: Iterable[Tensor], arrived: Mark) -> None:
        stream = self.module.current_stream(self.device)
        stream.wait_event(arrived)
        for tensor in tensors:
            if is_accelerator(tensor.device):  # another stream owns the memory and must not reuse it too soon
                tensor.record_stream(stream)
