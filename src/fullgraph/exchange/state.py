"""The state of one direction of a channel between steps, in addition to versions of rows.

Moving averages (Smooth), errors of the codec (Residuals), and the rows that were sent last (Drift).
"""

from dataclasses import dataclass, replace
from typing import Annotated, Protocol

import torch
from torch import Tensor

from fullgraph.codec import Codec, Shape
from fullgraph.codec.memory import ByPeer, are_shaped, rows_of
from fullgraph.exchange.rows import Picks
from fullgraph.transport import Key, Transport
from fullgraph.values import Range, Value


class SavedState(Protocol):
    """State that is kept between steps and saved in checkpoints."""

    def held(self) -> dict[str, Tensor]:
        """The state as named tensors."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Load what `held` returned; `state` may have other names too."""
        ...

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        """Whether the loaded state fits messages of these shapes."""
        ...


@dataclass(frozen=True, kw_only=True)
class Smooth(Value):
    """avg = g avg + (1 - g) received, from zero, of features, gradients or both  (PipeGCN, arXiv:2203.10428).

    correct: divide by 1 - g^k after k receipts, which removes the pull towards zero from the first steps.
    """

    gamma: Annotated[float, Range(0, 1, below=True)] = 0.95
    features: bool = True
    gradients: bool = True
    correct: bool = False


class Average:
    """The moving average of one direction of a channel, by peer.

    began: the step in which the channel began; after step 0, an average without correction begins with the rows that
    came, not at zero.
    """

    def __init__(self, smooth: Smooth, began: int = 0) -> None:
        self.smooth = smooth
        self.first_share = 1.0 if began and not smooth.correct else 1 - smooth.gamma
        self.rows: dict[int, Tensor] = {}
        self.count = 0
        self.version: int | None = None  # the last version in the average

    def take(self, version: int, received: dict[int, Tensor]) -> dict[int, Tensor]:
        """Update the average with a version, once however often it is read; return the averaged rows."""
        gamma = self.smooth.gamma
        if version != self.version:
            self.version, self.count = version, self.count + 1
            for peer, rows in received.items():
                old = self.rows.get(peer)
                self.rows[peer] = (
                    self.first_share * rows if old is None else old.mul_(gamma).add_(rows, alpha=1 - gamma)
                )
        scale = 1 / (1 - gamma**self.count) if self.smooth.correct else 1.0
        return {peer: self.rows[peer] * scale for peer in received}

    def held(self) -> dict[str, Tensor]:
        if self.version is None:
            return {}
        return {"average": torch.tensor([self.version, self.count])} | {
            f"average.{peer}": rows for peer, rows in self.rows.items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        if "average" in state:
            self.version, self.count = state["average"].tolist()
            self.rows = rows_of(state, "average.")

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        return not self.rows or are_shaped(self.rows, come, dtype)


class Residuals:
    """send Q(x_t + e_t),  e_{t+1} = x_t + e_t - Q(x_t + e_t),  by peer: sum of received = sum of sent x - e."""

    def __init__(self) -> None:
        self.rows: dict[int, Tensor] = {}

    def encode(self, codec: Codec, peer: int, x: Tensor, key: Key, at: Tensor | None = None) -> Tensor:
        """The encoded rows of x, or only of its rows `at`; the residuals of other rows stay as they are."""
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


@dataclass(frozen=True, kw_only=True)
class Drift(Value):
    """A rank does not send a layer's rows x while  sum |x - x'|^2 <= bound^2 sum |x'|^2;  x' are the rows it sent last.

    Sums are over all rows that it would send. longest: the largest number of skipped steps in a row (0: no limit).
    gradients: messages with gradients are skipped by the same rule, on their own change.
    """

    bound: Annotated[float, Range(0, 1e9)] = 0.1
    longest: Annotated[int, Range(0, 10**9)] = 0
    gradients: bool = False


class ChangeFilter:
    """One direction of a channel: the rows as they were last sent, and whether they have changed enough."""

    def __init__(self, drift: Drift, picks: Picks | None) -> None:
        self.drift, self.picks = drift, picks
        self.rows: ByPeer = {}  # as they were last sent
        self.silent = torch.full((picks.turns if picks else 1,), -1)  # steps without a message, by turn; -1: never sent

    def filter(self, packed: ByPeer, peers: list[int], key: Key, transport: Transport) -> tuple[ByPeer, frozenset[int]]:
        """The rows to send, or none; and the peers that send none. One byte per peer announces it."""
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
        return not bool(moved <= self.drift.bound**2 * size)  # rows with NaN count as changed

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
