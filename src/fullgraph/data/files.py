"""Open files written by others, safely: no pickle, and every failure is one line."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.mapped import map_member
from fullgraph.errors import InputError


def data_root() -> Path:
    """Where data sets of other projects are looked for: $FULLGRAPH_DATA, or ~/.cache/fullgraph."""
    root = os.environ.get("FULLGRAPH_DATA")
    return Path(root) if root else Path.home() / ".cache" / "fullgraph"


def one_line(error: BaseException, limit: int = 160) -> str:
    """An exception's text on one line, shortened."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def need_file(path: Path, fix: str) -> Path:
    """`path` when it is a file, else an error that ends with `fix`."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {what}: {fix}")
    return path


def read_npz(path: Path, required: tuple[str, ...] = (), mapped: tuple[str, ...] = ()) -> dict[str, Array]:
    """Every array of an .npz archive by name; object arrays (pickles) are refused without being opened.

    Those named in `mapped` stay in the file, memory-mapped, where they are stored uncompressed.
    """
    need_file(path, "give the path of an .npz file")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an .npz archive: write it with numpy.savez")
    arrays: dict[str, Array] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in required if key not in archive.files]
            if missing:
                raise InputError(f"{path} lacks {', '.join(missing)} (it holds {', '.join(archive.files)}): add them")
            for key in archive.files:
                value = map_member(path, key) if key in mapped else None
                arrays[key] = _member(path, archive, key) if value is None else value
    except (OSError, EOFError, zipfile.BadZipFile) as bad:
        raise InputError(f"{path} cannot be read ({one_line(bad)}): copy or write the file again") from None
    return arrays


def _member(path: Path, archive: Any, key: str) -> Array:
    try:
        value = archive[key]
    except ValueError as bad:
        if "allow_pickle" in str(bad):
            raise InputError(
                f"{path} holds '{key}' as a pickled object, which is never opened: save it as a plain array"
            ) from None
        raise InputError(f"{path} has a damaged '{key}' ({one_line(bad)}): copy or write the file again") from None
    except (zlib.error, SyntaxError, TokenError) as bad:  # the last two from numpy's parser of headers
        raise InputError(f"{path} has a damaged '{key}' ({one_line(bad)}): copy or write the file again") from None
    if not isinstance(value, np.ndarray):
        raise InputError(f"{path} holds '{key}', which is no array: write the file with numpy.savez")
    return value
