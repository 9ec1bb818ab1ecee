"""A run's folder: locked while a run works in it, and left as it was by a run that fails before it trains."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fullgraph.errors import InputError
from fullgraph.storage import FolderLock, sweep, write_whole
from fullgraph.storage.lock import FILE as LOCK
from fullgraph.train.config import FILE as CONFIG

SHARDS = "shards"
# Everything that a run writes. A new run is refused where one of these is already: it would be somebody else's.
NAMES = (
    CONFIG, "metrics.jsonl", "result.json", "model.safetensors", "checkpoints", "predictions", SHARDS, "tensorboard",
    "report.html", "profile.json", "trace.json", "torch_trace",
)  # fmt: skip


class RunFolder:
    """The folder of one run, locked for as long as this process and its ranks live."""

    def __init__(self, path: Path, lock: FolderLock, names: Sequence[str], created: Sequence[Path]) -> None:
        self.path, self.lock = path, lock
        self._names = names  # of what this run is the first to write
        self._created = created  # folders that this call made, the outermost first
        self._config = None if names else (path / CONFIG).read_bytes()  # of a run that was begun before
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
        names = [name for name in NAMES if shards or name != SHARDS]
        folder = cls(path, FolderLock(path), names, created)
        if folder.lock.before.get("creating") == SHARDS and not (path / CONFIG).exists():
            folder._remove([SHARDS])  # of a run that was killed before its config, which comes last, was written
        taken = [name for name in names if (path / name).exists()]
        if taken:
            folder.close()
            if not folder.lock.before and CONFIG not in taken:
                (path / LOCK).unlink()
            if CONFIG in taken:
                raise InputError(
                    f"{path} holds a run already; continue it with --resume {path}, or choose another --out"
                )
            raise InputError(f"{path} holds {', '.join(taken)}, which a run would overwrite; choose another --out")
        folder.sweep()
        folder.lock.note(creating=SHARDS if shards else "")
        return folder

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """The folder of a run that was begun before."""
        if not (path / CONFIG).is_file():
            raise InputError(f"{path / CONFIG} does not exist; name a folder that `fullgraph train` wrote")
        for file in (path / name for name in NAMES if "." in name):
            if file.exists() and not file.is_file():
                kind = "folder" if file.is_dir() else "device, pipe or socket"
                raise InputError(f"{file} is a {kind}, where the run writes a file; move it away")
        folder = cls(path, FolderLock(path), [], [])
        folder.sweep()
        return folder

    def sweep(self) -> None:
        """Remove what runs that died have left half-written."""
        for place in (self.path, *(self.path / name for name in ("checkpoints", "predictions", "torch_trace"))):
            sweep(place)

    @property
    def trained(self) -> bool:
        """Whether ranks trained an epoch, whose record is new; a run that goes on first cuts old ones off."""
        return not self._metrics.startswith(self._read_metrics())

    def _read_metrics(self) -> bytes:
        path = self.path / "metrics.jsonl"
        with suppress(OSError):
            return path.read_bytes() if path.is_file() else b""
        return b""

    def undo(self) -> None:
        """Take back what this call did to a folder where it never trained.

        A new run is removed, so that the corrected command finds its folder free: none of its names was there when it
        began. One that was begun before gets its config back.
        """
        if self._config is not None and self._config != (self.path / CONFIG).read_bytes():
            write_whole(self.path / CONFIG, self._config)
        self._remove(self._names)
        self.sweep()
        (self.path / LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # a folder that holds something else stays
            for folder in reversed(self._created):
                folder.rmdir()

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            if (self.path / name).is_dir():
                shutil.rmtree(self.path / name, ignore_errors=True)
            else:
                (self.path / name).unlink(missing_ok=True)

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
