"""What came from other ranks in a block's first forward pass, kept for a second one, in which nobody sends."""

from torch import Tensor


class Tape:
    """Received tensors in the order of their calls, which must be the same in both passes."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.next = 0

    def record(self, tensor: Tensor) -> None:
        self.tensors.append(tensor.detach())

    def rewind(self) -> None:
        self.next = 0

    def replay(self) -> Tensor:
        self.next += 1
        return self.tensors[self.next - 1].detach()  # autograd makes it the result of another function each time
