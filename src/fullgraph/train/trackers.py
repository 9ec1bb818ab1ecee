"""Experiment trackers: TensorBoard, Weights & Biases and MLflow receive a run's settings, epochs and best scores.

A tracker never ends a run: after its first failure in training a note is printed, and the run goes on without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fullgraph.errors import InputError
from fullgraph.report import EpochRecord
from fullgraph.report.terminal import note
from fullgraph.train.trainer import Trainer

PROJECT = "fullgraph"
MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
LONGEST = 500  # characters of a setting, as MLflow takes them

Numbers = Mapping[str, float]


class About(NamedTuple):
    """The run, as a tracker describes it."""

    folder: Path
    id: str
    settings: Mapping[str, str]
    resumed: bool


class Tracker(Protocol):
    """Receives a run's numbers."""

    def log(self, numbers: Numbers, epoch: int) -> None: ...
    def finish(self, best: Numbers) -> None:
        """Training is over. best: the best epoch, and its scores."""


def require_tracker(name: str) -> None:
    """Refuse a tracker whose package is not installed, before anything is written."""
    module = MODULES.get(name)
    if module is not None and find_spec(module) is None:
        raise InputError(f"--log {name} needs an extra: pip install 'fullgraph[{name}]'")


class TensorBoard:
    """Writes event files into the run's folder."""

    def __init__(self, about: About) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("--log tensorboard needs an extra: pip install 'fullgraph[tensorboard]'") from error
        self._writer = SummaryWriter(str(about.folder / "tensorboard"))
        if not about.resumed:
            self._writer.add_text("settings", "\n".join(f"    {name}: {text}" for name, text in about.settings.items()))

    def log(self, numbers: Numbers, epoch: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, epoch)

    def finish(self, best: Numbers) -> None:
        epoch = int(best.get("epoch", 0))
        for name, value in best.items():
            if name != "epoch":
                self._writer.add_scalar(f"best/{name}", value, epoch)
        self._writer.close()


class WandB:
    """Sends to Weights & Biases; a resumed run continues its W&B run. WANDB_MODE=offline keeps the numbers here."""

    def __init__(self, about: About) -> None:
        self._run: Any = import_module("wandb").init(
            project=PROJECT, name=about.folder.name, id=about.id, resume="allow", config=dict(about.settings)
        )

    def log(self, numbers: Numbers, epoch: int) -> None:
        self._run.log(dict(numbers), step=epoch)

    def finish(self, best: Numbers) -> None:
        self._run.summary.update({f"best/{name}": value for name, value in best.items()})
        self._run.finish()


class MLflow:
    """Sends to the server or the store that MLFLOW_TRACKING_URI names; a resumed run continues its MLflow run."""

    def __init__(self, about: About) -> None:
        mlflow: Any = import_module("mlflow")
        self._mlflow = mlflow
        mlflow.set_experiment(PROJECT)
        tag = "fullgraph.run"
        found = mlflow.search_runs(filter_string=f"tags.`{tag}` = '{about.id}'", output_format="list", max_results=1)
        if found:
            mlflow.start_run(run_id=found[0].info.run_id)
            return
        mlflow.start_run(run_name=about.folder.name, tags={tag: about.id})
        mlflow.log_params({name: text[:LONGEST] for name, text in about.settings.items()})

    def log(self, numbers: Numbers, epoch: int) -> None:
        self._mlflow.log_metrics(dict(numbers), step=epoch)

    def finish(self, best: Numbers) -> None:
        self._mlflow.log_metrics({f"best/{name}": value for name, value in best.items()})
        self._mlflow.end_run()


TRACKERS: Mapping[str, Callable[[About], Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


class Tracking:
    """Called after every epoch on rank 0: gives a tracker every number of the epoch's record."""

    def __init__(self, name: str, about: About) -> None:
        self.name, self.about, self._best, self._failed = name, about, dict[str, float](), False
        self._tracker: Tracker | None = None

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        best = trainer.best
        scores = {name: value for name, value in best.scores.items() if value is not None}
        self._best = {"epoch": float(best.epoch), **scores} if best.epoch else {}
        values = ((name, value) for name, value in asdict(record).items() if name != "epoch")
        numbers = {name: float(value) for name, value in values if value is not None}
        self._try(lambda tracker: tracker.log(numbers, record.epoch))

    def close(self) -> None:
        self._try(lambda tracker: tracker.finish(self._best))

    def _try(self, call: Callable[[Tracker], object]) -> None:
        """Call the tracker, which is built at the first call."""
        if self._failed:
            return
        try:
            if self._tracker is None:
                self._tracker = TRACKERS[self.name](self.about)
            call(self._tracker)
        except Exception as error:
            self._failed = True
            note(f"--log {self.name} failed ({type(error).__name__}: {error}); the run goes on without it")
