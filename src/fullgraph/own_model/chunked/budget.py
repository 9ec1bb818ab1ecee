"""Memory limits for the messages of one layer."""

from dataclasses import dataclass

import torch

from fullgraph.errors import InputError
from fullgraph.resources import free_memory
from fullgraph.words import bytes_in

SHARE = 4  # messages of one layer stay whole if they take less than free memory / SHARE
MOST = {"cuda": 4 << 30, "cpu": 512 << 20}  # bytes of one chunk without a user's limit; larger chunks are no faster
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
        share = _free(device, ranks) // SHARE
        return Limit(share, min(share, MOST.get(device.type, MOST["cpu"])))


def _free(device: torch.device, ranks: int) -> int:
    if device.type != "cuda":
        return free_memory() // ranks
    # torch keeps it for later tensors
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused
