"""Memory-map an array that lies uncompressed inside an .npz archive."""

from __future__ import annotations

import math
import struct
import zipfile
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np
from numpy.lib import format as npy

from fullgraph.data.arrays import Array
from fullgraph.errors import InputError

_BLOCK_BYTES = 1 << 22
_LOCAL_HEADER = 30  # bytes, of which the last four are the lengths of the name and of the extra field after it
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

Header = tuple[tuple[int, ...], bool, "np.dtype[np.generic]"]


def map_member(path: Path, key: str) -> Array | None:
    """The array `key` over the pages of the file itself, read-only; None where it has to be read instead.

    Its first byte is at  offset = local header + name + extra field + npy header,  wherever that falls, so the array
    may be unaligned. The checksum is compared in blocks first, as it is for an array that is read. Compressed, empty
    and non-numeric arrays (pickles among them) are not mapped.
    """
    with zipfile.ZipFile(path) as archive:
        if f"{key}.npy" not in archive.namelist():
            return None
        info = archive.getinfo(f"{key}.npy")
        if info.compress_type != zipfile.ZIP_STORED:
            return None
        with archive.open(info) as member:
            header = _header(member)
            if header is None:
                return None
            start = member.tell()
            while member.read(_BLOCK_BYTES):
                pass  # zipfile compares the checksum when it meets the end
    shape, fortran, dtype = header
    needed, there = math.prod(shape) * dtype.itemsize, info.file_size - start
    if needed > there:
        raise InputError(
            f"{path} has a damaged '{key}' ({there} bytes instead of {needed}): copy or write the file again"
        )
    offset = _data_offset(path, info.header_offset) + start
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order="F" if fortran else "C")


def _header(member: IO[bytes]) -> Header | None:
    """Shape, Fortran order and type, if they are of an array that can be mapped."""
    try:
        reader = _READERS.get(npy.read_magic(member))
        if reader is None:
            return None
        shape, fortran, dtype = reader(member)
    except (ValueError, SyntaxError, TokenError):  # whoever reads it next says what is wrong
        return None
    if dtype.kind not in "iubf" or any(length <= 0 for length in shape):
        return None
    return shape, fortran, dtype


def _data_offset(path: Path, header_offset: int) -> int:
    with path.open("rb") as file:
        file.seek(header_offset)
        name, extra = struct.unpack_from("<HH", file.read(_LOCAL_HEADER), _LOCAL_HEADER - 4)
    return header_offset + _LOCAL_HEADER + int(name) + int(extra)
