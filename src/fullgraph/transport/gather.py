"""Gather rows of all ranks, on every rank or on some."""

from collections.abc import Callable

import torch
from torch import Tensor

from fullgraph.transport.base import Transport
from fullgraph.transport.key import Key

Wants = Callable[[int, int], bool]  # (receiver, sender) -> does the receiver want the sender's rows?


def gather_rows(x: Tensor, transport: Transport, key: Key, wants: Wants = lambda receiver, sender: True) -> Tensor:
    """Return all ranks' rows in rank order, or only those that this rank wants. Row counts may differ by rank."""
    counts = torch.zeros(transport.size, dtype=torch.int64)
    counts[transport.rank] = len(x)
    counts = transport.all_reduce(Key(f"{key.channel}/counts", key.step), counts).wait()
    wire = x.contiguous().view(-1).view(torch.uint8) if len(x) else None
    row = x[0:1].nbytes if len(x) else x.new_empty((1, *x.shape[1:])).nbytes
    peers = [peer for peer in range(transport.size) if peer != transport.rank]
    outgoing = {peer: wire for peer in peers if wire is not None and wants(peer, transport.rank)}
    incoming = {peer: int(counts[peer]) * row for peer in peers if counts[peer] and wants(transport.rank, peer)}
    wires = transport.begin(key, outgoing, incoming).wait()
    rows = {peer: wire.to(x.device).view(x.dtype).view(-1, *x.shape[1:]) for peer, wire in wires.items()}
    rows[transport.rank] = x if wants(transport.rank, transport.rank) else x[:0]
    return torch.cat([rows[peer] for peer in sorted(rows)])
