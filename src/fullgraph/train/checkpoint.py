"""Checkpoints through torch.distributed.checkpoint, in safetensors: whole or not there, and never a pickle."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from fullgraph.errors import InputError, storage_error
from fullgraph.report import EpochRecord, write_json
from fullgraph.train.trainer import Best, Trainer
from fullgraph.transport import Key, Transport

KEEP = 2


class Checkpoints:
    """A folder of `epoch-N` folders, each the whole state after N epochs; the last two are kept."""

    def __init__(self, folder: Path, transport: Transport, every: int) -> None:
        self.folder, self.transport, self.every = folder, transport, every
        if every:
            _storage()  # a torch without it must be told now, not after the first epochs

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if self.every and (trainer.epoch % self.every == 0 or trainer.epoch == trainer.config.epochs):
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        final = self.folder / f"epoch-{trainer.epoch:08d}"
        temporary = self.folder / f".{final.name}"
        if self.transport.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        self._together(f"checkpoint/{trainer.epoch}/open")
        writer = _storage().HuggingFaceStorageWriter(str(temporary), save_distributed=True)
        try:
            save(tensors_of(trainer), storage_writer=writer, no_dist=not dist.is_initialized())
        except CheckpointException as error:  # on every rank alike, and not an Exception
            shutil.rmtree(temporary, ignore_errors=True)
            raise storage_error(error, self.folder) or RuntimeError(
                f"no checkpoint could be written: {error}"
            ) from error
        if self.transport.rank == 0:
            write_json(temporary / "state.json", scalars_of(trainer))
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
            for old in self.all()[:-KEEP]:
                shutil.rmtree(old, ignore_errors=True)
        self._together(f"checkpoint/{trainer.epoch}/close")

    def all(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("epoch-*") if (path / "state.json").exists())

    def restore(self, trainer: Trainer) -> bool:
        """Continue from the newest checkpoint; false where there is none."""
        found = self.all()
        if not found:
            return False
        from safetensors import SafetensorError

        try:
            self._load(trainer, found[-1])
        except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{found[-1]} is damaged; remove it to resume from the one before") from error
        return True

    def _load(self, trainer: Trainer, folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text())
        check_ranks(state["ranks"], self.transport.size)
        known = _storage().HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        tensors: dict[str, Any] = {
            name: torch.empty(meta.size, dtype=meta.properties.dtype)
            for name, meta in known.items()
            if not name.startswith("rank") or name.startswith(f"rank{self.transport.rank}.")
        }
        reader = _storage().HuggingFaceStorageReader(str(folder))
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
        restore_trainer(trainer, tensors, state)

    def _together(self, name: str) -> None:
        self.transport.all_reduce(Key(name, 0), torch.zeros(1)).wait()


def check_ranks(written: int, now: int) -> None:
    if written != now:
        raise InputError(f"the checkpoint was written by {written} ranks, not {now}; resume with --parts {written}")


def _storage() -> Any:
    try:
        from torch.distributed.checkpoint import hf_storage
    except ImportError as error:
        raise InputError(
            "checkpoints need torch >= 2.9 (safetensors storage); upgrade torch or pass --checkpoint-every 0"
        ) from error
    return hf_storage


def tensors_of(trainer: Trainer) -> dict[str, Any]:
    """Every tensor of the run's state. Those all ranks share are written once."""
    tensors: dict[str, Any] = {f"model.{name}": value for name, value in trainer.model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in trainer.best.weights.items()}
    for index, slots in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{slot}": value for slot, value in slots.items()}
    tensors["clock.losses"] = torch.tensor(trainer.shard.clock.losses, dtype=torch.float64)
    rank = trainer.shard.transport.rank
    tensors |= {f"rank{rank}.{name}": value for name, value in trainer.shard.state().items()}
    return tensors


def scalars_of(trainer: Trainer) -> dict[str, Any]:
    best = trainer.best
    return {
        "schema": 1,
        "epoch": trainer.epoch,
        "ranks": trainer.shard.transport.size,
        "best": {"epoch": best.epoch, "scores": best.scores, "waited": best.waited},
    }


def restore_trainer(trainer: Trainer, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    trainer.model.load_state_dict(under("model."))
    optimizer = trainer.optimizer.state_dict()
    for name, value in under("optimizer.").items():
        index, slot = name.split(".")
        optimizer["state"].setdefault(int(index), {})[slot] = value
    trainer.optimizer.load_state_dict(optimizer)
    trainer.best = Best(weights=under("best."), **state["best"])
    trainer.shard.clock.step = state["epoch"] - 1
    trainer.shard.clock.losses[:] = tensors["clock.losses"].tolist()
    device = trainer.shard.train.y.device
    held = under(f"rank{trainer.shard.transport.rank}.")
    trainer.shard.load_state({name: value.to(device) for name, value in held.items()})
