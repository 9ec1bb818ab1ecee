"""The settings of runs as texts: those in which runs differ, and groups of runs that differ in their seed only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import Any, NamedTuple

from fullgraph.values import flat

Settings = dict[str, str]
# Where a run lies, who it is, and what only decides how it is shown or stored.
ASIDE = ("schema", "id", "checksum", "shards", "shards_checksum", "train.timeout", "train.report", "train.trace")
SEED = "train.seed"
NAMES = ("graph", "parts", "strategy.name", "model.name")  # have columns of their own
CONFIDENCE = 0.95


def settings_of(config: Mapping[str, Any]) -> Settings:
    """All values of a config.json by dotted name; empty values are left out."""
    found = {}
    for name, value in flat(dict(config)).items():
        if name in ASIDE or name.startswith("files."):
            continue
        if isinstance(value, list):
            found[name] = ", ".join(map(str, value)) or "none"
        elif value not in ("", None):
            found[name] = str(value)
    return found


def differing(runs: Sequence[Settings], leave: Sequence[str] = (*NAMES, SEED)) -> list[str]:
    """The names of settings that are not equal in all runs. Options of strategies, models and other named values are
    compared among runs of the same name: other names have other options.
    """
    names = dict.fromkeys(name for run in runs for name in run if name not in leave)
    return [name for name in names if _differs(name, runs)]


def _differs(name: str, runs: Sequence[Settings]) -> bool:
    parts = name.removesuffix(".name").split(".")
    owners = [".".join([*parts[:length], "name"]) for length in range(1, len(parts))]
    values: dict[tuple[str, ...], set[str]] = {}
    for run in runs:
        values.setdefault(tuple(run.get(owner, "") for owner in owners), set()).add(run.get(name, ""))
    return any(len(found) > 1 for found in values.values())


def short(name: str) -> str:
    """'strategy.codec.bits' -> 'bits';  'strategy.codec.name' -> 'codec'."""
    words = name.split(".")
    return words[-2] if words[-1] == "name" and len(words) > 1 else words[-1]


def by_seed(runs: Sequence[Settings]) -> list[list[int]]:
    """The places of runs that differ in their seed only, group by group."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(tuple(sorted(item for item in run.items() if item[0] != SEED)), []).append(place)
    return list(groups.values())


class Spread(NamedTuple):
    """A mean, and half of its 95 % interval over seeds; None: there is one seed."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], None)
        from scipy.special import stdtrit

        factor = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
        return cls(mean(values), factor * stdev(values) / sqrt(len(values)))

    def __str__(self) -> str:
        return f"{self.mean:.4f}" if self.half is None else f"{self.mean:.4f} \N{PLUS-MINUS SIGN} {self.half:.4f}"
