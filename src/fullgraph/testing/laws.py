"""Laws that every route, codec and schedule keeps."""

import torch
from torch import Tensor

from fullgraph.codec import Codec
from fullgraph.exchange import Clock, Schedule, Wire
from fullgraph.plan import Route
from fullgraph.transport import Key, Transport


def adjoint_pair(transport: Transport, route: Route, num_in: int, width: int = 3) -> Tensor:
    """<R x, y> and <x, R^T y>, each summed over ranks: they are equal if and only if the backward pass is the
    transpose.
    """
    generator = torch.Generator().manual_seed(transport.rank)
    x = torch.randn(num_in, width, dtype=torch.float64, generator=generator).requires_grad_()
    y = torch.randn(route.out_shape((width,)), dtype=torch.float64, generator=generator)
    channel = Wire().build(name="law", route=route, transport=transport, clock=Clock())
    passed, token = channel.begin(x)
    moved = channel.end(token)
    ((moved * y).sum() + (passed * 0).sum()).backward()
    assert x.grad is not None
    pair = torch.stack([(moved.detach() * y).sum(), (x.detach() * x.grad).sum()])
    return transport.all_reduce(Key("law/pair", 0), pair).wait()


def assert_size_law(codec: Codec, x: Tensor, key: Key) -> Tensor:
    """Check that both ends compute the same number of bytes and that the shape is kept; return the decoded rows."""
    shape = tuple(x.shape)
    wire = codec.encode(x, key)
    assert wire.dtype == torch.uint8
    assert wire.shape == (codec.nbytes(shape, x.dtype, key),)
    decoded = codec.decode(wire, shape, x.dtype, key)
    assert (decoded.shape, decoded.dtype) == (x.shape, x.dtype)
    return decoded


def assert_schedule_law(schedule: Schedule, steps: int = 50) -> None:
    """Check that a step never reads the future, nor further back than `depth`, nor a step that was not sent."""
    sent = set()
    for step in range(steps):
        turn = schedule.turn(step)
        sent |= {step} if turn.send else set()
        if turn.read is not None:
            assert step - schedule.depth <= turn.read <= step, f"step {step}: {turn}"
            assert turn.read in sent, f"step {step}: {turn}, which was never sent"
