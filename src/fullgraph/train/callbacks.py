"""A user's own callbacks: rank 0 tells them of every epoch, and all ranks hear whether one wants to end the run."""

from collections.abc import Callable

import torch

from fullgraph.own_code import own_code
from fullgraph.report import EpochRecord
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Key, Transport

Callback = Callable[[EpochRecord], bool | None]  # True: this epoch is the last


class Callbacks:
    """Calls them in their order. When a run is resumed they are told of its epochs again: they know what they knew."""

    def __init__(self, callbacks: tuple[Callback, ...], transport: Transport) -> None:
        self.callbacks, self.transport = callbacks, transport

    def close(self) -> None:
        """Training is over, to its end or not: those that have a `close` of their own hear of it."""
        for callback in self.callbacks if self.transport.rank == 0 else ():
            with own_code(callback):
                getattr(callback, "close", lambda: None)()

    def retell(self, trainer: Trainer) -> None:
        for record in trainer.records:
            self(trainer, record)

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if not self.callbacks:
            return
        wishes = [self._ask(callback, record) for callback in self.callbacks] if self.transport.rank == 0 else []
        end = torch.tensor([int(any(wishes))])
        trainer.told_to_end = bool(self.transport.all_reduce(Key("callbacks", record.epoch), end).wait())

    @staticmethod
    def _ask(callback: Callback, record: EpochRecord) -> bool:
        with own_code(callback, fix="a callback is called with the record of an epoch; true ends the run"):
            return bool(callback(record))
