"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from fullgraph.errors import InputError
from fullgraph.partition.manifest import is_partition_folder


@contextmanager
def replaced_folder(folder: str | Path) -> Iterator[Path]:
    """A new folder beside `folder` to write into; it takes that name when the block ends well, and vanishes otherwise.

    What stood there stays until then, and is replaced only if it was empty or held shards.
    """
    final = Path(os.path.realpath(folder))
    token = uuid4().hex[:8]
    building = final.with_name(f".{final.name}.{token}.new")
    try:
        try:
            _check_free(final)
            final.parent.mkdir(parents=True, exist_ok=True)
            building.mkdir()
            yield building
            _swap(building, final, final.with_name(f".{final.name}.{token}.old"))
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except OSError as bad:
        reason = bad.strerror or " ".join(str(bad).split()) or type(bad).__name__
        raise InputError(f"cannot write {folder} ({reason}): make room, or choose a folder you may write to") from None


def _check_free(final: Path) -> None:
    if not os.path.lexists(final) or is_partition_folder(final):
        return
    if not final.is_dir():
        raise InputError(f"{final} exists and is no folder: choose another name")
    if any(final.iterdir()):
        raise InputError(f"{final} exists and holds something other than shards: choose another name, or empty it")


def _swap(building: Path, final: Path, retired: Path) -> None:
    if not final.exists():
        building.rename(final)
        return
    final.rename(retired)
    try:
        building.rename(final)
    except BaseException:
        retired.rename(final)
        raise
    shutil.rmtree(retired, ignore_errors=True)
