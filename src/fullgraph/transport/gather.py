"""Rows of all ranks, on every rank."""

import torch
from torch import Tensor

from fullgraph.transport.base import Transport
from fullgraph.transport.key import Key


def gather_rows(x: Tensor, transport: Transport, key: Key) -> Tensor:
    """All ranks' rows in rank order; ranks may hold different numbers of them."""
    counts = torch.zeros(transport.size, dtype=torch.int64)
    counts[transport.rank] = len(x)
    counts = transport.all_reduce(Key(f"{key.channel}/counts", key.step), counts).wait()
    wire = x.contiguous().view(-1).view(torch.uint8)
    row = x[0:1].nbytes if len(x) else x.new_empty((1, *x.shape[1:])).nbytes
    peers = [peer for peer in range(transport.size) if peer != transport.rank]
    outgoing = {peer: wire for peer in peers if len(x)}
    incoming = {peer: int(counts[peer]) * row for peer in peers if counts[peer]}
    wires = transport.begin(key, outgoing, incoming).wait()
    rows = {peer: wire.to(x.device).view(x.dtype).view(-1, *x.shape[1:]) for peer, wire in wires.items()}
    rows[transport.rank] = x
    return torch.cat([rows[peer] for peer in sorted(rows)])
