"""Gather rows, numbers and texts of all ranks, on every rank or on some."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullgraph.transport.base import Transport
from fullgraph.transport.key import Key

Wants = Callable[[int, int], bool]  # (receiver, sender) -> does the receiver want the sender's rows?


def barrier(transport: Transport, key: Key) -> None:
    """Wait until every rank has come here."""
    transport.all_reduce(key, torch.zeros(1)).wait()


def rank_table(transport: Transport, key: Key, values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Every rank's `values` on every rank, a row per rank: each rank fills its own row, and the tables are summed."""
    mine = torch.as_tensor(values, dtype=dtype)
    table = mine.new_zeros(transport.size, *mine.shape)
    table[transport.rank] = mine
    return transport.all_reduce(key, table).wait()


def gather_rows(x: Tensor, transport: Transport, key: Key, wants: Wants = lambda receiver, sender: True) -> Tensor:
    """Return all ranks' rows in rank order, or only those that this rank wants. Row counts may differ by rank."""
    counts = rank_table(transport, Key(f"{key.channel}/counts", key.step), len(x), torch.int64)
    wire = x.contiguous().view(-1).view(torch.uint8) if len(x) else None
    row = x[0:1].nbytes if len(x) else x.new_empty((1, *x.shape[1:])).nbytes
    peers = [peer for peer in range(transport.size) if peer != transport.rank]
    outgoing = {peer: wire for peer in peers if wire is not None and wants(peer, transport.rank)}
    incoming = {peer: int(counts[peer]) * row for peer in peers if counts[peer] and wants(transport.rank, peer)}
    wires = transport.begin(key, outgoing, incoming).wait()
    rows = {peer: wire.to(x.device).view(x.dtype).view(-1, *x.shape[1:]) for peer, wire in wires.items()}
    rows[transport.rank] = x if wants(transport.rank, transport.rank) else x[:0]
    return torch.cat([rows[peer] for peer in sorted(rows)])


def gather_texts(text: str, transport: Transport, key: Key, wants: Wants = lambda receiver, sender: True) -> list[str]:
    """Texts of the ranks that this one wants, as plain bytes: nothing that comes over a network is ever unpickled."""
    data = torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).copy())
    lengths = rank_table(transport, Key(f"{key.channel}/length", key.step), len(data), torch.int64).tolist()
    rows = gather_rows(data, transport, key, wants)
    mine = [length for peer, length in enumerate(lengths) if wants(transport.rank, peer)]
    return [part.numpy().tobytes().decode(errors="replace") for part in rows.split(mine)] if mine else []


def texts_for_first(text: str, transport: Transport, key: Key) -> list[str]:
    """Every rank's text on rank 0, and nothing on the others. All ranks call it."""
    return gather_texts(text, transport, key, wants=lambda receiver, sender: receiver == 0)
