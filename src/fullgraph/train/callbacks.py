"""A user's own callbacks: rank 0 calls them after every epoch, and all ranks learn whether one ends the run."""

from collections.abc import Callable

import torch

from fullgraph.own_code import own_code
from fullgraph.report import EpochRecord
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Key, Transport

Callback = Callable[[EpochRecord], bool | None]  # True: stop after this epoch


class Callbacks:
    """Calls the callbacks in order. A resumed run calls them again for past epochs, which restores their state."""

    def __init__(self, callbacks: tuple[Callback, ...], transport: Transport) -> None:
        self.callbacks, self.transport = callbacks, transport

    def close(self) -> None:
        """Training has ended, early or not: call each callback's `close` method, if it has one."""
        for callback in self.callbacks if self.transport.rank == 0 else ():
            with own_code(callback):
                getattr(callback, "close", lambda: None)()

    def replay(self, trainer: Trainer) -> None:
        for record in trainer.records:
            self(trainer, record)

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if not self.callbacks:
            return
        answers = [self._ask(callback, record) for callback in self.callbacks] if self.transport.rank == 0 else []
        end = torch.tensor([int(any(answers))])
        trainer.ended_by_callback = bool(self.transport.all_reduce(Key("callbacks", record.epoch), end).wait())

    @staticmethod
    def _ask(callback: Callback, record: EpochRecord) -> bool:
        with own_code(callback, fix="a callback is called with the record of an epoch; true ends the run"):
            return bool(callback(record))
