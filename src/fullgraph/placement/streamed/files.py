"""Rows in memory or in a file, read and written by ranges.

A scratch file has no name: the kernel frees it when the process ends, however it ends. Rows are copied from and to a
file, never mapped, so the resident memory does not grow with it.

Legend: n rows, k of them that are read or written.
"""

import os
import tempfile
from math import prod
from pathlib import Path
from typing import IO, Protocol
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

BLOCK = 4 << 20  # bytes that are converted at a time
AT_ONCE = 1 << 30  # bytes of one system call


class Rows(Protocol):
    """Rows that may be read."""

    dtype: torch.dtype

    def read(self, first: int, out_kD: Tensor) -> None:
        """Copy consecutive rows into `out`."""
        ...


class Store(Rows, Protocol):
    """Rows that may also be written."""

    def write(self, first: int, rows_kD: Tensor) -> None: ...


class HeldRows:
    """Rows in memory."""

    def __init__(self, rows_nD: Tensor) -> None:
        self.rows, self.dtype = rows_nD, rows_nD.dtype

    def read(self, first: int, out_kD: Tensor) -> None:
        out_kD.copy_(self.rows[first : first + len(out_kD)])

    def write(self, first: int, rows_kD: Tensor) -> None:
        self.rows[first : first + len(rows_kD)] = rows_kD


class OpenFile:
    """A file that is closed when nobody refers to it any more; one without a name is then freed."""

    def __init__(self, file: IO[bytes]) -> None:
        self.handle = os.dup(file.fileno())
        finalize(self, os.close, self.handle)

    @classmethod
    def nameless(cls, folder: Path) -> "OpenFile":
        """A new file without a name."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            return cls(file)

    def read(self, at: int, out: Tensor) -> None:
        """Fill a contiguous tensor."""
        view = _bytes(out)
        while view:
            count = os.preadv(self.handle, [view[:AT_ONCE]], at)
            if not count:
                raise OSError(f"a file of rows ends before byte {at + len(view)}")
            view, at = view[count:], at + count

    def write(self, at: int, tensor: Tensor) -> None:
        view = _bytes(tensor.detach().contiguous())
        while view:
            count = os.pwrite(self.handle, view[:AT_ONCE], at)
            view, at = view[count:], at + count


class FiledRows:
    """Rows of a file, from a position in it. Reading converts to the type of the result."""

    def __init__(self, file: OpenFile, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.file, self.at, self.dtype = file, at, dtype
        self.row_bytes = prod(shape[1:]) * dtype.itemsize

    @classmethod
    def of_npy(cls, path: Path) -> "FiledRows":
        """The rows of a .npy file that was checked before; they are only read."""
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            assert not fortran
            return cls(OpenFile(file), file.tell(), shape, torch.from_numpy(np.empty(0, dtype)).dtype)

    @classmethod
    def scratch(cls, folder: Path, num_rows: int, width: int, dtype: torch.dtype) -> "FiledRows":
        """Rows in a new file without a name; its room on the disk is taken at once."""
        rows = cls(OpenFile.nameless(folder), 0, (num_rows, width), dtype)
        if size := num_rows * rows.row_bytes:
            os.posix_fallocate(rows.file.handle, 0, size)
        return rows

    def read(self, first: int, out_kD: Tensor) -> None:
        if out_kD.dtype == self.dtype:
            self.file.read(self.at + first * self.row_bytes, out_kD)
            return
        step = max(1, BLOCK // max(1, self.row_bytes))
        for low in range(0, len(out_kD), step):
            block = torch.empty(out_kD[low : low + step].shape, dtype=self.dtype)
            self.read(first + low, block)
            out_kD[low : low + step] = block

    def write(self, first: int, rows_kD: Tensor) -> None:
        self.file.write(self.at + first * self.row_bytes, rows_kD.to(self.dtype))


def store(folder: Path | None, num_rows: int, width: int, dtype: torch.dtype) -> Store:
    """New rows in a file of that folder; None: in memory."""
    if folder is None:
        return HeldRows(torch.empty(num_rows, width, dtype=dtype))
    return FiledRows.scratch(folder, num_rows, width, dtype)


class Shelf:
    """Tensors of any shape in one file without a name, appended and read back by number."""

    def __init__(self, folder: Path) -> None:
        self.file, self.end = OpenFile.nameless(folder), 0
        self._places: list[tuple[int, torch.Size, torch.dtype]] = []

    def put(self, tensor: Tensor) -> int:
        self._places.append((self.end, tensor.shape, tensor.dtype))
        self.file.write(self.end, tensor)
        self.end += tensor.nbytes
        return len(self._places) - 1

    def get(self, number: int) -> Tensor:
        at, shape, dtype = self._places[number]
        out = torch.empty(shape, dtype=dtype)
        self.file.read(at, out)
        return out


def _bytes(tensor: Tensor) -> memoryview:
    assert tensor.is_contiguous()
    if not tensor.numel():
        return memoryview(b"")
    return tensor.view(-1).view(torch.uint8).numpy().data
