"""The events of one rank's step, in order: work, posted messages, waits, sums over ranks."""

from dataclasses import dataclass

from fullgraph.transport import Key


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work: its kind, and the sizes that determine its time (ops/kernels_meta.py, dry.py)."""

    kind: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Post:
    """A message to some peers and from others. Separate threads encode and decode it beside the step.

    lane: its queue in the transport.
    """

    key: Key
    sent: dict[int, int]  # bytes by peer
    come: dict[int, int]
    encode: tuple[Work, ...]
    decode: tuple[Work, ...]
    lane: int = 0

    @property
    def bytes(self) -> int:
        return sum(self.sent.values())


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """The step needs the rows of a message, or the result of a sum."""

    on: "Post | Sum"


@dataclass(frozen=True, slots=True)
class Sum:
    """The start of a sum over all ranks."""

    key: Key
    bytes: int


Event = Work | Post | Wait | Sum


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of one rank, and the peak bytes of its tensors."""

    events: tuple[Event, ...]
    peak_bytes: int

    @property
    def posts(self) -> list[Post]:
        return [event for event in self.events if isinstance(event, Post)]

    @property
    def bytes(self) -> int:
        """Bytes of rows and their gradients that this rank sends."""
        return sum(post.bytes for post in self.posts if post.key.use == "rows")
