"""The files of a table: one file, or the part files that Spark and Dask write into a folder."""

from __future__ import annotations

import re
from pathlib import Path

from fullgraph.data.files import need_file
from fullgraph.errors import InputError, one_line

ENDINGS = (".parquet", ".csv")
HIDDEN = ("_", ".")  # prefixes of other files in such a folder: _SUCCESS, .part-0.crc


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or a folder's parts, sorted by the numbers in their names: all .parquet, or all .csv."""
    if not path.is_dir():
        return (need_file(path, "give the path of a .parquet or .csv file, or of a folder of such part files"),)
    there = sorted((entry for entry in path.iterdir() if not entry.name.startswith(HIDDEN)), key=_numbers)
    folders = [entry for entry in there if entry.is_dir()]
    if folders:
        told = f"{one_line(path)} holds the folder {one_line(folders[0].name, 60)}"
        raise InputError(
            f"{told}: write the table without partitions by a column (no partitionBy), all parts in one folder"
        )
    strange = [entry.name for entry in there if entry.suffix not in ENDINGS]
    if strange:
        told = f"{one_line(path)} holds {one_line(strange[0], 60)}, which is neither .parquet nor .csv"
        raise InputError(f"{told}: write uncompressed CSV or Parquet parts, or move that file away")
    if len({entry.suffix for entry in there}) != 1:
        what = "both .parquet and .csv parts: keep one kind" if there else "no part file: add .parquet or .csv files"
        raise InputError(f"{one_line(path)} holds {what}")
    return tuple(there)


def _numbers(path: Path) -> list[tuple[int, str]]:
    """Split a name into texts and numbers, so that part.10 comes after part.9."""
    pieces = re.split(r"([0-9]+)", path.name)
    return [(int(piece), "") if at % 2 else (-1, piece) for at, piece in enumerate(pieces)]


def found_in(folder: Path, stem: str) -> list[Path]:
    """Return a folder's tables named `nodes.parquet`, `nodes.csv` or `nodes`; each is a file or a folder of parts."""
    named = [folder / f"{stem}{ending}" for ending in ENDINGS]
    return [path for path in named if path.exists()] + ([folder / stem] if (folder / stem).is_dir() else [])
