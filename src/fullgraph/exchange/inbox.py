"""One way of a channel: what was posted, what has come, what a later step may still read."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.codec import Codec, Shape
from fullgraph.errors import Damaged, InputError
from fullgraph.exchange.feedback import Residuals
from fullgraph.exchange.schedule import Schedule
from fullgraph.exchange.smooth import Average
from fullgraph.plan import Route
from fullgraph.transport import Key, Pending, Ready, Transport


@dataclass(frozen=True, slots=True, eq=False)
class _Coding:
    """The codec of one step's message, with all it must know."""

    codec: Codec
    residuals: Residuals | None
    key: Key
    rank: int
    shapes: dict[int, Shape]  # of what each peer sends
    dtype: torch.dtype
    device: torch.device

    def nbytes(self, peer: int, rows: Tensor) -> int:
        return self.codec.nbytes(tuple(rows.shape), rows.dtype, self._to(peer))

    def incoming(self) -> dict[int, int]:
        """The bytes that each peer sends."""
        shapes = self.shapes.items()
        return {peer: self.codec.nbytes(shape, self.dtype, self._from(peer)) for peer, shape in shapes}

    def encode(self, peer: int, rows: Tensor) -> Tensor:
        key = self._to(peer)
        return self.residuals.encode(self.codec, peer, rows, key) if self.residuals else self.codec.encode(rows, key)

    def decode(self, peer: int, wire: Tensor) -> Tensor:
        return self.codec.decode(wire.to(self.device), self.shapes[peer], self.dtype, self._from(peer))

    def _to(self, peer: int) -> Key:
        return replace(self.key, ends=(self.rank, peer))

    def _from(self, peer: int) -> Key:
        return replace(self.key, ends=(peer, self.rank))


# What is held between steps: tensors, which the next step may change, and versions of rows, still on their way perhaps.
Held = dict[str, Tensor | Pending[dict[int, Tensor]]]


def settled(held: Held) -> dict[str, Tensor]:
    """All of it as named tensors, waiting for what is on its way; a version without rows is named too."""
    state = {}
    for name, value in held.items():
        if isinstance(value, Tensor):
            state[name] = value
        else:
            state[name] = torch.zeros(0)
            state |= {f"{name}.{peer}": rows for peer, rows in value.wait().items()}
    return state


class Inbox:
    """Posts rows along a route and keeps the versions that a later step may read."""

    def __init__(
        self, key: Key, route: Route, codec: Codec, schedule: Schedule, transport: Transport,
        average: Average | None = None, residuals: Residuals | None = None,
    ) -> None:  # fmt: skip
        self.key, self.route, self.codec = key, route, codec  # the key of any step's message, but for the step
        self.schedule, self.transport = schedule, transport
        self.average, self.residuals = average, residuals
        self.versions: dict[int, Pending[dict[int, Tensor]]] = {}
        self.posted = -1  # the last step that sent
        self._loaded = False  # from a checkpoint, and not yet compared with what this run sends
        self._like: Tensor | None = None  # no rows, as wide as those that were posted last, and of their format

    def post(self, packed: dict[int, Tensor], like: Tensor, step: int) -> None:
        """Send each peer its rows; `like` tells the width, number format and device of what will come."""
        if self.schedule.depth:
            self._check(step)
        if self._loaded:
            self._check_loaded(packed, like, step)
        if not self.schedule.turn(step).send:
            return
        self._like = like.new_empty((0, *like.shape[1:])) if self._like is None else self._like
        coding = self._coding(step, like)
        self.versions[step] = self.transport.begin(coding.key, packed, coding.incoming(), coding)

    def _coding(self, step: int, like: Tensor) -> _Coding:
        key, shapes = replace(self.key, step=step), self.route.shapes(tuple(like.shape[1:]))
        return _Coding(self.codec, self.residuals, key, self.transport.rank, shapes, like.dtype, like.device)

    def expected_bytes(self, step: int) -> int:
        """What peers send at a step as route, schedule and codec have it; no message is looked at."""
        if self._like is None or not self.schedule.turn(step).send:
            return 0
        return sum(self._coding(step, self._like).incoming().values())

    def _check(self, step: int) -> None:
        """Rows that a later step reads must be those of one step, begun and not over."""
        if step < 0:
            raise InputError("no step was begun: call shard.clock.tick() before the forward pass of each step")
        if step == self.posted:
            raise InputError(
                f"two forward passes in step {step}: call shard.clock.tick() before each, and evaluate through "
                "shard.full.view"
            )
        self.posted = step

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

    def fresher(self, step: int) -> dict[int, Tensor] | None:
        """The step's own rows, waited for, where it reads others; None where it does not, or sends none."""
        turn = self.schedule.turn(step)
        return self.versions[step].wait() if turn.send and turn.read != step else None

    def held(self) -> Held:
        """Versions and averages under names."""
        if self.residuals is not None:  # what a message lost is known only when it has been encoded
            for version in self.versions.values():
                version.wait()
        state: Held = {f"version.{step}": version for step, version in self.versions.items()}
        if self.average is not None and self.average.version is not None:
            state["average"] = torch.tensor([self.average.version, self.average.count])
            state |= {f"average.{peer}": rows for peer, rows in self.average.rows.items()}
        if self.residuals is not None:
            state |= {f"residual.{peer}": rows for peer, rows in self.residuals.rows.items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.versions, self._loaded = {}, bool(state)
        try:
            for name in [n for n in state if n.startswith("version.") and n.count(".") == 1]:
                self.versions[int(name.removeprefix("version."))] = Ready(_by_peer(state, f"{name}."))
            if self.average is not None and "average" in state:
                self.average.version, self.average.count = state["average"].tolist()
                self.average.rows = _by_peer(state, "average.")
            if self.residuals is not None:
                self.residuals.rows = _by_peer(state, "residual.")
        except (ValueError, TypeError) as error:
            raise self._unfit() from error

    def _check_loaded(self, packed: dict[int, Tensor], like: Tensor, step: int) -> None:
        """Refuse rows of other shapes or steps than this run's, where they would be read as if they fitted."""
        self._loaded = False
        come = self.route.shapes(tuple(like.shape[1:]))
        reads = (self.schedule.turn(later).read for later in range(step, step + self.schedule.depth))
        if come and any(due is not None and due < step and due not in self.versions for due in reads):
            raise self._unfit()
        gone = {peer: tuple(rows.shape) for peer, rows in packed.items()}
        held = [(version.wait(), come) for version in self.versions.values()]
        held += [(self.average.rows, come)] if self.average is not None and self.average.rows else []
        held += [(self.residuals.rows, gone)] if self.residuals is not None and self.residuals.rows else []
        for rows, shapes in held:
            kinds = {value.dtype for value in rows.values()}
            if {peer: tuple(value.shape) for peer, value in rows.items()} != shapes or not kinds <= {like.dtype}:
                raise self._unfit()

    def _unfit(self) -> Damaged:
        told = f"what the checkpoint holds of {self.key.channel} does not fit this run"
        return Damaged(f"{told}; put the checkpoint's own files back, or start a new run")


def _by_peer(state: dict[str, Tensor], prefix: str) -> dict[int, Tensor]:
    """In peer order, as routes have it; a file has names in an order of its own, such as 0, 1, 10, 11, 2."""
    rows = {int(name.removeprefix(prefix)): rows for name, rows in state.items() if name.startswith(prefix)}
    return dict(sorted(rows.items()))
