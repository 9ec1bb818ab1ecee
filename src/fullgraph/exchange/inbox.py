"""One direction of a channel: posted rows, received rows, and the versions that a later step may read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fullgraph.codec import Codec, Memory, Shape
from fullgraph.codec.memory import ByPeer, are_shaped, rows_of
from fullgraph.errors import Damaged, InputError
from fullgraph.exchange.coding import StepCoding
from fullgraph.exchange.lateness import Movement
from fullgraph.exchange.most import MostMoved
from fullgraph.exchange.own import choose, is_due
from fullgraph.exchange.rows import Picked, Picks
from fullgraph.exchange.schedule import Schedule
from fullgraph.exchange.state import Average, ChangeFilter, Line, Residuals, SavedState
from fullgraph.plan import Route
from fullgraph.transport import Key, Pending, Ready, Transport

Later = Callable[[Callable[[], None]], None]
# State between steps: tensors, which the next step may change, and versions of rows, which may be pending.
Held = dict[str, Tensor | Pending[dict[int, Tensor]]]


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """Rows by peer, and which of them are absent."""

    rows: ByPeer
    absent: ByPeer

    def fits(self, shapes: dict[int, Shape], dtype: torch.dtype) -> bool:
        counts = {peer: shape[:1] for peer, shape in shapes.items()}
        return are_shaped(self.rows, shapes, dtype) and are_shaped(self.absent, counts, torch.bool)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Merge:
    """Merges the rows that crossed at a step over the rows of the version before."""

    picked: Picked | None
    scale: float  # factor of the rows that crossed
    shapes: dict[int, Shape]
    silent: frozenset[int]  # peers whose rows have not changed enough
    like: Tensor

    def __call__(self, came: ByPeer, before: Arrived | None) -> Arrived:
        rows, absent = {}, {}
        for peer, shape in self.shapes.items():
            if self.picked is None and peer not in self.silent:  # all of its rows arrived
                rows[peer], absent[peer] = came[peer], torch.zeros(shape[0], dtype=torch.bool)
                continue
            rows[peer], absent[peer] = self._old(peer, shape, before)
            if self.picked is not None and peer not in self.silent:
                self._put(self.picked, peer, came.get(peer), rows[peer], absent[peer])
        return Arrived(rows, absent)

    def _old(self, peer: int, shape: Shape, before: Arrived | None) -> tuple[Tensor, Tensor]:
        """A copy of the old rows: versions share no memory, because a checkpoint may hold several."""
        if before is not None:
            return before.rows[peer].clone(), before.absent[peer].clone()
        return self.like.new_zeros(shape), torch.zeros(shape[0], dtype=torch.bool)

    def _put(self, picked: Picked, peer: int, came: Tensor | None, rows: Tensor, absent: Tensor) -> None:
        """Write the received rows over the rows that were due."""
        due, drawn, device = picked.due[peer], picked.come[peer], rows.device
        rows[due.to(device)], absent[due] = 0, True
        absent[drawn] = False
        if came is not None:
            rows[drawn.to(device)] = came if self.scale == 1 else came * self.scale


def arrived_in(state: dict[str, Tensor], name: str) -> Arrived:
    """The rows that a checkpoint has under a name, and their mask under `absent.` and the name."""
    absent = rows_of(state, f"absent.{name}.")
    return Arrived(rows_of(state, f"{name}."), {peer: rows.cpu() for peer, rows in absent.items()})


class Version:
    """One step's rows, arrived or pending."""

    def __init__(self, found: "Arrived | Callable[[], Arrived]") -> None:
        """found: the rows, or a function that waits for them."""
        self._found = found

    def arrived(self) -> Arrived:
        if not isinstance(self._found, Arrived):
            self._found = self._found()  # also frees the previous version
        return self._found

    def wait(self) -> ByPeer:
        return self.arrived().rows


def settled(held: Held) -> dict[str, Tensor]:
    """All state as named tensors; waits for pending versions. A version without rows has a name too."""
    state = {}
    for name, value in held.items():
        if isinstance(value, Tensor):
            state[name] = value
        else:
            state[name] = torch.zeros(0)
            state |= {f"{name}.{peer}": rows for peer, rows in value.wait().items()}
    return state


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Extras:
    """Optional parts of one direction: smoothing, residuals, row selection, change filter, memory of the codec."""

    average: Average | Line | None = None
    residuals: Residuals | None = None
    picks: Picks | None = None
    changes: ChangeFilter | None = None
    memory: Memory | None = None  # the codec's memory
    moves: Movement | None = None
    most: MostMoved | None = None

    @property
    def parts(self) -> list[SavedState]:
        parts = (self.average, self.residuals, self.changes, self.memory, self.moves, self.most)
        return [part for part in parts if part is not None]

    @property
    def partial(self) -> bool:
        """Whether a message may have fewer rows than its readers see."""
        return self.picks is not None or self.changes is not None or self.most is not None

    @property
    def keeps_rows(self) -> bool:
        """Whether rows that do not arrive keep their old values."""
        turns = self.picks is not None and self.picks.turns > 1
        return turns or self.changes is not None or self.most is not None


NO_STEP = "no step was begun: call shard.clock.tick() before the forward pass of each step"


def check_begun(step: int, last: int) -> None:
    """Refuse a forward pass before the first step, or a second one in a step. last: the step of the previous pass."""
    if step < 0:
        raise InputError(NO_STEP)
    if step == last:
        raise InputError(
            f"two forward passes in step {step}: call shard.clock.tick() before each, and evaluate through "
            "shard.full.view"
        )


class Inbox:
    """Posts rows along a route and keeps the versions that a later step may read."""

    def __init__(
        self, key: Key, route: Route, codec: Codec, schedule: Schedule, transport: Transport, extras: Extras
    ) -> None:
        self.key, self.route, self.codec = key, route, codec  # the key of a message, except the step
        self.schedule, self.transport, self.extras = schedule, transport, extras
        self.versions: dict[int, Pending[ByPeer]] = {}
        self.absent: ByPeer = {}  # by peer: mask of the rows that were read last and never arrived
        self.posted = -1  # the last step that sent
        self._last: Version | None = None  # the newest version, if later ones are merged over it
        self._loaded = False  # from a checkpoint, and not yet compared with this run's messages
        self._like: Tensor | None = None  # no rows; has the width and type of the rows that were posted last

    def measure(self, packed: ByPeer, step: int, *, comparable: bool) -> None:
        """Measure how far the rows moved since the last step, if the schedule follows it."""
        if self.extras.moves is not None:
            self.extras.moves.see(packed, comparable=comparable)

    def post(self, packed: ByPeer, like: Tensor, step: int, later: Later | None = None) -> None:
        """Send each peer its rows; `like` has the width, type and device of the rows that will arrive.

        later: may delay sending rows that this step does not read.
        """
        if self.schedule.depth or self.extras.keeps_rows:
            check_begun(step, self.posted)
            self.posted = step
        if self._loaded:
            self._check_loaded(packed, like, step)
        turn = self.schedule.turn(step)
        if not turn.send:
            return
        like = like.new_empty((0, *like.shape[1:]))
        self._like = like if self._like is None else self._like
        send = partial(self._send, packed, like, step)
        if later is not None and turn.read != step:
            later(send)
        else:
            send()

    def _send(self, packed: ByPeer, like: Tensor, step: int) -> None:
        shapes = self.route.shapes(tuple(like.shape[1:]))
        if self.extras.memory is not None and is_due(self.extras.memory, step):
            self._settle()  # both ends choose by the same messages
            choose(self.extras.memory, {peer: tuple(rows.shape) for peer, rows in packed.items()}, shapes)
        self.versions[step] = self._begin(packed, like, shapes, replace(self.key, step=step))

    def _coding(self, like: Tensor, shapes: dict[int, Shape], key: Key, chosen: Picked | None = None) -> StepCoding:
        """chosen: the rows that cross if `most` chose them."""
        extras = self.extras
        return StepCoding(
            codec=self.codec, residuals=extras.residuals, picked=extras.picks.at(key.step) if extras.picks else chosen,
            memory=extras.memory, key=key, rank=self.transport.rank, shapes=shapes, like=like.new_empty(0),
        )  # fmt: skip

    def _begin(self, packed: ByPeer, like: Tensor, shapes: dict[int, Shape], key: Key) -> Pending[ByPeer]:
        extras, silent = self.extras, frozenset[int]()
        if extras.changes is not None:
            packed, silent = extras.changes.filter(packed, list(shapes), key, self.transport)
        chosen = extras.most.pick(packed, shapes, key, self.transport) if extras.most else None
        coding = self._coding(like, shapes, key, chosen)
        outgoing = {peer: rows for peer, rows in packed.items() if coding.crosses("sent", peer)}
        sizes = coding.incoming().items()
        incoming = {peer: size for peer, size in sizes if peer not in silent and coding.crosses("come", peer)}
        coming = self.transport.begin(key, outgoing, incoming, coding)
        if not extras.partial:
            return coming
        scale = extras.picks.scale if extras.picks else 1.0
        merge = Merge(picked=coding.picked, scale=scale, shapes=shapes, silent=silent, like=coding.like)
        before = self._last
        version = Version(lambda: merge(coming.wait(), None if before is None else before.arrived()))
        self._last = version if extras.keeps_rows else None
        return version

    def expected_bytes(self, step: int) -> int:
        """Bytes that peers send at a step, computed from route, schedule and codec without a message.

        Rows that a bound (`Drift`) does not send count, because only a message could say so.
        """
        if self._like is None or not self.schedule.turn(step).send:
            return 0
        shapes = self.route.shapes(tuple(self._like.shape[1:]))
        chosen = self.extras.most.expected(shapes) if self.extras.most else None
        coding = self._coding(self._like, shapes, replace(self.key, step=step), chosen)
        return sum(size for peer, size in coding.incoming().items() if coding.crosses("come", peer))

    def read(self, step: int) -> ByPeer | None:
        """Rows by peer of the version due at `step` (None: nothing is due yet, and it counts as zeros)."""
        due = self.schedule.turn(step).read
        version = None if due is None else self.versions[due]
        rows = None if version is None else version.wait()
        self.absent = version.arrived().absent if isinstance(version, Version) else {}
        if due is not None and rows is not None and self.extras.average is not None:
            rows = self.extras.average.take(step, due, rows)
        for old in [s for s in self.versions if s <= step - self.schedule.depth]:
            passed = self.versions.pop(old)
            if old != due:
                passed.wait()  # never read, but its buffers must stay until it has arrived
        return rows

    def drop_before(self, step: int) -> None:
        """Drop everything that was posted before a step."""
        for old in [s for s in self.versions if s < step]:
            self.versions.pop(old).wait()

    def fresher(self, step: int) -> ByPeer | None:
        """This step's rows, if it reads an older version; None if it reads its own or sends none. Waits for them."""
        turn = self.schedule.turn(step)
        if not turn.send or turn.read == step:
            return None
        self._settle()  # in the order in which they were sent, for a codec that remembers
        return self.versions[step].wait()

    def _settle(self) -> None:
        """Wait for all pending versions."""
        for version in self.versions.values():
            version.wait()

    def held(self) -> Held:
        """Versions and all other state, by name."""
        extras = self.extras
        if extras.partial or extras.residuals or extras.memory:  # a message changes them when it is coded
            self._settle()
        versions = {f"version.{step}": version for step, version in self.versions.items()}
        if self._last is not None and self._last not in self.versions.values():
            versions["last"] = self._last
        state: Held = dict(versions)
        for name, version in versions.items():
            if isinstance(version, Version):
                state |= {f"absent.{name}.{peer}": rows for peer, rows in version.arrived().absent.items()}
        for part in extras.parts:
            state |= part.held()
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.versions, self._loaded = {}, bool(state)
        try:
            for name in [n for n in state if n.startswith("version.") and n.count(".") == 1]:
                step = int(name.removeprefix("version."))
                partial = self.extras.partial
                self.versions[step] = Version(arrived_in(state, name)) if partial else Ready(rows_of(state, f"{name}."))
            if self.extras.keeps_rows:
                newest = self.versions[max(self.versions)] if self.versions else None
                self._last = Version(arrived_in(state, "last")) if "last" in state else newest  # type: ignore[assignment]
            for part in self.extras.parts:
                part.load(state)
        except (ValueError, TypeError) as error:
            raise self._unfit() from error

    def _check_loaded(self, packed: ByPeer, like: Tensor, step: int) -> None:
        """Refuse a checkpoint's rows if their shapes or steps do not fit this run."""
        self._loaded = False
        come = self.route.shapes(tuple(like.shape[1:]))
        reads = (self.schedule.turn(later).read for later in range(step, step + self.schedule.depth))
        if come and any(due is not None and due < step and due not in self.versions for due in reads):
            raise self._unfit()
        sent = {peer: tuple(rows.shape) for peer, rows in packed.items()}
        good = all(part.fits(sent, come, like.dtype) for part in self.extras.parts)
        for version in [*self.versions.values(), *([self._last] if self.extras.keeps_rows else [])]:
            if isinstance(version, Version):
                good = good and version.arrived().fits(come, like.dtype)
            else:  # None: rows that should have stayed are missing
                good = good and version is not None and are_shaped(version.wait(), come, like.dtype)
        if not good:
            raise self._unfit()

    def _unfit(self) -> Damaged:
        told = f"what the checkpoint holds of {self.key.channel} does not fit this run"
        return Damaged(f"{told}; put the checkpoint's own files back, or start a new run")
