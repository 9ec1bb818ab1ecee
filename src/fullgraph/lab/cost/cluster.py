"""Machines and the links between them, as a value that a TOML file holds."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fullgraph.errors import InputError, one_line
from fullgraph.values import Range, Value, read_value, tree_of

Rate = Annotated[float, Range(1e3, 1e16)]
Seconds = Annotated[float, Range(0, 3600)]


UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_of(text: str) -> float | None:
    """Bits a second, such as 200mbit; None: it is not written so."""
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)})", text.lower())
    return float(found[1]) * UNITS[found[2]] if found else None


@dataclass(frozen=True, kw_only=True)
class Link(Value):
    """What a port carries each way, and what else messages take.

    latency_s: until the first byte is there. message_s, core_s_per_byte: of a core on each end, for each message and
    for each of its bytes.
    """

    bits_per_s: Rate = 10e9
    latency_s: Seconds = 50e-6
    message_s: Seconds = 2e-6
    core_s_per_byte: Annotated[float, Range(0, 1)] = 0.0


@dataclass(frozen=True, kw_only=True)
class Cluster(Value):
    """Equal machines, each with some ranks; a machine has one port to the others, and its ranks talk by `inside`.

    cores: of a machine, for its ranks and their threads; with GPUs, one a rank, for the work is theirs.
    crowding: with twice as many ranks and threads at work as cores, their work grows by half of this.
    together: the machines are emulated on one, and share its cores.
    rates: the name of the rates that its work takes, see rates.py.
    """

    machines: Annotated[int, Range(1, 65535)] = 1
    ranks_per_machine: Annotated[int, Range(1, 1024)] = 1
    cores: Annotated[int, Range(1, 4096)] = 1
    crowding: Annotated[float, Range(0, 10)] = 0.6
    together: bool = False
    memory_bytes: Annotated[int, Range(0, 2**62)] = 0  # of a rank; 0: not known
    rates: str = "here"
    link: Link = field(default_factory=Link)
    inside: Link = field(default_factory=lambda: Link(bits_per_s=40e9, latency_s=20e-6))

    @property
    def ranks(self) -> int:
        return self.machines * self.ranks_per_machine

    def machine(self, rank: int) -> int:
        return rank // self.ranks_per_machine

    def text(self) -> str:
        """As a file holds it."""
        plain, links = [], []
        for name, value in tree_of(self).items():
            if isinstance(value, dict):
                links += ["", f"[{name}]", *(f"{key} = {number!r}" for key, number in value.items())]
            else:
                plain.append(f"{name} = {json.dumps(value)}")
        return "\n".join([*plain, *links, ""])

    @classmethod
    def read(cls, path: Path) -> Cluster:
        try:
            tree = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"{path} is no cluster file ({one_line(error, 100)}); see docs/planning.md") from error
        return read_value(cls, tree, str(path))
