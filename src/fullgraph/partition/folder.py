"""A folder of shards appears under its name only when it is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fullgraph.errors import InputError, explain
from fullgraph.partition.manifest import is_partition_folder
from fullgraph.storage import sweep, whole_folder


@contextmanager
def replaced_folder(folder: str | Path) -> Iterator[Path]:
    """A new folder to write shards into; it takes the name `folder` when the block ends well, and vanishes otherwise.

    What stood there stays until then, and is replaced only if it was empty or held shards.
    """
    final = Path(os.path.realpath(folder))
    try:
        _check_free(final)
        final.parent.mkdir(parents=True, exist_ok=True)
        sweep(final.parent, final.name)
        with whole_folder(final) as building:
            yield building
    except OSError as bad:
        known = explain(bad)
        raise InputError(f"cannot write {folder}: {known or bad.strerror or type(bad).__name__}") from None


def _check_free(final: Path) -> None:
    if not os.path.lexists(final) or is_partition_folder(final):
        return
    if not final.is_dir():
        raise InputError(f"{final} exists and is no folder: choose another name")
    if any(final.iterdir()):
        raise InputError(f"{final} exists and holds something other than shards: choose another name, or empty it")
