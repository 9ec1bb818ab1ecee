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
    """Bits per second of a text such as 200mbit; None if the text has another form."""
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)})", text.lower())
    return float(found[1]) * UNITS[found[2]] if found else None


@dataclass(frozen=True, kw_only=True)
class Link(Value):
    """The bytes that a port carries in each direction, and the costs of messages.

    latency_s: until the first byte arrives. message_s, core_s_per_byte: core time on each end, per message and per
    byte.
    """

    bits_per_s: Rate = 10e9
    latency_s: Seconds = 50e-6
    message_s: Seconds = 2e-6
    core_s_per_byte: Annotated[float, Range(0, 1)] = 0.0


@dataclass(frozen=True, kw_only=True)
class Cluster(Value):
    """Equal machines with some ranks each; a machine has one port to the others, and its ranks communicate over
    `inside`.

    cores: the cores of a machine, for its ranks and their threads; with GPUs, one core per rank.
    crowding: with twice as many active ranks and threads as cores, their work grows by half of this.
    together: the machines are emulated on one machine and share its cores.
    rates: the name of the rates of its work, see rates.py.
    """

    machines: Annotated[int, Range(1, 65535)] = 1
    ranks_per_machine: Annotated[int, Range(1, 1024)] = 1
    cores: Annotated[int, Range(1, 4096)] = 1
    crowding: Annotated[float, Range(0, 10)] = 0.6
    together: bool = False
    memory_bytes: Annotated[int, Range(0, 2**62)] = 0  # memory of a rank; 0: unknown
    rates: str = "here"
    link: Link = field(default_factory=Link)
    inside: Link = field(default_factory=lambda: Link(bits_per_s=40e9, latency_s=20e-6))

    @property
    def ranks(self) -> int:
        return self.machines * self.ranks_per_machine

    def machine(self, rank: int) -> int:
        return rank // self.ranks_per_machine

    def text(self) -> str:
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
            raise InputError(f"{path} is not a cluster file ({one_line(error, 100)}); see docs/planning.md") from error
        return read_value(cls, tree, str(path))
