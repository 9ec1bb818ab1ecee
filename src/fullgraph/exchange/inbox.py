"""One way of a channel: what was posted, what has come, what a later step may still read."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.codec import Codec, Shape
from fullgraph.exchange.feedback import Residuals
from fullgraph.exchange.schedule import Schedule
from fullgraph.exchange.smooth import Average
from fullgraph.plan import Route
from fullgraph.transport import Key, Pending, Ready, Transport, Way


@dataclass(frozen=True, slots=True)
class _Decoding:
    """Rows of one step on their way: waiting for them also decodes them."""

    rank: int
    pending: Pending[dict[int, Tensor]]
    codec: Codec
    key: Key
    shapes: dict[int, Shape]
    dtype: torch.dtype
    device: torch.device

    def wait(self) -> dict[int, Tensor]:
        wires = self.pending.wait()
        return {
            peer: self.codec.decode(
                wires[peer].to(self.device), shape, self.dtype, replace(self.key, ends=(peer, self.rank))
            )
            for peer, shape in self.shapes.items()
        }


class Inbox:
    """Posts rows along a route and keeps the versions that a later step may read."""

    def __init__(
        self, name: str, way: Way, route: Route, codec: Codec, schedule: Schedule, transport: Transport,
        average: Average | None = None, residuals: Residuals | None = None,
    ) -> None:  # fmt: skip
        self.name, self.way, self.route, self.codec = name, way, route, codec
        self.schedule, self.transport = schedule, transport
        self.average, self.residuals = average, residuals
        self.versions: dict[int, Pending[dict[int, Tensor]]] = {}

    def post(self, packed: dict[int, Tensor], like: Tensor, step: int) -> None:
        """Send each peer its rows; `like` tells the width, number format and device of what will come."""
        if not self.schedule.turn(step).send:
            return
        key = Key(self.name, step, self.way)
        shapes = self.route.shapes(tuple(like.shape[1:]))
        rank = self.transport.rank
        outgoing = {peer: self._encode(peer, rows, replace(key, ends=(rank, peer))) for peer, rows in packed.items()}
        incoming = {peer: self.codec.nbytes(shape, like.dtype, key) for peer, shape in shapes.items()}
        pending = self.transport.begin(key, outgoing, incoming)
        self.versions[step] = _Decoding(rank, pending, self.codec, key, shapes, like.dtype, like.device)

    def _encode(self, peer: int, rows: Tensor, key: Key) -> Tensor:
        if self.residuals is None:
            return self.codec.encode(rows, key)
        return self.residuals.encode(self.codec, peer, rows, key)

    def read(self, step: int) -> dict[int, Tensor] | None:
        """Rows by peer of the version due at `step` (None: nothing is due yet, and it counts as zeros)."""
        due = self.schedule.turn(step).read
        rows = None if due is None else self.versions[due].wait()
        if due is not None and rows is not None and self.average is not None:
            rows = self.average.take(due, rows)
        for old in [s for s in self.versions if s <= step - self.schedule.depth]:
            version = self.versions.pop(old)
            if old != due:
                version.wait()  # never read, yet its buffers must not go while it is still on its way
        return rows

    def state(self) -> dict[str, Tensor]:
        """Versions and averages as named tensors; a version without rows is named too."""
        state = {}
        for step, version in self.versions.items():
            state[f"version.{step}"] = torch.zeros(0)
            state |= {f"version.{step}.{peer}": rows for peer, rows in version.wait().items()}
        if self.average is not None and self.average.version is not None:
            state["average"] = torch.tensor([self.average.version, self.average.count])
            state |= {f"average.{peer}": rows for peer, rows in self.average.rows.items()}
        if self.residuals is not None:
            state |= {f"residual.{peer}": rows for peer, rows in self.residuals.rows.items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.versions = {}
        for name in [n for n in state if n.startswith("version.") and n.count(".") == 1]:
            self.versions[int(name.removeprefix("version."))] = Ready(_by_peer(state, f"{name}."))
        if self.average is not None and "average" in state:
            self.average.version, self.average.count = state["average"].tolist()
            self.average.rows = _by_peer(state, "average.")
        if self.residuals is not None:
            self.residuals.rows = _by_peer(state, "residual.")


def _by_peer(state: dict[str, Tensor], prefix: str) -> dict[int, Tensor]:
    return {int(name.removeprefix(prefix)): rows for name, rows in state.items() if name.startswith(prefix)}
