"""The name of one message. Seeds, tags and texts of timeouts are derived from it."""

import zlib
from dataclasses import dataclass
from typing import Literal

Way = Literal["forward", "backward"]
Use = Literal["rows", "weights", "other"]  # rows: features and their gradients; weights: the gradient all-reduce


@dataclass(frozen=True, slots=True)
class Key:
    """The channel, step, direction (and, in a pipeline, chunk) of a message.

    `ends` (sender, receiver) and `run` (the run's seed) enter the random seed but not the tag: messages with the same
    key share a tag and still draw different random numbers.
    `use` is the purpose of the message; meters read it.
    """

    channel: str
    step: int
    way: Way = "forward"
    chunk: int = 0
    ends: tuple[int, int] | None = None
    use: Use = "other"
    run: int = 0

    def __str__(self) -> str:
        chunk = f"/chunk {self.chunk}" if self.chunk else ""
        return f"{self.channel}/step {self.step}/{self.way}{chunk}"

    @property
    def tag(self) -> int:
        """A 31-bit tag. Two keys may share one: every rank posts its messages in the same order."""
        return zlib.crc32(str(self).encode()) & 0x7FFFFFFF

    @property
    def seed(self) -> int:
        """A 64-bit seed that sender and receiver compute without communication."""
        text = f"{self}/{self.ends}/{self.run}".encode()
        return zlib.crc32(text) << 32 | zlib.crc32(text[::-1])
