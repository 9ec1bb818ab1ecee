"""Error feedback: what a codec dropped from one message is added to the next."""

from torch import Tensor

from fullgraph.codec import Codec
from fullgraph.transport import Key


class Residuals:
    """send Q(x_t + e_t),  e_{t+1} = x_t + e_t - Q(x_t + e_t),  by peer: all that arrives = all that was meant - e."""

    def __init__(self) -> None:
        self.rows: dict[int, Tensor] = {}

    def encode(self, codec: Codec, peer: int, x: Tensor, key: Key) -> Tensor:
        if peer in self.rows:
            x = x + self.rows[peer]
        wire = codec.encode(x, key)
        self.rows[peer] = x - codec.decode(wire, tuple(x.shape), x.dtype, key)
        return wire
