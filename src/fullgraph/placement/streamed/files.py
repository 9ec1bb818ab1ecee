"""Rows in memory or in a file, read and written by ranges or by row numbers.

A scratch file has no name: the kernel frees it when the process ends, however it ends. Pages of a file are unmapped
after each block, so the resident memory does not grow with the file.

Legend: n rows, k of them that are read or changed.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from fullgraph.ops import add_rows

WINDOW = 16 << 20  # bytes of a file that are mapped at a time
AT_ONCE = 1 << 30  # bytes of one system call


class Rows(Protocol):
    """Rows that may be read, in a fixed order."""

    dtype: torch.dtype

    def read(self, first: int, out_kD: Tensor) -> None:
        """Copy consecutive rows into `out`."""
        ...

    def pick(self, rows_k: Tensor, out_kD: Tensor) -> None:
        """Copy the given rows, which ascend, into `out`."""
        ...


class Store(Rows, Protocol):
    """Rows that may also be written."""

    def write(self, first: int, rows_kD: Tensor) -> None: ...
    def add(self, first: int, values_kD: Tensor) -> None:
        """Add to consecutive rows."""
        ...

    def add_at(self, rows_k: Tensor, values_kD: Tensor) -> None:
        """Add to the given rows, which are distinct and ascend."""
        ...

    def clear(self) -> None:
        """Set all rows to zero."""
        ...


class HeldRows:
    """Rows in memory."""

    def __init__(self, rows_nD: Tensor) -> None:
        self.rows, self.dtype = rows_nD, rows_nD.dtype

    @classmethod
    def empty(cls, num_rows: int, width: int, dtype: torch.dtype) -> "HeldRows":
        return cls(torch.empty(num_rows, width, dtype=dtype))

    def read(self, first: int, out_kD: Tensor) -> None:
        out_kD.copy_(self.rows[first : first + len(out_kD)])

    def pick(self, rows_k: Tensor, out_kD: Tensor) -> None:
        if self.dtype == out_kD.dtype:
            torch.index_select(self.rows, 0, rows_k, out=out_kD)
        else:
            out_kD.copy_(self.rows[rows_k])

    def write(self, first: int, rows_kD: Tensor) -> None:
        self.rows[first : first + len(rows_kD)] = rows_kD

    def add(self, first: int, values_kD: Tensor) -> None:
        self.rows[first : first + len(values_kD)] += values_kD

    def add_at(self, rows_k: Tensor, values_kD: Tensor) -> None:
        add_rows(self.rows, rows_k, values_kD)

    def clear(self) -> None:
        self.rows.zero_()


class FiledRows:
    """Rows of a file, from a position in it. Reading converts to the type of the result."""

    def __init__(self, file: BinaryIO, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.file, self.at, self.shape, self.dtype = file, at, shape, dtype
        self.row_bytes = prod(shape[1:]) * dtype.itemsize
        self._map: mmap.mmap | None = None

    @classmethod
    def of_npy(cls, path: Path) -> "FiledRows":
        """The rows of a .npy file that was checked before; they are only read."""
        file = path.open("rb")
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        assert not fortran
        return cls(file, file.tell(), shape, torch.from_numpy(np.empty(0, dtype)).dtype)

    @classmethod
    def scratch(cls, folder: Path, num_rows: int, width: int, dtype: torch.dtype) -> "FiledRows":
        """Zeros, in a new file without a name; its room on the disk is taken at once."""
        file = nameless(folder)
        rows = cls(file, 0, (num_rows, width), dtype)
        rows.clear()
        return rows

    def read(self, first: int, out_kD: Tensor) -> None:
        if out_kD.dtype == self.dtype:
            read_at(self.file, self.at + first * self.row_bytes, out_kD)
            return
        step = max(1, WINDOW // max(1, self.row_bytes))
        for low in range(0, len(out_kD), step):
            block = torch.empty(out_kD[low : low + step].shape, dtype=self.dtype)
            self.read(first + low, block)
            out_kD[low : low + step] = block

    def pick(self, rows_k: Tensor, out_kD: Tensor) -> None:
        for window_wD, rows, low, high in self._windows(rows_k):
            if out_kD.dtype == self.dtype:
                torch.index_select(window_wD, 0, rows, out=out_kD[low:high])
            else:
                out_kD[low:high] = window_wD[rows]

    def write(self, first: int, rows_kD: Tensor) -> None:
        write_at(self.file, self.at + first * self.row_bytes, rows_kD.to(self.dtype))

    def add(self, first: int, values_kD: Tensor) -> None:
        step = max(1, WINDOW // max(1, self.row_bytes))
        for low in range(0, len(values_kD), step):
            values = values_kD[low : low + step]
            block = torch.empty(values.shape, dtype=self.dtype)
            self.read(first + low, block)
            self.write(first + low, block.add_(values))

    def add_at(self, rows_k: Tensor, values_kD: Tensor) -> None:
        for window_wD, rows, low, high in self._windows(rows_k):
            add_rows(window_wD, rows, values_kD[low:high])

    def clear(self) -> None:
        size = self.shape[0] * self.row_bytes
        os.ftruncate(self.file.fileno(), 0)
        if size:
            os.posix_fallocate(self.file.fileno(), 0, size)  # a full disk is an error here, and a bus error later

    def _windows(self, rows_k: Tensor) -> Iterator[tuple[Tensor, Tensor, int, int]]:
        """Yield (rows of a window of the file, rows_k within it, and the range of these in rows_k)."""
        if not len(rows_k) or not self.row_bytes:
            return
        mapped, step = self._mapped(), max(1, WINDOW // self.row_bytes)
        first, last = int(rows_k[0]) // step, int(rows_k[-1]) // step
        cuts = torch.searchsorted(rows_k, torch.arange(first, last + 2) * step).tolist()
        for window, (low, high) in enumerate(zip(cuts, cuts[1:], strict=False), start=first):
            if low == high:
                continue
            begin, end = window * step, min((window + 1) * step, self.shape[0])
            place = self.at + begin * self.row_bytes
            count = (end - begin) * (self.row_bytes // self.dtype.itemsize)
            flat = torch.frombuffer(mapped, dtype=self.dtype, count=count, offset=place)
            yield flat.view(end - begin, *self.shape[1:]), rows_k[low:high] - begin, low, high
            page = place - place % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, page, self.at + end * self.row_bytes - page)

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            writes = self.file.writable()
            kind = mmap.MAP_SHARED if writes else mmap.MAP_PRIVATE  # torch accepts only writable memory
            size = self.at + self.shape[0] * self.row_bytes
            self._map = mmap.mmap(self.file.fileno(), size, flags=kind)
        return self._map


class Shelf:
    """Tensors of any shape in one file without a name, appended and read back by number."""

    def __init__(self, folder: Path) -> None:
        self.file, self.end = nameless(folder), 0
        self._places: list[tuple[int, torch.Size, torch.dtype]] = []

    def put(self, tensor: Tensor) -> int:
        self._places.append((self.end, tensor.shape, tensor.dtype))
        write_at(self.file, self.end, tensor)
        self.end += tensor.nbytes
        return len(self._places) - 1

    def get(self, number: int) -> Tensor:
        at, shape, dtype = self._places[number]
        out = torch.empty(shape, dtype=dtype)
        read_at(self.file, at, out)
        return out


def nameless(folder: Path) -> BinaryIO:
    """A new file without a name."""
    folder.mkdir(parents=True, exist_ok=True)
    file: Any = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # it lives as long as its owner
    return file  # type: ignore[no-any-return]


def read_at(file: BinaryIO, at: int, out: Tensor) -> None:
    """Fill a contiguous tensor from a file."""
    view = _bytes(out)
    while view:
        count = os.preadv(file.fileno(), [view[:AT_ONCE]], at)
        if not count:
            raise OSError(f"{file.name}: it ends before byte {at + len(view)}")
        view, at = view[count:], at + count


def write_at(file: BinaryIO, at: int, tensor: Tensor) -> None:
    view = _bytes(tensor.detach().contiguous())
    while view:
        count = os.pwrite(file.fileno(), view[:AT_ONCE], at)
        view, at = view[count:], at + count


def _bytes(tensor: Tensor) -> memoryview:
    assert tensor.is_contiguous()
    if not tensor.numel():
        return memoryview(b"")
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())
