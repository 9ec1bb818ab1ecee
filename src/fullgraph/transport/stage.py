"""How rows get from where they are computed to where the medium reads them, and back.

On a CPU that is one place. A GPU has streams: the transport encodes and copies on streams of its own, and events say
when rows are ready to leave and when they have arrived. Only the transport's threads ever wait for a copy; the stream
that computes waits for an event, on the device.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

Mark = Any  # a moment of a stream; None where there are none


class OnHost:
    """Rows in the memory that the medium reads; `OnDevice` has the same methods."""

    def mark(self) -> Mark:
        """This moment of the current stream."""
        return None

    def leaving(self, ready: Mark) -> AbstractContextManager[None]:
        """Around encoding and sending of rows that are ready at a mark."""
        return nullcontext()

    def to_wire(self, x: Tensor) -> Tensor:
        """x where the medium can read it, once `left` has returned."""
        return x

    def left(self) -> None:
        """Return when the medium may read what `to_wire` gave."""

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Let no memory of these be used again before the medium has read them: it was told to, and is waited for."""

    def arriving(self) -> AbstractContextManager[None]:
        """Around receiving and decoding."""
        return nullcontext()

    def empty_wire(self, nbytes: int) -> Tensor:
        """Room for bytes that the medium writes."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def from_wire(self, wire: Tensor) -> Tensor:
        """Received bytes where they are decoded."""
        return wire

    def take(self, tensors: Iterable[Tensor], arrived: Mark) -> None:
        """Let the current stream use what arrived at a mark."""


class OnDevice:
    """Rows on a GPU; wires in pinned host memory (gloo reads no other), or on the GPU itself (nccl)."""

    def __init__(self, device: torch.device, *, host_wires: bool) -> None:
        self.device, self.host_wires = device, host_wires
        # Ahead of the stream that computes: encoding and decoding are short, and a peer waits for them.
        self.out, self.back = (torch.cuda.Stream(device, priority=-1) for _ in range(2))

    def mark(self) -> Mark:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def leaving(self, ready: Mark) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self.out):
            self.out.wait_event(ready)
            yield

    def to_wire(self, x: Tensor) -> Tensor:
        if not self.host_wires:
            return x.to(self.device)
        if not x.is_cuda:
            return x
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)

    def left(self) -> None:
        if self.host_wires:  # the medium reads the host's memory as soon as it is told to
            copied = torch.cuda.Event(blocking=True)  # this thread sleeps: a spinning one takes a core from a rank
            copied.record(self.out)
            copied.synchronize()

    def keep(self, tensors: Iterable[Tensor]) -> None:
        if not self.host_wires:  # nccl reads the device's memory later, and `back` waits for it
            for tensor in tensors:
                if tensor.is_cuda:
                    tensor.record_stream(self.back)

    @contextmanager
    def arriving(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self.back):
            yield

    def empty_wire(self, nbytes: int) -> Tensor:
        if self.host_wires:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def from_wire(self, wire: Tensor) -> Tensor:
        if wire.is_cuda:
            wire.record_stream(self.back)
            return wire
        return wire.to(self.device, non_blocking=True)

    def take(self, tensors: Iterable[Tensor], arrived: Mark) -> None:
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(arrived)
        for tensor in tensors:
            if tensor.is_cuda:  # its memory belongs to another stream, which must not use it again too soon
                tensor.record_stream(stream)
