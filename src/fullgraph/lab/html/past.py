"""A run's folder as a page reads it: its config as text, its record, and its result and profile if they exist.

Nothing that a config names is imported: a page about somebody else's run runs none of their code.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullgraph.errors import InputError
from fullgraph.report.profile import Profile, read_profile
from fullgraph.report.record import EpochRecord, read_metrics
from fullgraph.report.tables import Outcome, read_outcome
from fullgraph.storage import read_document
from fullgraph.values import flat

FIX = "name the folder of a run"
Facts = list[tuple[str, str]]  # names and values for a reader


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A run, finished or not, as a page shows it."""

    folder: Path
    name: str  # distinguishes the run from others
    graph: str
    strategy: str
    model: str
    partitioner: str
    ranks: int
    seed: str
    planned: int  # planned epochs
    options: Facts
    command: str  # repeats the run
    records: list[EpochRecord]
    outcome: Outcome | None  # None: the run is not finished
    result: Facts
    profile: Profile | None

    @property
    def done(self) -> bool:
        return self.outcome is not None

    @property
    def metric(self) -> str:
        found = self.outcome.metric if self.outcome else self.profile.metric if self.profile else "score"
        return found.replace("_", " ")

    @property
    def smaller(self) -> bool:
        """Whether a smaller score is better."""
        return self.outcome.smaller_is_better if self.outcome else False

    @property
    def versions(self) -> Facts:
        return sorted(self.profile.versions.items()) if self.profile else []


def read_run(folder: Path, records: list[EpochRecord] | None = None) -> PastRun:
    """Read the run in a folder; missing files are left out, damaged ones refused.

    records: its epochs, if the caller has them; else they are read.
    """
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder / 'config.json'} does not exist; {FIX} that `fullgraph train` wrote")
    config = read_document(folder / "config.json", fix=FIX)
    finished = (folder / "result.json").is_file()
    outcome = read_outcome(folder) if finished else None
    metrics = folder / "metrics.jsonl"
    if records is None:
        records = read_metrics(metrics, outcome.epochs if outcome else None) if metrics.is_file() else []
    train = config["train"] if isinstance(config.get("train"), dict) else {}
    return PastRun(
        folder=folder,
        name=folder.resolve().name,
        graph=str(config.get("graph", "?")),
        strategy=_label(config.get("strategy")),
        model=_label(config.get("model")),
        partitioner=_label(config.get("partitioner")),
        ranks=_whole(config.get("parts"), 1),
        seed=str(train.get("seed", "?")),
        planned=_whole(train.get("epochs"), len(records)),
        options=list(_flat({k: v for k, v in config.items() if k not in ("schema", "id", "shards_checksum")})),
        command=_command(folder, config),
        records=records,
        outcome=outcome,
        result=list(_flat(read_document(folder / "result.json", fix=FIX))) if finished else [],
        profile=read_profile(folder),
    )


def _label(value: Any) -> str:
    """A value's name; a file appears without its folder."""
    name = str(value.get("name", "?")) if isinstance(value, dict) else str(value or "as it came")
    return name.rpartition("/")[2]


def _whole(value: Any, other: int) -> int:
    return value if isinstance(value, int) else other


def _flat(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The values of a tree as texts, by dotted name; empty values are left out."""
    for name, value in flat(tree).items():
        if isinstance(value, list):
            yield name, ", ".join(map(str, value)) or "none"
        elif value not in ("", None):
            yield name, str(value)


def _command(folder: Path, config: dict[str, Any]) -> str:
    """The command that repeats the run from the same shards; it does not need the original graph."""
    shards = folder / str(config.get("shards") or "shards")
    words = ["fullgraph", "train", str(shards), "--config", str(folder / "config.json"), "--out", f"{folder}-again"]
    return shlex.join(words)
