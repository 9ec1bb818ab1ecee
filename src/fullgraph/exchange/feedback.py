"""Error feedback: what a codec dropped from a row is added to it when it next crosses."""

import torch
from torch import Tensor

from fullgraph.codec import Codec, Shape
from fullgraph.exchange.memory import are_shaped, rows_of
from fullgraph.transport import Key


class Residuals:
    """send Q(x_t + e_t),  e_{t+1} = x_t + e_t - Q(x_t + e_t),  by peer: all that arrives = all that was meant - e."""

    def __init__(self) -> None:
        self.rows: dict[int, Tensor] = {}

    def encode(self, codec: Codec, peer: int, x: Tensor, key: Key, at: Tensor | None = None) -> Tensor:
        """The wire of x, or of its rows `at`, the only ones that cross; the others owe what they owed."""
        owed = self.rows.get(peer)
        there = None if at is None else at.to(x.device)
        if there is not None:
            x, owed = x[there], torch.zeros_like(x) if owed is None else owed.clone()
        if owed is not None:
            x = x + (owed if there is None else owed[there])
        wire = codec.encode(x, key)
        left = x - codec.decode(wire, tuple(x.shape), x.dtype, key)
        if there is not None and owed is not None:
            owed[there] = left
            left = owed
        self.rows[peer] = left
        return wire

    def held(self) -> dict[str, Tensor]:
        return {f"residual.{peer}": rows for peer, rows in self.rows.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        self.rows = rows_of(state, "residual.")

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        return are_shaped(self.rows, {peer: sent.get(peer, ()) for peer in self.rows}, dtype)
