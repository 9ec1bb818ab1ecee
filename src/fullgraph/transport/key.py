"""The name of one message; seeds, tags and the texts of timeouts derive from it."""

import zlib
from dataclasses import dataclass
from typing import Literal

Way = Literal["forward", "backward"]
Use = Literal["rows", "weights", "other"]  # rows: of training, and their gradients; weights: the weights' gradients


@dataclass(frozen=True, slots=True)
class Key:
    """Which channel, at which step, which way (and which chunk of a pipeline) a message belongs to.

    `ends`, the sender and the receiver, and `run`, the run's own seed, enter the seed alone: messages of one key share
    a tag, not their noise.
    `use` is what the message is for, which a meter asks.
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
        """A 31-bit tag. A clash is harmless: every rank posts its messages in the same order."""
        return zlib.crc32(str(self).encode()) & 0x7FFFFFFF

    @property
    def seed(self) -> int:
        """A 64-bit seed that sender and receiver share without talking."""
        text = f"{self}/{self.ends}/{self.run}".encode()
        return zlib.crc32(text) << 32 | zlib.crc32(text[::-1])
