"""Which ranks share a host, and so exchange messages without its network link."""

import torch

from fullgraph.proc import network
from fullgraph.transport.base import Transport
from fullgraph.transport.gather import rank_table
from fullgraph.transport.key import Key

Hosts = tuple[int, ...]  # by rank, the first rank of its host


def hosts_of(transport: Transport, name: str) -> Hosts | None:
    """The host of every rank; None if there is only one host, or only one rank on each. All ranks call it."""
    if transport.size < 3:
        return None
    numbers = rank_table(transport, Key(f"{name} hosts", 0), network(), torch.int64).tolist()
    hosts = tuple(numbers.index(number) for number in numbers)
    return hosts if 1 < len(set(hosts)) < len(hosts) else None
