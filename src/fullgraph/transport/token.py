"""A random name that all ranks share."""

import secrets

import torch

from fullgraph.transport.base import Transport
from fullgraph.transport.key import Key

BYTES = 16


def shared_token(transport: Transport, key: Key) -> str:
    """Return 128 random bits of rank 0 as 32 hexadecimal digits, on every rank.

    They do not come from torch's generator: simulated ranks share it, and another rank may be drawing its weights.
    """
    drawn = torch.zeros(BYTES, dtype=torch.int64)
    if transport.rank == 0:
        drawn = torch.tensor(list(secrets.token_bytes(BYTES)), dtype=torch.int64)
    return bytes(transport.all_reduce(key, drawn).wait().tolist()).hex()
