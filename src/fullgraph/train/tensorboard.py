"""Scalars of a run for TensorBoard."""

from dataclasses import asdict
from pathlib import Path

from fullgraph.errors import InputError
from fullgraph.report import EpochRecord
from fullgraph.train.trainer import Trainer


class TensorBoard:
    """Writes every number of an epoch's record under its name."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("--tensorboard needs an extra: pip install 'fullgraph[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder))

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        for name, value in asdict(record).items():
            if name != "epoch" and value is not None:
                self._writer.add_scalar(name, value, record.epoch)

    def close(self) -> None:
        self._writer.close()
