"""Plain .npy files: written in blocks of rows with a running checksum; checked and memory-mapped when read."""

from __future__ import annotations

import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fullgraph.data.arrays import PARSING, Array
from fullgraph.errors import InputError
from fullgraph.partition.manifest import AGAIN, FileFact

BLOCK_BYTES = 1 << 22


class NpyWriter:
    """A .npy file of known shape that grows by blocks of rows.

    It is written by appending: on a full disk, a memory-mapped file would end the process with a bus error. No file
    stays open between blocks, so any number of parts may be written at the same time.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._path = path
        self._dtype = np.dtype(dtype).newbyteorder("=")  # torch reads only the native byte order
        self._shape = shape
        self._rows = self._bytes = self._crc = 0
        head = BytesIO()
        descr: Any = np.lib.format.dtype_to_descr(self._dtype)
        np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
        self._write(head.getvalue(), mode="xb")

    def append(self, block: Array) -> None:
        block = np.ascontiguousarray(block, dtype=self._dtype)
        assert block.shape[1:] == self._shape[1:]
        self._rows += len(block)
        if block.size:
            self._write(block.reshape(-1).view(np.uint8).data, mode="ab")

    def close(self) -> FileFact:
        """Return the size and checksum of the finished file."""
        assert self._rows == self._shape[0], f"{self._path.name}: {self._rows} of {self._shape[0]} rows"
        return FileFact(self._bytes, self._crc)

    def _write(self, data: bytes | memoryview, mode: str) -> None:
        with self._path.open(mode) as file:
            file.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self._bytes += len(data)


def save(path: Path, array: Array) -> FileFact:
    """Write a whole array."""
    writer = NpyWriter(path, array.shape, array.dtype)
    writer.append(array)
    return writer.close()


def check(path: Path, fact: FileFact, *, content: bool = True) -> None:
    """Compare a file's size, and its checksum if `content`, with the manifest; raise one line that names the file."""
    try:
        size = path.stat().st_size
        if size != fact.bytes:
            raise InputError(f"{path} is damaged ({size} bytes instead of {fact.bytes}): {AGAIN}")
        if content and _crc32(path) != fact.crc32:
            raise InputError(f"{path} is damaged (its checksum does not match): {AGAIN}")
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {AGAIN}") from None
    except OSError as bad:
        raise InputError(f"cannot read {path} ({bad.strerror}): fix its permissions, or {AGAIN}") from None


def open_mapped(path: Path) -> Array:
    """Memory-map the array copy-on-write: torch accepts only writable arrays."""
    try:
        with PARSING:
            mapped: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    except OSError as bad:
        raise InputError(f"cannot read {path} ({bad.strerror}): fix its permissions, or {AGAIN}") from None
    except ValueError:
        raise InputError(f"{path} is damaged (not a .npy file): {AGAIN}") from None
    return mapped


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc
