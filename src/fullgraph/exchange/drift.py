"""A message is skipped while its rows have hardly changed since they were last sent (SANCUS, VLDB 2022)."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fullgraph.codec import Shape
from fullgraph.exchange.memory import ByPeer, are_shaped, rows_of
from fullgraph.exchange.picks import Picks
from fullgraph.transport import Key, Transport
from fullgraph.values import Range, Value


@dataclass(frozen=True, kw_only=True)
class Drift(Value):
    """A rank sends the rows x of a layer to nobody while  sum |x - x'|^2 <= bound^2 sum |x'|^2,  x' those last sent.

    Sums are over all that it would send. longest: but never for more than so many steps on end (0: however long).
    gradients: messages with gradients are skipped alike, by their own change.
    """

    bound: Annotated[float, Range(0, 1e9)] = 0.1
    longest: Annotated[int, Range(0, 10**9)] = 0
    gradients: bool = False


class News:
    """One way of a channel: what was last sent, and whether there is news."""

    def __init__(self, drift: Drift, picks: Picks | None) -> None:
        self.drift, self.picks = drift, picks
        self.rows: ByPeer = {}  # as they were last sent
        self.silent = torch.full((picks.turns if picks else 1,), -1)  # steps without news, by turn; -1: never sent

    def tell(self, packed: ByPeer, peers: list[int], key: Key, transport: Transport) -> tuple[ByPeer, frozenset[int]]:
        """The rows to send, or none; and those of the `peers` that send none. One byte a peer says which."""
        send = self._decide(packed, key.step)
        flags = {peer: torch.tensor([send], dtype=torch.uint8) for peer in packed}
        name = replace(key, channel=f"{key.channel}/news")
        told = transport.begin(name, flags, dict.fromkeys(peers, 1)).wait()
        return packed if send else {}, frozenset(peer for peer in peers if not int(told[peer][0]))

    def _decide(self, packed: ByPeer, step: int) -> bool:
        turn = step % len(self.silent)
        silent = int(self.silent[turn])
        send = silent < 0 or 0 < self.drift.longest <= silent or self._changed(packed, step)
        self.silent = self.silent.clone()
        self.silent[turn] = 0 if send else silent + 1
        if send:
            self.rows = {peer: self._kept(peer, rows, step) for peer, rows in packed.items()}
        return send

    def _changed(self, packed: ByPeer, step: int) -> bool:
        moved = size = torch.zeros((), dtype=torch.float64)
        for peer, rows in packed.items():
            new, old = (self._due(peer, which, step).double() for which in (rows, self.rows[peer]))
            moved, size = moved + (new - old).square().sum().cpu(), size + old.square().sum().cpu()
        return not bool(moved <= self.drift.bound**2 * size)  # rows that are no numbers are news

    def _due(self, peer: int, rows: Tensor, step: int) -> Tensor:
        return rows if self.picks is None else rows[self.picks.due(self.picks.sent[peer], step).to(rows.device)]

    def _kept(self, peer: int, rows: Tensor, step: int) -> Tensor:
        if self.picks is None or peer not in self.rows:
            return rows.clone()
        due, kept = self.picks.due(self.picks.sent[peer], step).to(rows.device), self.rows[peer].clone()
        kept[due] = rows[due]
        return kept

    def held(self) -> dict[str, Tensor]:
        return {"news": self.silent} | {f"news.{peer}": rows for peer, rows in self.rows.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        if "news" in state:
            self.silent, self.rows = state["news"].cpu(), rows_of(state, "news.")

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        turns = self.picks.turns if self.picks else 1
        return self.silent.shape == (turns,) and (not self.rows or are_shaped(self.rows, sent, dtype))
