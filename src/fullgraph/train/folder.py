"""A run's folder: locked while a run works in it, and left as it was by a run that fails before it trains."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fullgraph.errors import InputError
from fullgraph.partition.folder import beside_shards
from fullgraph.storage import FolderLock, discard, read_document, refuse_link, settle, sweep, write_whole
from fullgraph.train.config import FILE as CONFIG

SHARDS = "shards"
METRICS = "metrics.jsonl"
# Everything that a run writes. A new run is refused where one of these is already: it would be somebody else's.
NAMES = (
    CONFIG, METRICS, "result.json", "model.safetensors", "checkpoints", "predictions", SHARDS, "tensorboard",
    "report.html", "profile.json", "trace.json", "torch_trace",
)  # fmt: skip


class RunFolder:
    """The folder of one run, locked for as long as this process and its ranks live."""

    def __init__(self, path: Path, lock: FolderLock, created: Sequence[Path], *, new: bool) -> None:
        self.path, self.lock, self.new_run = path, lock, new
        self._created = created  # folders that this call made, the outermost first
        self._shards: int | None = None  # the inode of those that this call put here
        self._config = None if new else (path / CONFIG).read_bytes()  # of a run that was begun before
        self._metrics = self._read_metrics()

    @classmethod
    def new(cls, path: Path, *, shards: bool) -> "RunFolder":
        """A folder for a new run: made here, or there already without any file of a run.

        shards: the run writes shards too; else `path` may hold those of its graph.
        """
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file, not a folder; choose another --out")
        created = [p for p in [*reversed(path.parents), path] if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, FolderLock(path), created, new=True)
        if shards and not os.path.lexists(path / CONFIG):
            folder._remove_shards(folder.lock.before.get("creating"))  # a run was killed before it wrote its config
        taken = [name for name in NAMES if (shards or name != SHARDS) and os.path.lexists(path / name)]
        if taken:
            folder.lock.remove()
            folder.lock.close()
            if CONFIG in taken:
                raise InputError(
                    f"{path} holds a run already; continue it with --resume {path}, or choose another --out"
                )
            raise InputError(f"{path} holds {', '.join(taken)}, which a run would overwrite; choose another --out")
        folder.sweep()
        return folder

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """The folder of a run that was begun before."""
        if not (path / CONFIG).is_file():
            raise InputError(f"{path / CONFIG} does not exist; name a folder that `fullgraph train` wrote")
        check_names(path)
        folder = cls(path, FolderLock(path), [], new=False)
        folder.sweep()
        return folder

    def place_shards(self, built: Path) -> None:
        """Give shards their name. Until `ready` the lock says which these are, so that the next run can remove them."""
        self._shards = built.stat().st_ino
        self.lock.note(creating=self._shards)
        settle(built, self.path / SHARDS, lambda _: "something that is not of this run")

    def ready(self) -> None:
        """The config is written: from now on the folder holds a run, and nothing of it is half made."""
        self.lock.note()

    def sweep(self) -> None:
        """Remove what runs that died have left half-written."""
        for place in (self.path, *(self.path / name for name in ("checkpoints", "predictions", "torch_trace"))):
            sweep(place)

    @property
    def trained(self) -> bool:
        """Whether ranks trained an epoch, whose record is new; a run that goes on first cuts old ones off."""
        return not self._metrics.startswith(self._read_metrics())

    def _read_metrics(self) -> bytes:
        path = self.path / METRICS
        with suppress(OSError):
            return path.read_bytes() if path.is_file() else b""
        return b""

    def undo(self) -> None:
        """Take back what this call did to a folder where it never trained.

        Of a new run, its shards, its config and its empty record are removed, so that the corrected command finds its
        folder free. One that was begun before gets its config back.
        """
        if self._config is not None and self._config != (self.path / CONFIG).read_bytes():
            write_whole(self.path / CONFIG, self._config)
        if self.new_run:
            self._remove_shards(self._shards)
            discard(self.path / CONFIG, _no_config)
            discard(self.path / METRICS, _not_empty)
        self.sweep()
        self.lock.remove()
        with suppress(OSError):  # a folder that holds something else stays
            for folder in reversed(self._created):
                folder.rmdir()

    def _remove_shards(self, inode: object) -> None:
        """Remove the shards if they are those of this inode, as a run put them there, and nothing is beside them."""

        def foreign(path: Path) -> str:
            return beside_shards(path) if path.lstat().st_ino == inode else "other shards"

        if inode is not None:
            discard(self.path / SHARDS, foreign)

    def close(self) -> None:
        """Let the folder go, without what ranks that died just now have left."""
        self.sweep()
        self.lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_names(path: Path) -> None:
    """Refuse a run's folder where one of its names is a link, which may lead anywhere, or of the wrong kind."""
    for file in (path / name for name in NAMES):
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
