"""Memory limits for the messages of one layer."""

from dataclasses import dataclass

import torch

from fullgraph.device import by_kind, free_bytes, is_accelerator
from fullgraph.errors import InputError
from fullgraph.resources import free_memory
from fullgraph.words import bytes_in

SHARE = 4  # messages of one layer stay whole if they take less than free memory / SHARE
MOST = {"gpu": 4 << 30, "cpu": 512 << 20}  # bytes of one chunk without a user's limit; larger chunks are no faster
AUTO = "auto"


@dataclass(frozen=True)
class Limit:
    """Limits for messages, in bytes."""

    whole: int  # a layer that needs more runs in chunks
    chunk: int  # of one chunk


@dataclass(frozen=True)
class Budget:
    """`nbytes` for the messages of one layer; None: a share of free memory."""

    nbytes: int | None = None

    @staticmethod
    def of(text: str | int | None) -> "Budget":
        """Read `auto`, a number of bytes, or a size such as 2GiB."""
        if text is None or text == AUTO:
            return Budget()
        nbytes = text if isinstance(text, int) and not isinstance(text, bool) else bytes_in(str(text))
        if not nbytes or nbytes < 0:
            raise InputError(f"message_memory={text}: give auto, or a size such as 2GiB or 500MB")
        return Budget(nbytes)

    def limit(self, device: torch.device, ranks: int) -> Limit:
        """The limit for a layer now; ranks of one host share its memory."""
        if self.nbytes is not None:
            return Limit(self.nbytes, self.nbytes)
        share = (free_bytes(device) if is_accelerator(device) else free_memory() // ranks) // SHARE
        return Limit(share, min(share, by_kind(MOST, device)))
