"""Check that all hosts are about to do the same, before any of them begins."""

import json
import socket
from collections.abc import Callable, Mapping

import torch

from fullgraph.errors import InputError, one_line
from fullgraph.transport.base import Transport
from fullgraph.transport.gather import gather_rows
from fullgraph.transport.key import Key

TROUBLE = "trouble"
SHOWN = 4  # an error names at most this many differences


def gather_texts(text: str, transport: Transport, key: Key) -> list[str]:
    """Return every rank's text in rank order. Texts travel as plain bytes: data from a network is never unpickled."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8)
    lengths = gather_rows(torch.tensor([len(data)]), transport, Key(f"{key.channel}/length", key.step)).tolist()
    texts = gather_rows(data, transport, key).split(lengths)
    return [bytes(part.tolist()).decode(errors="replace") for part in texts]


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
