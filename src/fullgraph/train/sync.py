"""Weight gradients, summed over ranks in one message."""

from collections.abc import Iterable

import torch
from torch import nn

from fullgraph.transport import Key, Transport


class GradSync:
    """g <- sum over ranks of g, as one flat buffer; every rank's loss is already a part of the global mean."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def __call__(self, parameters: Iterable[nn.Parameter], step: int) -> None:
        if self.transport.size == 1:
            return
        # A weight no path reached on this rank has no gradient here, yet takes part in the sum.
        grads = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        flat = self.transport.all_reduce(Key("weights", step, use="weights"), flat).wait()
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))
