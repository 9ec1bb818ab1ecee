"""The folder of a cut's finished steps. A step's file or folder gets its name when it is complete, so that a command
that was killed goes on where it was."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fullgraph.data.arrays import Array
from fullgraph.errors import InputError, explain, one_line
from fullgraph.storage import FolderLock, discard, read_document, refuse_link, sweep, whole_folder, write_document

PLAN = "plan.json"
_OURS = re.compile(r"plan\.json|ids|run-\d+|block-\d+|cut-\d+|arcs|\.fullgraph\.lock|\.fullgraph-[0-9a-f]{32}")


class Unfinished(InputError):
    """A step could not be written. The steps before it are kept."""


def scratch_folder(out: Path, given: Path | None) -> Path:
    """Return the folder of the steps towards the shards `out`: beside them, or inside the folder that the user gave."""
    final = Path(os.path.realpath(out))
    return (final.parent if given is None else Path(os.path.realpath(given))) / f"{final.name}.scratch"


class Scratch:
    """Holds the lock on a folder of steps until it is closed.

    plan: what the steps depend on. Steps of another plan cannot be used, and are removed.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        self.folder = folder
        try:
            refuse_link(folder)
            folder.mkdir(parents=True, exist_ok=True)
            self._refuse_others()
            self._lock = FolderLock(folder)
            sweep(folder)
            if self._planned() != plan:
                for name in os.listdir(folder):
                    if name != PLAN and not name.startswith(".fullgraph"):
                        discard(folder / name, lambda path: "")
                write_document(folder / PLAN, plan)
        except OSError as bad:
            told = explain(bad) or bad.strerror or type(bad).__name__
            raise InputError(f"cannot write {folder}: {told}; give another folder with --scratch") from None

    def _planned(self) -> Any:
        try:
            return read_document(self.folder / PLAN, fix="")
        except InputError:  # a new folder
            return None

    def _refuse_others(self) -> None:
        others = _others(self.folder)
        if others:
            raise InputError(
                f"{self.folder} holds {others}, which is not of fullgraph: move it away, or give --scratch"
            )

    def step(self, name: str, write: Callable[[Path], None]) -> Path:
        """Return the folder of a step, which `write` fills unless it was finished before."""
        path = self.folder / name
        if not path.is_dir():
            try:
                with whole_folder(path, lambda there: "") as building:
                    write(building)
            except OSError as bad:
                told = explain(bad) or bad.strerror or one_line(bad, 100)
                again = "make room, and start the command again: it goes on from there"
                raise Unfinished(f"cannot write {self.folder}: {told}; {again}") from None
        return path

    @property
    def begun(self) -> bool:
        """Whether a step is finished."""
        return (self.folder / "ids").is_dir()

    @property
    def nbytes(self) -> int:
        """The bytes that finished steps take."""
        files = (os.path.join(root, name) for root, _, names in os.walk(self.folder) for name in names)
        return sum(os.lstat(file).st_blocks * 512 for file in files)

    def remove(self) -> None:
        discard(self.folder, _others)

    def close(self) -> None:
        self._lock.close()


def _others(folder: Path) -> str:
    """Name the contents of a folder that are not steps of a cut; empty if there are none."""
    found = [name for name in os.listdir(folder) if not _OURS.fullmatch(name)]
    return one_line(", ".join(sorted(found)[:3]), 200)


def mapped(path: Path, dtype: npt.DTypeLike, width: int = 0) -> Array:
    """Memory-map a file of numbers [n], or [n, width], for reading."""
    kind = np.dtype(dtype)
    count = path.stat().st_size // kind.itemsize
    shape = (count // width, width) if width else (count,)
    return np.memmap(path, kind, "r", shape=shape) if count else np.empty(shape, kind)
