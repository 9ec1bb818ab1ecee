"""Gather rows, numbers and texts of all ranks, on every rank or on some; check that all are about to do the same."""

import json
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullgraph.errors import InputError, one_line
from fullgraph.transport.base import ByPeer, Transport
from fullgraph.transport.key import Key

Wants = Callable[[int, int], bool]  # (receiver, sender) -> does the receiver want the sender's rows?
BYTES = 16
TROUBLE = "trouble"
SHOWN = 4  # an error names at most this many differences


def barrier(transport: Transport, key: Key) -> None:
    """Wait until every rank has come here."""
    transport.all_reduce(key, torch.zeros(1)).wait()


def rank_table(transport: Transport, key: Key, values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return every rank's `values` on every rank, a row per rank: each rank fills its row, and the tables are
    summed.
    """
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


def exchanged(values: ByPeer, kind: torch.dtype, transport: Transport, name: str) -> ByPeer:
    """By sender, the numbers that ranks have for this one; nobody else knows how many. A rank may send to itself."""
    lengths = [len(values[peer]) if peer in values else 0 for peer in range(transport.size)]
    come = rank_table(transport, Key(f"{name} lengths", 0), lengths, torch.int64)[:, transport.rank].tolist()
    others = {peer: of_peer for peer, of_peer in values.items() if peer != transport.rank and len(of_peer)}
    wires = {peer: of_peer.contiguous().view(torch.uint8) for peer, of_peer in others.items()}
    incoming = {peer: n * kind.itemsize for peer, n in enumerate(come) if n and peer != transport.rank}
    found = transport.begin(Key(name, 0), wires, incoming).wait()
    numbers = {peer: wire.cpu().clone().view(kind) for peer, wire in found.items()}
    if come[transport.rank]:
        numbers[transport.rank] = values[transport.rank]
    return {peer: numbers[peer] for peer in sorted(numbers)}


def gather_texts(text: str, transport: Transport, key: Key, wants: Wants = lambda receiver, sender: True) -> list[str]:
    """Return the texts of the wanted ranks. They travel as plain bytes: data from a network is never unpickled."""
    data = torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).copy())
    lengths = rank_table(transport, Key(f"{key.channel}/length", key.step), len(data), torch.int64).tolist()
    rows = gather_rows(data, transport, key, wants)
    mine = [length for peer, length in enumerate(lengths) if wants(transport.rank, peer)]
    return [part.numpy().tobytes().decode(errors="replace") for part in rows.split(mine)] if mine else []


def texts_for_first(text: str, transport: Transport, key: Key) -> list[str]:
    """Return every rank's text on rank 0, and an empty list on the others. All ranks call it."""
    return gather_texts(text, transport, key, wants=lambda receiver, sender: receiver == 0)


def text_of_first(text: str, transport: Transport, key: Key) -> str:
    """Rank 0's text on every rank. All ranks call it."""
    return gather_texts(text, transport, key, wants=lambda receiver, sender: sender == 0)[0]


def shared_token(transport: Transport, key: Key) -> str:
    """Return 128 random bits of rank 0 as 32 hexadecimal digits, on every rank.

    They do not come from torch's generator: simulated ranks share it, and another rank may be drawing its weights.
    """
    drawn = torch.zeros(BYTES, dtype=torch.int64)
    if transport.rank == 0:
        drawn = torch.tensor(list(secrets.token_bytes(BYTES)), dtype=torch.int64)
    return bytes(transport.all_reduce(key, drawn).wait().tolist()).hex()


def agree(transport: Transport, about: Callable[[], Mapping[str, object]], what: str) -> None:
    """Raise the same InputError on all ranks unless every rank is about to do the same.

    about: returns a description of this rank's work, by name. If it raises InputError, all ranks raise that error.
    """
    if transport.size == 1:
        return
    mine = {"host": socket.gethostname(), TROUBLE: ""}
    try:
        mine |= {name: str(value) for name, value in about().items()}
    except InputError as error:
        mine[TROUBLE] = str(error)
    first, *others = map(json.loads, gather_texts(json.dumps(mine), transport, Key(f"agree/{what}", 0)))
    for rank, one in enumerate((first, *others)):
        if one[TROUBLE]:
            raise InputError(f"rank {rank} on {one_line(one['host'], 80)}: {one_line(one[TROUBLE], 1000)}")
    for rank, other in enumerate(others, 1):
        names = [name for name in {**first, **other} if name != "host" and first.get(name) != other.get(name)]
        if names:
            differences = "; ".join(
                f"{name} is {_value_of(other, name)}, not {_value_of(first, name)}" for name in names[:SHOWN]
            )
            more = f" (and {len(names) - SHOWN} more)" if len(names) > SHOWN else ""
            who = f"rank {rank} on {one_line(other.get('host', ''), 80)} and rank 0 on {one_line(first['host'], 80)}"
            raise InputError(
                f"{who} do not {what} the same: on the first, {differences}{more}; give every host the same command, "
                "files and versions"
            )


def _value_of(about: Mapping[str, str], name: str) -> str:
    return one_line(about[name], 60) or "empty" if name in about else "not there"
