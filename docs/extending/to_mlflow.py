"""A callback: every number of an epoch goes to MLflow, into a folder or to a server."""

from dataclasses import asdict, dataclass

import mlflow

from fullgraph.values import Value


@dataclass(frozen=True)
class MLflow(Value):
    """A resumed run sends its epochs again, to a new MLflow run."""

    store: str = ""  # the address of a server or a database, or a folder; empty: the value of MLFLOW_TRACKING_URI
    experiment: str = "fullgraph"

    def __call__(self, record):
        if record.epoch == 1:
            mlflow.set_tracking_uri(self.store or None)
            mlflow.set_experiment(self.experiment)
        numbers = {name: value for name, value in asdict(record).items() if value is not None}
        mlflow.log_metrics(numbers, step=record.epoch)

    def close(self):
        mlflow.end_run()
