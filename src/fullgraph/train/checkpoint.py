"""Checkpoints: copied in memory, written while training continues, atomic, and never a pickle.

checkpoints/epoch-00000020/shared.safetensors      the state that all ranks share: weights, optimizer, history
                           rank-0.safetensors ...  the state of one rank's channels and snapshots
                           state.json              all other state; written last

The shared state has all nodes' rows, so that it also fits another cut of the graph; the state of channels does not.
"""

import hashlib
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from fullgraph.errors import Damaged, InputError, one_line
from fullgraph.exchange import Held, settled
from fullgraph.report import EpochRecord, as_table, from_table
from fullgraph.report.terminal import note
from fullgraph.storage import (
    NEW,
    discard,
    read_record,
    read_tensors,
    refuse_foreign,
    settle,
    workspace,
    write_document,
    write_tensors,
)  # fmt: skip
from fullgraph.train.optimizer import load_state, state_tensors
from fullgraph.train.trainer import Best, Trainer
from fullgraph.transport import Key, PeerLost, Transport, barrier, rank_table, shared_token
from fullgraph.values import Range, Value

KEEP = 2
SCHEMA = 3  # 2 counted epochs from 0
NAME = re.compile(r"epoch-([0-9]{8,10})")
FILES = re.compile(r"state\.json|(shared|rank-[0-9]+)\.safetensors")
LOOK_BACK = 8  # if the newest checkpoints are damaged, at most this many are tried
FIX = "remove this checkpoint"


@dataclass(frozen=True, kw_only=True)
class BestFacts(Value):
    """The best validation score so far."""

    epoch: Annotated[int, Range(0, 10**9)]
    scores: dict[str, float | None]
    waited: Annotated[int, Range(0, 10**9)]


@dataclass(frozen=True, kw_only=True)
class Scalars(Value):
    """The facts of a checkpoint that are not tensors."""

    schema: Annotated[int, Range(SCHEMA, SCHEMA)] = SCHEMA
    run: str = ""
    epoch: Annotated[int, Range(0, 10**9)]
    ranks: Annotated[int, Range(1, 65535)]
    shards: Annotated[int, Range(0, 2**32 - 1)] = 0  # checksum of their manifest; 0: not recorded
    began: Annotated[int, Range(0, 10**9)] = 0  # the step in which channels began
    best: BestFacts


@dataclass
class _Writing:
    """A checkpoint that is being written."""

    token: str  # names the workspace that all ranks write into
    final: Path
    thread: threading.Thread | None = None
    error: BaseException | None = None
    all_written: threading.Event = field(default_factory=threading.Event)


class Checkpoints:
    """A folder of `epoch-N` folders. Each holds the complete state after N epochs; the last two are kept.

    `save` copies the state and returns. A thread of each rank writes the rank's file, and rank 0's thread names the
    folder when all ranks' files exist. The next `save`, or `finish`, waits for these threads.
    """

    def __init__(self, folder: Path, transport: Transport, every: int, run: str = "", shards: int = 0) -> None:
        self.folder, self.transport, self.every = folder, transport, every
        self.run, self.shards = run, shards  # the id of the run that writes these checkpoints; its shards' checksum
        self.seconds = 0.0  # training time lost to checkpoints
        self._writing: _Writing | None = None
        self._last: Path | None = None
        # Ranks of a dead run may still be writing for a moment: each run stages under a different name.
        self._token = shared_token(transport, Key("checkpoint/token", 0))

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if self.every and (trainer.epoch % self.every == 0 or trainer.epoch == trainer.config.epochs):
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Copy the current state and start writing it."""
        start = time.perf_counter()
        self._end_writing()
        trainer.check_finite()
        final = self.folder / f"epoch-{trainer.epoch:08d}"
        if final != self._last:
            self._last = final
            self.folder.mkdir(parents=True, exist_ok=True)
            shared, own = _copied(shared_tensors(trainer)), _copied(trainer.shard.held())
            state = state_of(trainer, self.run, self.shards)
            name = f"{self._token} {final.name}"
            self._writing = _Writing(hashlib.blake2b(name.encode(), digest_size=16).hexdigest(), final)
            arguments = (self._writing, shared, own, state, trainer)
            self._writing.thread = threading.Thread(
                target=self._write, args=arguments, name="fullgraph-checkpoint", daemon=True
            )
            self._writing.thread.start()
        self.seconds += time.perf_counter() - start

    def finish(self) -> None:
        """Wait until the last checkpoint has its final name; every rank must call this."""
        start = time.perf_counter()
        self._end_writing()
        self.seconds += time.perf_counter() - start

    def _write(self, to: _Writing, shared: Held, own: Held, state: Scalars, trainer: Trainer) -> None:
        try:
            with trainer.meter.aside():
                tensors = settled(own)
            rank, size = self.transport.rank, self.transport.size
            with workspace(self.folder, to.token, owner=rank == 0) as work:
                folder = work / NEW
                folder.mkdir(exist_ok=True)
                write_tensors(folder / f"rank-{rank}.safetensors", tensors, _about(state, rank))
                (work / f"rank-{rank}").touch()  # marks the rank's file as complete and synced
                if rank == 0:
                    write_tensors(folder / "shared.safetensors", settled(shared), _about(state))
                    self._name(folder, to, state, size)
        except BaseException as error:
            to.error = error

    def _name(self, folder: Path, to: _Writing, state: Scalars, size: int) -> None:
        """When all files exist, name the folder and remove the oldest checkpoint."""
        files = [folder.parent / f"rank-{rank}" for rank in range(size)]
        while not (to.all_written.wait(0.02) or all(file.exists() for file in files)):
            pass
        write_document(folder / "state.json", asdict(state))
        settle(folder, to.final, _beside_checkpoint)
        # Checkpoints of later epochs are damaged; otherwise this one would not have been written.
        whole = [path for epoch, path in checkpoints_in(self.folder).items() if epoch <= state.epoch]
        for old in whole[:-KEEP]:
            discard(old, _beside_checkpoint)

    def _end_writing(self) -> None:
        """Wait for the checkpoint that is being written: for all ranks' files, then for its final name."""
        writing, self._writing = self._writing, None
        if writing is None or writing.thread is None:
            return
        if self.transport.rank != 0:
            writing.thread.join()
        if writing.error is None:
            name = f"checkpoint/{writing.final.name}"
            barrier(self.transport, Key(f"{name}/written", 0))
            writing.all_written.set()
            writing.thread.join()
        if writing.error is not None:
            raise writing.error

    def restore(self, trainer: Trainer) -> bool:
        """Continue from the newest checkpoint that is undamaged on every rank; return False if there is none."""
        transport = self.transport
        epochs = torch.zeros(LOOK_BACK, dtype=torch.int64)
        if transport.rank == 0:
            newest = list(checkpoints_in(self.folder))[::-1][:LOOK_BACK]
            epochs[: len(newest)] = torch.tensor(newest, dtype=torch.int64)
        epochs = transport.all_reduce(Key("checkpoint/found", 0), epochs).wait()
        newer: list[Path] = []  # damaged checkpoints, which training writes again
        troubles: list[Damaged] = []
        reported: list[Damaged] = []  # by this rank: only the first rank that finds damage reports it
        for epoch in epochs[epochs > 0].tolist():
            folder = self.folder / f"epoch-{epoch:08d}"
            tensors, state, trouble = self._read(folder, epoch)
            damaged = rank_table(transport, Key(f"checkpoint/{epoch}/whole", 0), trouble is not None, torch.int64)
            if not damaged.any():
                assert state is not None
                for path in newer:
                    refuse_foreign(path, _beside_checkpoint)  # before an epoch is trained
                _apply(trainer, tensors, state, folder)
                # No rank continues, and writes, before all ranks have accepted the tensors.
                barrier(transport, Key(f"checkpoint/{epoch}/applied", 0))
                for trouble in reported:
                    note(f"{trouble}; going on from {folder}")
                return True
            newer.append(folder)
            if trouble is not None:
                troubles.append(trouble)
                reported += [trouble] if int(damaged.argmax()) == transport.rank else []
        if int(epochs[0]):
            why = f": {troubles[0]}" if troubles else ""
            raise Damaged(f"no checkpoint in {self.folder} is whole{why}; start a new run")
        return False

    def _read(self, folder: Path, epoch: int) -> tuple[dict[str, Tensor], Scalars | None, Damaged | None]:
        """Return a checkpoint's tensors and facts, or the reason why it cannot be used."""
        rank, size = self.transport.rank, self.transport.size
        try:
            state = read_record(Scalars, folder / "state.json", fix=FIX)
            tensors, about = read_tensors(folder / "shared.safetensors", fix=FIX)
            own, own_about = dict[str, Tensor](), _about(state, rank)
            if state.ranks != size or state.shards not in (0, self.shards):  # the graph was cut again since
                state = replace(state, began=state.epoch)
            else:
                own, own_about = read_tensors(folder / f"rank-{rank}.safetensors", fix=FIX)
            mine = replace(state, epoch=epoch, run=self.run)
            if (state, about, own_about) != (mine, _about(mine), _about(mine, rank)):
                raise Damaged(f"{folder} holds files of another epoch, rank or run; {FIX}")
            return {**tensors, **{f"rank{rank}.{name}": value for name, value in own.items()}}, state, None
        except InputError as trouble:
            return {}, None, Damaged(str(trouble))


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Return every path with a checkpoint's name, by epoch, the oldest first."""
    named = [(NAME.fullmatch(path.name), path) for path in folder.glob("epoch-*")]
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def _beside_checkpoint(folder: Path) -> str:
    """Name the files in a checkpoint's folder that do not belong to a checkpoint; empty if there are none."""
    if folder.is_symlink() or not folder.is_dir():
        return "something other than a folder"
    others = [path.name for path in folder.iterdir() if not FILES.fullmatch(path.name) or path.is_dir()]
    return f"{one_line(', '.join(others), 200)}, which is not of a checkpoint" if others else ""


def _copied(tensors: Mapping[str, Any]) -> Held:
    """Copy tensors that the next step changes; versions still in flight never change."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in tensors.items()
    }


def shared_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """Return the state that all ranks share."""
    weights = trainer.weights
    tensors: dict[str, Tensor] = {f"model.{name}": x for name, x in weights.whole(weights.state_dict()).items()}
    tensors |= {f"best.{name}": x for name, x in weights.whole(trainer.best.weights).items()}
    slots = weights.whole_slots(state_tensors(trainer.optimizer))
    tensors |= {f"optimizer.{name}": x for name, x in slots.items()}
    tensors["history"] = as_table(trainer.records)
    return tensors


def state_of(trainer: Trainer, run: str = "", shards: int = 0) -> Scalars:
    best = BestFacts(epoch=trainer.best.epoch, scores=trainer.best.scores, waited=trainer.best.waited)
    ranks, began = trainer.shard.transport.size, trainer.shard.clock.began
    return Scalars(run=run, epoch=trainer.epoch, ranks=ranks, shards=shards, began=began, best=best)


def _about(state: Scalars, rank: int | None = None) -> dict[str, str]:
    """Return the metadata that every file of a checkpoint carries."""
    about = {"run": state.run, "epoch": str(state.epoch), "ranks": str(state.ranks)}
    return about if rank is None else {**about, "rank": str(rank)}


def _apply(trainer: Trainer, tensors: dict[str, Tensor], state: Scalars, folder: Path) -> None:
    try:
        restore_trainer(trainer, tensors, state)
    except (InputError, PeerLost, MemoryError):
        raise
    except Exception as error:  # any other failure means that the tensors belong to a different run
        raise InputError(f"{folder} does not fit this run's model or strategy; start a new run") from error


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def restore_trainer(trainer: Trainer, tensors: dict[str, Tensor], state: Scalars) -> None:
    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    weights, best = (trainer.weights.own_rows(under(prefix)) for prefix in ("model.", "best."))
    trainer.weights.load_state_dict(weights)
    if best and _shapes(best) != _shapes(weights):
        raise ValueError("the best weights do not have the shapes of the model's weights")
    load_state(trainer.optimizer, trainer.weights.own_slots(under("optimizer.")))
    trainer.best = Best(weights=best, **asdict(state.best))
    trainer.records = from_table(tensors["history"])
    assert not (state.began and trainer.shard.clock.channels), "a channel reads when it began while it is built"
    trainer.shard.clock.step, trainer.shard.clock.began = state.epoch - 1, state.began
    trainer.shard.clock.losses[:] = [record.loss for record in trainer.records]
    device = trainer.shard.train.y.device
    held = under(f"rank{trainer.shard.transport.rank}.")
    trainer.shard.load_state({name: value.to(device) for name, value in held.items()})
