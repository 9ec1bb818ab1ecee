"""Open other programs' files safely: no pickle, no trust in stated sizes, and one line per failure.

A table is one file, or the part files that Spark and Dask write into a folder.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from fullgraph.data.arrays import PARSING, Array, at_once
from fullgraph.errors import InputError, nearest, one_line
from fullgraph.resources import require_memory

_BLOCK_BYTES = 1 << 22
_LOCAL_HEADER = 30  # bytes; the last four are the lengths of the name and of the extra field after it
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_DEFLATE_MOST = 1032  # the largest possible ratio of deflate
MOST_FILES = 10_000  # files of a folder that are searched for a similar name
_AGAIN = "copy or write the file again"


def data_root() -> Path:
    """Return the folder of other projects' data sets: $FULLGRAPH_DATA, or ~/.cache/fullgraph."""
    root = os.environ.get("FULLGRAPH_DATA")
    return Path(root) if root else Path.home() / ".cache" / "fullgraph"


def need_file(path: Path, fix: str) -> Path:
    """Return `path` if it is a file; otherwise raise an error that ends with `fix`."""
    try:
        if path.is_file():
            return path
        what = "is a folder" if path.is_dir() else f"does not exist{_beside(path)}"
    except (OSError, ValueError) as bad:  # not a valid file name
        what = f"cannot be a path ({one_line(bad, 60)})"
    raise InputError(f"{one_line(path)} {what}: {fix}")


def _beside(path: Path) -> str:
    """Return a hint with the most similar file name in the same folder, or an empty text."""
    with suppress(OSError, ValueError):
        alike = (entry.name for entry in os.scandir(path.parent) if entry.name.endswith(path.suffix))
        return nearest(path.name, islice(alike, MOST_FILES))
    return ""


@contextmanager
def foreign(path: Path | str, fix: str) -> Iterator[None]:
    """Report any exception of a library that reads a user's file as a fault of that file, in one line.

    A number that does not fit its type is an error too, although numpy only warns about it.
    """
    try:
        with np.errstate(over="raise", invalid="raise"):
            yield
    except (InputError, MemoryError):
        raise
    except Exception as bad:
        raise InputError(f"{one_line(path)} cannot be read ({one_line(bad, 160)}): {fix}") from None


@dataclass(frozen=True)
class Member:
    """The header of an array inside an archive."""

    info: zipfile.ZipInfo
    start: int  # byte of the first number, after the header
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


Members = Mapping[str, Member]


def read_npz(
    path: Path,
    required: tuple[str, ...],
    optional: tuple[str, ...] = (),
    *,
    mapped: tuple[str, ...] = (),
    check: Callable[[Members], None] = lambda members: None,
    others: Callable[[str, Members], bool] = lambda name, members: False,
) -> dict[str, Array]:
    """Return the named arrays of an .npz archive, and those others that `others` takes by their headers.

    Headers are read first. Object arrays (pickles) are refused unopened, sizes are compared with the file and with the
    free memory, and `check` may refuse shapes. Arrays named in `mapped` stay in the file, memory-mapped, if they are
    stored uncompressed.
    """
    need_file(path, "give the path of an .npz file")
    if path.suffix == ".py":
        raise InputError(f"{path} is Python code: name what returns the graph, as in {path}:load")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an .npz archive: write it with numpy.savez")
    with foreign(path, _AGAIN), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if any(name.endswith("/data.pkl") for name in names):
            fix = "write it with fg.save_npz(fg.Graph.from_pyg(data), 'graph.npz'), or name a function that returns it"
            raise InputError(f"{path} is a file of torch.save, which is never opened: {fix} (my_file.py:load)")
        present = [key for key in (*required, *optional) if f"{key}.npy" in names]
        missing = [key for key in required if key not in present]
        if missing:
            held = one_line(", ".join(name.removesuffix(".npy") for name in names), 200)
            raise InputError(f"{path} lacks {', '.join(missing)} (it holds {held}): add them")
        twice = [key for key in present if names.count(f"{key}.npy") > 1]
        if twice:
            raise InputError(f"{path} holds {', '.join(twice)} more than once: {_AGAIN}")
        members = {key: _member(path, archive, key) for key in present}
        check(members)
        for key in (name.removesuffix(".npy") for name in names if name.isascii()):
            if key not in members and key.isidentifier() and names.count(f"{key}.npy") == 1:
                with suppress(InputError):
                    header = _member(path, archive, key)
                    if others(key, {**members, key: header}):
                        members[key] = header
        present = list(members)
        in_file = [key for key in mapped if key in members and _can_be_mapped(members[key])]
        require_memory(sum(m.nbytes for key, m in members.items() if key not in in_file), f"reading {path}")
        for key, good in zip(in_file, at_once(lambda key: _intact(path, members[key]), in_file), strict=True):
            if not good:
                raise InputError(f"{path} has a damaged '{key}' (its CRC-32 does not match): {_AGAIN}")
        return {key: _map(path, members[key]) if key in in_file else _read(archive, members[key]) for key in present}


def _member(path: Path, archive: zipfile.ZipFile, key: str) -> Member:
    """Read an array's header and compare it with the archive's directory."""
    info = archive.getinfo(f"{key}.npy")
    damaged = f"{path} has a damaged '{key}'"
    if info.flag_bits & 1:
        raise InputError(f"{path} holds '{key}' encrypted: write it again without a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{path} holds '{key}' in another compression than numpy's: write it with numpy.savez")
    most = info.compress_size * (_DEFLATE_MOST if info.compress_type == zipfile.ZIP_DEFLATED else 1)
    if info.file_size > most:
        raise InputError(f"{damaged} ({info.compress_size} bytes cannot hold {info.file_size}): {_AGAIN}")
    with archive.open(info) as stream:
        reader = _READERS.get(npy.read_magic(stream))
        if reader is None:
            raise InputError(f"{damaged} (a later .npy version): write it with numpy.savez")
        with PARSING:
            shape, fortran, dtype = reader(stream)
        start = stream.tell()
    if dtype.hasobject:
        raise InputError(f"{path} holds '{key}' as a pickled object, which is never opened: save it as a plain array")
    member = Member(info, start, shape, fortran, dtype)
    if any(not isinstance(length, int) or length < 0 for length in shape) or member.nbytes != info.file_size - start:
        raise InputError(f"{damaged} ({info.file_size - start} bytes for shape {shape}): {_AGAIN}")
    return member


def _can_be_mapped(member: Member) -> bool:
    return member.info.compress_type == zipfile.ZIP_STORED and member.dtype.kind in "iubf" and member.nbytes > 0


def _blocks(archive: zipfile.ZipFile, member: Member) -> Iterator[bytes]:
    """Yield the bytes of an array; zipfile compares the checksum at the end."""
    with archive.open(member.info) as stream:
        _skip(stream, member.start)
        while block := stream.read(_BLOCK_BYTES):
            yield block


def _skip(stream: IO[bytes], count: int) -> None:
    assert len(stream.read(count)) == count


def _read(archive: zipfile.ZipFile, member: Member) -> Array:
    """Read the array into memory, in this machine's byte order."""
    flat = np.empty(member.nbytes, dtype=np.uint8)
    filled = 0
    for block in _blocks(archive, member):
        flat[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
        filled += len(block)
    array: Array = flat.view(member.dtype) if member.nbytes else np.empty(0, member.dtype)
    array = array.reshape(member.shape, order="F" if member.fortran else "C")
    return array.astype(member.dtype.newbyteorder("="), order="K", copy=False)


def _map(path: Path, member: Member) -> Array:
    """Map the array from the file's pages, read-only, at any byte offset."""
    offset, order = _begin(path, member) + member.start, "F" if member.fortran else "C"
    return np.memmap(path, dtype=member.dtype, mode="r", offset=offset, shape=member.shape, order=order)  # type: ignore[call-overload, no-any-return]


def _intact(path: Path, member: Member) -> bool:
    """Whether a stored array matches the archive's checksum."""
    raw = np.memmap(path, dtype=np.uint8, mode="r", offset=_begin(path, member), shape=(member.info.file_size,))
    return zlib.crc32(raw.data) == member.info.CRC


def _begin(path: Path, member: Member) -> int:
    """Return the position of an array's first byte in the file."""
    with path.open("rb") as file:
        file.seek(member.info.header_offset)
        name, extra = struct.unpack_from("<HH", file.read(_LOCAL_HEADER), _LOCAL_HEADER - 4)
    return member.info.header_offset + _LOCAL_HEADER + int(name) + int(extra)


ENDINGS = (".parquet", ".csv")
HIDDEN = ("_", ".")  # prefixes of other files in such a folder: _SUCCESS, .part-0.crc


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or a folder's parts, sorted by the numbers in their names: all .parquet, or all .csv."""
    if not path.is_dir():
        return (need_file(path, "give the path of a .parquet or .csv file, or of a folder of such part files"),)
    entries = sorted((entry for entry in path.iterdir() if not entry.name.startswith(HIDDEN)), key=_numbers)
    folders = [entry for entry in entries if entry.is_dir()]
    if folders:
        problem = f"{one_line(path)} holds the folder {one_line(folders[0].name, 60)}"
        raise InputError(
            f"{problem}: write the table without partitions by a column (no partitionBy), all parts in one folder"
        )
    strange = [entry.name for entry in entries if entry.suffix not in ENDINGS]
    if strange:
        problem = f"{one_line(path)} holds {one_line(strange[0], 60)}, which is neither .parquet nor .csv"
        raise InputError(f"{problem}: write uncompressed CSV or Parquet parts, or move that file away")
    if len({entry.suffix for entry in entries}) != 1:
        what = "both .parquet and .csv parts: keep one kind" if entries else "no part file: add .parquet or .csv files"
        raise InputError(f"{one_line(path)} holds {what}")
    return tuple(entries)


def _numbers(path: Path) -> list[tuple[int, str]]:
    """Split a name into texts and numbers, so that part.10 comes after part.9."""
    pieces = re.split(r"([0-9]+)", path.name)
    return [(int(piece), "") if at % 2 else (-1, piece) for at, piece in enumerate(pieces)]


def tables_in(folder: Path, stem: str) -> list[Path]:
    """Return a folder's tables named `nodes.parquet`, `nodes.csv` or `nodes`; each is a file or a folder of parts."""
    named = [folder / f"{stem}{ending}" for ending in ENDINGS]
    return [path for path in named if path.exists()] + ([folder / stem] if (folder / stem).is_dir() else [])
