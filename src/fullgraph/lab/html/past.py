"""A run's folder as a page reads it: its config as text, its record, and its result and profile if they exist.

Nothing that a config names is imported: a page about somebody else's run runs none of their code.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullgraph.errors import InputError
from fullgraph.report.evaluation import Evaluation, read_evaluation
from fullgraph.report.profile import Profile, read_profile
from fullgraph.report.record import EpochRecord, read_metrics
from fullgraph.report.settings import settings_of
from fullgraph.report.tables import Outcome, read_outcome
from fullgraph.storage import in_use, read_document

FIX = "name the folder of a run"
SMALLER = ("rmse", "mae")  # metrics of which a smaller value is better
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
    evaluation: Evaluation | None = None
    usual_metric: str = "score"  # the metric that its config and its graph imply
    going_on: bool = False  # a process is training it now
    written_s: float = 0.0  # when its last epoch was written, in seconds since 1970

    @property
    def done(self) -> bool:
        return self.outcome is not None

    @property
    def metric(self) -> str:
        found = self.outcome.metric if self.outcome else self.profile.metric if self.profile else self.usual_metric
        return found.replace("_", " ")

    @property
    def smaller(self) -> bool:
        """Whether a smaller score is better."""
        return self.outcome.smaller_is_better if self.outcome else self.metric in SMALLER

    @property
    def versions(self) -> Facts:
        return sorted(self.profile.versions.items()) if self.profile else []


def read_run(
    folder: Path, records: list[EpochRecord] | None = None, known: dict[str, EpochRecord] | None = None
) -> PastRun:
    """Read the run in a folder; missing files are left out, damaged ones refused.

    records: its epochs, if the caller trained it and has them; else they are read, and a process may train it now.
    known: records of lines that were read before, as in `read_metrics`.
    """
    ours = records is not None
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder / 'config.json'} does not exist; {FIX} that `fullgraph train` wrote")
    config = read_document(folder / "config.json", fix=FIX)
    finished = (folder / "result.json").is_file()
    outcome = read_outcome(folder) if finished else None
    metrics = folder / "metrics.jsonl"
    if records is None:
        records = read_metrics(metrics, outcome.epochs if outcome else None, known) if metrics.is_file() else []
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
        options=list(settings_of(config).items()),
        command=_command(folder, config),
        records=records,
        outcome=outcome,
        result=list(settings_of(read_document(folder / "result.json", fix=FIX)).items()) if finished else [],
        profile=read_profile(folder),
        evaluation=read_evaluation(folder) if finished else None,
        usual_metric=_usual_metric(folder, config, train),
        going_on=not ours and not finished and in_use(folder),
        written_s=metrics.stat().st_mtime if metrics.is_file() else 0.0,
    )


def _usual_metric(folder: Path, config: dict[str, Any], train: dict[str, Any]) -> str:
    """The metric of a run that is not finished: the one it names, or the first of its task."""
    named = _label(train.get("metric", "auto"))
    if named != "auto":
        return named
    task = _label(train.get("task", "auto"))
    manifest = Path(str(config.get("shards") or folder / "shards")) / "manifest.json"
    graph = read_document(manifest, fix=FIX).get("graph") if manifest.is_file() else {}
    sets = isinstance(graph, dict) and bool(graph.get("multilabel"))
    usual = {"link": "roc_auc", "regression": "rmse", "classification": "micro_f1" if sets else "accuracy"}
    return usual.get(task, "score")


def _label(value: Any) -> str:
    """A value's name; a file appears without its folder."""
    name = str(value.get("name", "?")) if isinstance(value, dict) else str(value or "as it came")
    return name.rpartition("/")[2]


def _whole(value: Any, other: int) -> int:
    return value if isinstance(value, int) else other


def _command(folder: Path, config: dict[str, Any]) -> str:
    """The command that repeats the run from the same shards; it does not need the original graph."""
    shards = folder / str(config.get("shards") or "shards")
    words = ["fullgraph", "train", str(shards), "--config", str(folder / "config.json"), "--out", f"{folder}-again"]
    return shlex.join(words)
