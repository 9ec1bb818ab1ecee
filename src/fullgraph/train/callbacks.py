"""Callbacks after every epoch: a user's own, which may end the run, and one that warns of late rows.

It warns the user if the loss of a run with late rows hardly falls or swings.
"""

from collections.abc import Callable

import torch

from fullgraph.own_code import own_code
from fullgraph.report import EpochRecord
from fullgraph.report.losses import trouble
from fullgraph.report.terminal import note
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


FIRST, EVERY = 50, 25  # epochs before the first check, and between checks


class StaleWarning:
    """Checks the loss from time to time: gradients that lag a step behind can keep it from falling, or make it swing.

    It does not measure how late rows are: runs with good scores and runs with bad scores do not differ in that
    (docs/benchmarks.md). fixes: options that may help this run.
    """

    def __init__(self, fixes: str) -> None:
        self.fixes, self.said = fixes, False

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        due = record.epoch >= FIRST and (record.epoch - FIRST) % EVERY == 0
        if due and not self.said and (text := trouble([old.loss for old in trainer.records])):
            note(f"{text}, and halo rows come late; if --strategy vanilla does better, try {self.fixes}")
            self.said = True


def fixes_for(*, method: str, averaged: bool) -> str:
    """Name the options that improved scores with late rows and that the run does not use yet."""
    cut = [] if method.split("-")[0] in ("metis", "fennel", "kaminpar", "mtkahypar") else ["--partitioner metis"]
    return ", or ".join([*cut, *([] if averaged else ["--strategy pipegcn-gf"]), "--strategy adaqp"])
