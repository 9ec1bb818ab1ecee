"""Hosts say what they are about to do, and go on only if that is the same everywhere."""

import json
import socket
from collections.abc import Callable, Mapping

from fullgraph.errors import InputError, one_line
from fullgraph.transport.base import Transport
from fullgraph.transport.gather import gather_texts
from fullgraph.transport.key import Key

TROUBLE = "trouble"
SHOWN = 4  # differences in the line that names them


def agree(transport: Transport, about: Callable[[], Mapping[str, object]], what: str) -> None:
    """Refuse, on all ranks and in the same words, unless every rank is about to do the same.

    about: what this rank is about to do, by name; an InputError of one rank's is every rank's.
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
            told = "; ".join(f"{name} is {_told(other, name)}, not {_told(first, name)}" for name in names[:SHOWN])
            more = f" (and {len(names) - SHOWN} more)" if len(names) > SHOWN else ""
            who = f"rank {rank} on {one_line(other.get('host', ''), 80)} and rank 0 on {one_line(first['host'], 80)}"
            raise InputError(
                f"{who} do not {what} the same: on the first, {told}{more}; give every host the same command, "
                "files and versions"
            )


def _told(about: Mapping[str, str], name: str) -> str:
    return one_line(about[name], 60) or "empty" if name in about else "not there"
