"""How rows get from the memory where they are computed to the memory that the backend reads, and back.

On a CPU both are the same memory. On a GPU the transport encodes and copies on separate streams; events mark when rows
are ready to send and when they have arrived. Only the transport's threads wait for a copy on the host; the computing
stream waits for an event, on the device.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

Mark = Any  # a CUDA event; None on the host


class Stage(Protocol):
    """Moves tensors between computation and the backend."""

    def mark(self) -> Mark:
        """Mark the current point of the current stream."""
        ...

    def leaving(self, ready: Mark) -> AbstractContextManager[None]:
        """Enclose the encoding and sending of rows that are ready at a mark."""
        ...

    def to_wire(self, x: Tensor) -> Tensor:
        """Return x in memory that the backend can read after `left` has returned."""
        ...

    def left(self) -> None:
        """Wait until the backend may read the results of `to_wire`."""
        ...

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of these tensors until the backend, which has been waited for, has read them."""
        ...

    def arriving(self) -> AbstractContextManager[None]:
        """Enclose receiving and decoding."""
        ...

    def empty_wire(self, nbytes: int) -> Tensor:
        """Allocate bytes that the backend writes."""
        ...

    def from_wire(self, wire: Tensor) -> Tensor:
        """Return received bytes in memory where they can be decoded."""
        ...

    def take(self, tensors: Iterable[Tensor], arrived: Mark) -> None:
        """Let the current stream use tensors that arrived at a mark."""
        ...


class OnHost:
    """Rows in host memory, which the backend reads."""

    def mark(self) -> Mark:
        return None

    def leaving(self, ready: Mark) -> AbstractContextManager[None]:
        return nullcontext()

    def to_wire(self, x: Tensor) -> Tensor:
        return x

    def left(self) -> None:
        pass

    def keep(self, tensors: Iterable[Tensor]) -> None:
        pass

    def arriving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def empty_wire(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def from_wire(self, wire: Tensor) -> Tensor:
        return wire

    def take(self, tensors: Iterable[Tensor], arrived: Mark) -> None:
        pass


class OnDevice:
    """Rows on a GPU; wires in pinned host memory for gloo, or on the GPU for nccl."""

    def __init__(self, device: torch.device, *, host_wires: bool) -> None:
        self.device, self.host_wires = device, host_wires
        # High priority: encoding and decoding are short, and a peer waits for them.
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
        if self.host_wires:  # the backend reads host memory as soon as a send is posted
            copied = torch.cuda.Event(blocking=True)  # the thread sleeps: spinning would take a core from a rank
            copied.record(self.out)
            copied.synchronize()

    def keep(self, tensors: Iterable[Tensor]) -> None:
        if not self.host_wires:  # nccl reads device memory later, and `back` waits for nccl
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
            if tensor.is_cuda:  # another stream owns the memory and must not reuse it too soon
                tensor.record_stream(stream)
