"""Which rows of a message cross under a budget: the rows that moved most since they were last sent."""

from dataclasses import replace
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fullgraph.codec import Shape
from fullgraph.codec.memory import ByPeer, are_shaped, rows_of
from fullgraph.exchange.rows import Picked
from fullgraph.transport import Key, Transport


class MostMoved:
    """One direction of a channel: ceil(share n) of the n rows of each message cross, those of largest |x - x'|^2.

    x' is a row as it was last sent. The first message has all rows. The sender announces its choice in one bit per row;
    among equal rows the first ones cross.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.rows: ByPeer = {}  # as they were last sent
        self.begun = False

    def pick(self, packed: ByPeer, shapes: dict[int, Shape], key: Key, transport: Transport) -> Picked | None:
        """The rows that cross, on both sides; None: all. shapes: of the messages that will arrive."""
        if not self.begun:
            self.begun = True
            self.rows = {peer: rows.clone() for peer, rows in packed.items()}
            return None
        sent = {peer: self._most(rows, self.rows[peer]) for peer, rows in packed.items()}
        masks = {peer: _as_bits(at, len(packed[peer])) for peer, at in sent.items()}
        name = replace(key, channel=f"{key.channel}/news")
        told = transport.begin(name, masks, {peer: ceil(shape[0] / 8) for peer, shape in shapes.items()}).wait()
        come = {peer: _from_bits(told[peer], shape[0]) for peer, shape in shapes.items()}
        for peer, at in sent.items():
            there = at.to(packed[peer].device)
            self.rows[peer] = self.rows[peer].index_copy(0, there, packed[peer][there])
        return Picked(sent, come, come)

    def expected(self, shapes: dict[int, Shape]) -> Picked:
        """As many rows as will arrive, for counting bytes."""
        come = {peer: torch.arange(self._count(shape[0])) for peer, shape in shapes.items()}
        return Picked({}, come, come)

    def _count(self, rows: int) -> int:
        return ceil(self.share * rows)

    def _most(self, rows: Tensor, old: Tensor) -> Tensor:
        moved = (rows.double() - old.double()).square().flatten(1).sum(1).cpu()
        order = moved.nan_to_num(nan=torch.inf).argsort(descending=True, stable=True)
        return order[: self._count(len(rows))].sort().values

    def held(self) -> dict[str, Tensor]:
        return {"most": torch.tensor([self.begun])} | {f"most.{peer}": rows for peer, rows in self.rows.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        if "most" in state:
            self.begun, self.rows = bool(state["most"]), rows_of(state, "most.")

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        return not self.begun or are_shaped(self.rows, sent, dtype)


def _as_bits(at: Tensor, count: int) -> Tensor:
    mask = torch.zeros(count, dtype=torch.bool)
    mask[at] = True
    return torch.from_numpy(np.packbits(mask.numpy()))


def _from_bits(bits: Tensor, count: int) -> Tensor:
    mask = np.unpackbits(bits.cpu().numpy(), count=count)
    return torch.from_numpy(mask.nonzero()[0])
