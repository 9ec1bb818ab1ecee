"""Write a folder of shards so that it appears under its name only when it is complete."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fullgraph.errors import InputError, explain, one_line
from fullgraph.partition.manifest import FILE, is_partition_folder, read_manifest
from fullgraph.storage import sweep, whole_folder

_ARRAY = re.compile(r"(part-[0-9]+/)?[a-z_]+\.npy")


@contextmanager
def replaced_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a new folder for shards. It gets the name `folder` if the block succeeds, and is removed otherwise.

    An existing folder stays until then, and is replaced only if it is empty or holds nothing but shards.
    """
    final = Path(os.path.realpath(folder))
    try:
        _check_free(final)
        final.parent.mkdir(parents=True, exist_ok=True)
        sweep(final.parent)
        with whole_folder(final, beside_shards) as building:
            yield building
    except OSError as bad:
        known = explain(bad)
        raise InputError(f"cannot write {folder}: {known or bad.strerror or type(bad).__name__}") from None


def beside_shards(folder: Path) -> str:
    """Name the contents of a folder that `fullgraph partition` did not write; empty if there are none."""
    if not folder.is_dir() or folder.is_symlink():
        return "something other than a folder"
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    folders = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()}
    if not there and not folders:
        return ""
    try:
        listed = read_manifest(folder).files
    except InputError:
        return f"{FILE}, which is damaged or not of fullgraph" if FILE in there else "something other than shards"
    ours = {FILE, *filter(_ARRAY.fullmatch, listed)}
    others = sorted((there - ours) | (folders - {os.path.dirname(name) for name in ours}))
    return f"{one_line(', '.join(others[:3]), 200)}, which does not belong to its shards" if others else ""


def _check_free(final: Path) -> None:
    if not os.path.lexists(final):
        return
    if not final.is_dir():
        raise InputError(f"{final} exists and is not a folder: choose another name")
    if not is_partition_folder(final) and any(final.iterdir()):
        raise InputError(f"{final} exists and holds something other than shards: choose another name, or empty it")
    found = beside_shards(final)
    if found:
        raise InputError(f"{final} holds {found}: choose another name, or move that away")
