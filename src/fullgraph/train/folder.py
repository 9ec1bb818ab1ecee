"""A run's folder: locked while a run uses it, and restored if a run fails before it trains."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fullgraph.errors import InputError
from fullgraph.partition.manifest import beside_shards
from fullgraph.storage import FolderLock, discard, read_document, refuse_link, settle, sweep, write_whole
from fullgraph.train.config import FILE as CONFIG

SHARDS = "shards"
ANOTHER_CUT = re.compile(r"shards-[0-9]+")  # shards for another number of ranks (recutting.py)
METRICS = "metrics.jsonl"
MOST_METRICS = 1 << 28  # bytes; a larger file was not written by training
# Every name that a run writes. A new run is refused if one of them exists, since the file belongs to someone else.
NAMES = (
    CONFIG, METRICS, "result.json", "model.safetensors", "checkpoints", "predictions", SHARDS, "tensorboard",
    "report.html", "profile.json", "trace.json", "torch_trace",
)  # fmt: skip


def cut_into(parts: int) -> str:
    """The name of a run's shards for another number of ranks than it began with."""
    return f"{SHARDS}-{parts}"


def names_in(path: Path) -> list[str]:
    """Every name that a run may write, with the cuts that are in the folder."""
    found = sorted(file.name for file in path.glob(f"{SHARDS}-*") if ANOTHER_CUT.fullmatch(file.name))
    return [*NAMES, *found]


class RunFolder:
    """The folder of one run, locked while this process and its ranks live."""

    def __init__(self, path: Path, lock: FolderLock, created: Sequence[Path], *, new: bool) -> None:
        self.path, self.lock, self.new_run = path, lock, new
        self._created = created  # folders that this call created, the outermost first
        self._shards: int | None = None  # the inode of the shards that this call placed here
        self._config = None if new else (path / CONFIG).read_bytes()  # the config of a run that began earlier
        self._metrics = self._read_metrics()

    @classmethod
    def new(cls, path: Path, *, shards: bool) -> "RunFolder":
        """Prepare a folder for a new run: created here, or existing without any file of a run.

        shards: True if the run writes shards; otherwise `path` may hold the shards of its graph.
        """
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file, not a folder; choose another --out")
        created = [p for p in [*reversed(path.parents), path] if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, FolderLock(path), created, new=True)
        if shards and not os.path.lexists(path / CONFIG):
            folder._remove_shards(folder.lock.before.get("creating"))  # left by a run killed before it wrote its config
        taken = [name for name in names_in(path) if (shards or name != SHARDS) and os.path.lexists(path / name)]
        if taken:
            folder.lock.remove()
            folder.lock.close()
            if CONFIG in taken:
                raise InputError(
                    f"{path} holds a run already; continue it with --resume {path}, or choose another --out"
                )
            raise InputError(f"{path} holds {', '.join(taken)}; a run would overwrite that; choose another --out")
        folder.sweep()
        return folder

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """Open the folder of a run that began earlier."""
        if not (path / CONFIG).is_file():
            raise InputError(f"{path / CONFIG} does not exist; name a folder that `fullgraph train` wrote")
        check_names(path)
        folder = cls(path, FolderLock(path), [], new=False)
        folder.sweep()
        return folder

    def place_shards(self, built: Path) -> None:
        """Name the shards. Until `ready`, the lock records their inode, so that the next run can remove them."""
        self._shards = built.stat().st_ino
        self.lock.note(creating=self._shards)
        settle(built, self.path / SHARDS, lambda _: "something that does not belong to this run")

    def ready(self) -> None:
        """Record that the config is written: from now on the folder holds a run, with nothing incomplete."""
        self.lock.note()

    def sweep(self) -> None:
        """Remove incomplete files of runs that died."""
        for place in (self.path, *(self.path / name for name in ("checkpoints", "predictions", "torch_trace"))):
            sweep(place)

    @property
    def trained(self) -> bool:
        """Whether ranks have trained an epoch and added its record; a resumed run first removes later records."""
        return not self._metrics.startswith(self._read_metrics())

    def _read_metrics(self) -> bytes:
        path = self.path / METRICS
        with suppress(OSError):
            if path.is_file():
                with path.open("rb") as file:
                    return file.read(MOST_METRICS)
        return b""

    def undo(self) -> None:
        """Undo this call's changes to a folder in which it never trained.

        A new run's shards, config and empty metrics file are removed, so that the corrected command can use the folder.
        A run that began earlier gets its config back.
        """
        if self._config is not None and self._config != (self.path / CONFIG).read_bytes():
            write_whole(self.path / CONFIG, self._config)
        if self.new_run:
            self._remove_shards(self._shards)
            discard(self.path / CONFIG, _no_config)
            discard(self.path / METRICS, _not_empty)
        self.sweep()
        self.lock.remove()
        with suppress(OSError):  # a folder that holds other files stays
            for folder in reversed(self._created):
                folder.rmdir()

    def _remove_shards(self, inode: object) -> None:
        """Remove the shards if a run placed them here, as shown by their inode, and the folder holds nothing else."""

        def foreign(path: Path) -> str:
            return beside_shards(path) if path.lstat().st_ino == inode else "other shards"

        if inode is not None:
            discard(self.path / SHARDS, foreign)

    def close(self) -> None:
        """Unlock the folder, after removing incomplete files of ranks that just died."""
        self.sweep()
        self.lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_names(path: Path) -> None:
    """Refuse a run's folder if one of its names is a link, which may point anywhere, or has the wrong type."""
    for file in (path / name for name in names_in(path)):
        refuse_link(file)
        if "." in file.name and file.exists() and not file.is_file():
            kind = "folder" if file.is_dir() else "device, pipe or socket"
            raise InputError(f"{file} is a {kind}, where the run writes a file; move it away")


def _no_config(path: Path) -> str:
    try:
        read_document(path, fix="")
    except InputError:
        return "something that is not a config"
    return ""


def _not_empty(path: Path) -> str:
    about = path.lstat()
    return "" if path.is_file() and not path.is_symlink() and not about.st_size else "a record"
