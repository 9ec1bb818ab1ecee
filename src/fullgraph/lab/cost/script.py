"""What one rank does in a step, in order: pieces of work, messages posted, messages waited for, sums over ranks."""

from dataclasses import dataclass

from fullgraph.transport import Key


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work: its kind, and the sizes that its time depends on (ops/kernels_meta.py, dry.py)."""

    kind: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Post:
    """A message to some peers and from others. Encoding and decoding are done beside the step, in threads of their own.

    lane: which queue of the transport it is in.
    """

    key: Key
    sent: dict[int, int]  # bytes, by peer
    come: dict[int, int]
    encode: tuple[Work, ...]
    decode: tuple[Work, ...]
    lane: int = 0

    @property
    def bytes(self) -> int:
        return sum(self.sent.values())


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """The step needs what a message brings, or a sum."""

    on: "Post | Sum"


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over all ranks, under way from here on."""

    key: Key
    bytes: int


Event = Work | Post | Wait | Sum


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of one rank, and the most bytes that its tensors took at a time."""

    events: tuple[Event, ...]
    peak_bytes: int

    @property
    def posts(self) -> list[Post]:
        return [event for event in self.events if isinstance(event, Post)]

    @property
    def bytes(self) -> int:
        """Of rows and their gradients that this rank sends."""
        return sum(post.bytes for post in self.posts if post.key.use == "rows")
