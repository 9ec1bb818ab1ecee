"""The columns of a user's table (Parquet, CSV or a pyarrow table), read in batches of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.files import files_of, foreign
from fullgraph.errors import InputError, nearest, one_line

BATCH_ROWS = 1 << 18
CSV_BLOCK = 1 << 24  # bytes of a CSV file per read
LIST = "list:"  # prefix of the kind of a column of lists
CSV_ROW = 16  # bytes of a row, to guess how many a CSV file has
EXTRA = "pip install 'fullgraph[tables]'"


class Span(NamedTuple):
    """A file of a table, or some row groups of a Parquet file; `before`: the rows of the file that precede them."""

    path: Path
    groups: tuple[int, ...] | None = None
    before: int = 0


@dataclass(frozen=True, eq=False)
class Columns:
    """A table: its name for errors, the names and types of its columns, and its rows in batches."""

    name: str
    types: Mapping[str, Any]  # pyarrow types; None for columns of a CSV file, which are read as any requested type
    source: Any = field(repr=False)  # spans, or a pyarrow table

    def __contains__(self, column: object) -> bool:
        return column in self.types

    def need(self, column: str, what: str) -> None:
        if column not in self:
            columns_text = one_line(", ".join(self.types), 120)
            raise InputError(
                f"{self.name} has no column {column!r}{nearest(column, self.types)}, {what}; it has {columns_text}: "
                "rename one, or say which it is"
            )

    def beginning(self, prefix: str, but: Collection[str] = ()) -> list[str]:
        """Return the columns whose names begin with `prefix`, except those in `but`, in the table's order."""
        return [name for name in self.types if name.startswith(prefix) and name not in but]

    def id_type(self, column: str, like: Any = None) -> str:
        """Return int64 or string, by the column's type and that of the ids it must match; CSV ids are texts."""
        import pyarrow as pa

        kind = self.types[column]
        if kind is not None and pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind is not None and not (pa.types.is_integer(kind) or _is_text(kind)):
            raise InputError(f"{self.name} has {column} as {kind}: ids are whole numbers or texts")
        mine = "int64" if kind is not None and pa.types.is_integer(kind) else "string"
        if like is None or kind is None:
            return mine if like is None else ("int64" if pa.types.is_integer(like.type) else "string")
        if pa.types.is_integer(kind) != pa.types.is_integer(like.type):
            raise InputError(
                f"{self.name} has {column} as {kind}, and the nodes' ids are {like.type}: make them the same"
            )
        return mine

    def number_type(self, columns: Sequence[str]) -> np.dtype[Any]:
        """Return float64 if a column has that many digits, else float32; refuse a column of texts."""
        import pyarrow as pa

        kinds = {column: self._number(column) for column in columns if self.types[column] is not None}
        for column, kind in kinds.items():
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
                listed = " (turn a struct, such as a Spark vector, into a list: vector_to_array)"
                raise InputError(
                    f"{self.name} has {column} as {one_line(self.types[column], 80)}, where numbers belong: make it "
                    f"numbers{listed if pa.types.is_struct(kind) else ''}, leave it out, "
                    "or give feature columns a prefix (x_ for nodes, e_ for edges)"
                )
        return np.dtype(np.float64 if any(pa.types.is_float64(kind) for kind in kinds.values()) else np.float32)

    def _number(self, column: str) -> Any:
        """Return the type of a column, or of the items in its lists."""
        kind = self.types[column]
        return kind.value_type if self.is_list(column) else kind

    def is_text(self, column: str) -> bool:
        return _is_text(self.types[column])

    def is_list(self, column: str) -> bool:
        """Whether each row holds a list."""
        import pyarrow as pa

        kind, tests = self.types[column], (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        return kind is not None and any(test(kind) for test in tests)

    def as_numbers(self, columns: Sequence[str], dtype: np.dtype[Any]) -> dict[str, str]:
        """Return the kinds to request from `batches`: numbers, or lists of numbers."""
        return {column: f"{LIST if self.is_list(column) else ''}{dtype.name}" for column in columns}

    def width(self, column: str) -> int:
        """Return the number of numbers per row of a column; for lists, the length of the first one."""
        if not self.is_list(column):
            return 1
        first = next(self.batches({column: f"{LIST}float64"}), None)
        return 0 if first is None else int(self.rows_of(first.slice(0, 1).column(0), column, 0).shape[1])

    def whole(self, column: str, kind: str) -> Any:
        """Return a column as one pyarrow array."""
        import pyarrow as pa

        batches = [batch.column(0) for batch in self.batches({column: kind})]
        return pa.concat_arrays(batches) if batches else pa.array([], _type(kind))

    def batches(self, columns: Mapping[str, str], rows: int = 0) -> Iterator[Any]:
        """Yield batches of the given columns, in the requested types; of at most `rows` rows, if given."""
        for name, batches in self._files(columns, rows or BATCH_ROWS):
            while True:
                with foreign(name, "correct the table"):
                    batch = next(batches, None)
                    if batch is None:
                        break
                    batch = _cast(batch, columns, name)
                if len(batch):
                    yield batch

    def pieces(self, rows: int) -> Iterator[Columns]:
        """Split a table of files into tables of about `rows` rows each, which can be read separately.

        A CSV file and a row group of a Parquet file stay whole.
        """
        held: list[Span] = []
        count = 0
        for path in self.paths:
            for span, more in _groups_of(path):
                if held and held[-1].path == path:
                    held[-1] = held[-1]._replace(groups=(held[-1].groups or ()) + (span.groups or ()))
                else:
                    held.append(span)
                count += more
                if count >= rows:
                    yield replace(self, source=tuple(held))
                    held, count = [], 0
        if held:
            yield replace(self, source=tuple(held))

    def most_rows(self) -> int:
        """Return the number of rows; of CSV files a guess."""
        return sum(rows for path in self.paths for _, rows in _groups_of(path))

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(span.path for span in self.source)

    def at(self, row: int) -> str:
        """Name a row in an error: its file, and its number in that file, from 1."""
        if not isinstance(self.source, tuple):
            return f"{self.name} row {row + 1}"
        span = self.source[0]
        if len(self.source) > 1:
            for span in self.source:
                count = _rows_of(span, next(iter(self.types)))
                if row < count:
                    break
                row -= count
        return f"{span.path} row {span.before + row + 1}"

    def rows_of(self, array: Any, column: str, row: int, missing: int | None = None) -> Array:
        """Return a column's numbers [rows], or for lists [rows, width]; `row` is the number of the first row.

        Nulls become `missing`, or are refused.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if array.null_count:
            if missing is None:
                bad = row + int(pc.index(pc.is_null(array), True).as_py())
                raise InputError(f"{self.at(bad)} has no {column}: give it a number, or leave the row out")
            array = pc.fill_null(array, missing)
        if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
            numbers: Array = np.asarray(array)
            return numbers
        length = np.asarray(pc.list_value_length(array))
        wrong = np.flatnonzero(length != length[:1])
        if wrong.size or not length[:1].any():
            bad = int(wrong[0]) if wrong.size else 0
            problem = f"{self.at(row + bad)} has a list of {length[bad]} numbers as {column}"
            raise InputError(f"{problem}, and other rows have {length[0]}: give all rows the same number, at least one")
        flat = array.flatten()
        if flat.null_count:
            bad = row + int(pc.index(pc.is_null(flat), True).as_py()) // int(length[0])
            raise InputError(f"{self.at(bad)} lacks a number within {column}: give it one, or leave the row out")
        matrix: Array = np.asarray(flat).reshape(len(length), -1)
        return matrix

    def groups(self, columns: Mapping[str, str], least: int) -> Iterator[Any]:
        """Yield tables of at least `least` rows; the last one may be shorter."""
        import pyarrow as pa

        held: list[Any] = []
        for batch in self.batches(columns):
            held.append(batch)
            if sum(map(len, held)) >= least:
                yield pa.Table.from_batches(held)
                held = []
        if held:
            yield pa.Table.from_batches(held)

    def _files(self, columns: Mapping[str, str], rows: int) -> Iterator[tuple[str, Iterator[Any]]]:
        """Yield each file's name and its batches."""
        if isinstance(self.source, tuple):
            for span in self.source:
                yield str(span.path), _read(span, columns, rows)
        else:
            yield self.name, iter(self.source.select(list(columns)).to_batches(max_chunksize=rows))


def _read(span: Span, columns: Mapping[str, str], rows: int) -> Iterator[Any]:
    names = list(columns)
    if span.path.suffix == ".csv":
        from pyarrow import csv

        types = {name: _type(kind) for name, kind in columns.items()}
        convert = csv.ConvertOptions(column_types=types, include_columns=names)
        yield from csv.open_csv(span.path, convert_options=convert, read_options=csv.ReadOptions(block_size=CSV_BLOCK))
    else:
        import pyarrow.parquet as pq

        with pq.ParquetFile(span.path, memory_map=True) as file:
            for batch in file.iter_batches(rows, row_groups=span.groups, columns=names):
                yield batch.select(names)  # the file's column order may differ


def _groups_of(path: Path) -> Iterator[tuple[Span, int]]:
    """Yield the row groups of a Parquet file, or a whole CSV file, with the number of their rows."""
    if path.suffix == ".csv":
        yield Span(path), path.stat().st_size // CSV_ROW
        return
    import pyarrow.parquet as pq

    with foreign(path, "write it again as Parquet"):
        about = pq.read_metadata(path)
        counts = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
    before = 0
    for group, rows in enumerate(counts):
        yield Span(path, (group,), before), rows
        before += rows


def _rows_of(span: Span, column: str) -> int:
    if span.path.suffix == ".csv":
        return sum(map(len, _read(span, {column: "string"}, BATCH_ROWS)))
    rows = [count for _, count in _groups_of(span.path)]
    return sum(rows if span.groups is None else (rows[group] for group in span.groups))


def open_columns(table: Any, what: str) -> Columns:
    """Return the columns of a file, a folder of part files, or a pyarrow table."""
    try:
        import pyarrow as pa
    except ImportError:
        raise InputError(f"tables of nodes and edges need an extra: {EXTRA}") from None
    if isinstance(table, pa.Table):
        return Columns(what, _checked(table.schema.names, table.schema.types, what), table)
    if not isinstance(table, str | Path):
        raise InputError(
            f"{what} is a {type(table).__name__}: give the path of a .parquet or .csv file, or a pyarrow table"
        )
    path = Path(table)
    files = files_of(path)
    if len(files) > 1 and files[0].suffix == ".csv":  # a part without rows may lack the header too
        files = tuple(file for file in files if file.stat().st_size) or files[:1]
    types = _columns_of(files[0])
    for file in files[1:]:
        others = _columns_of(file)
        if others.keys() != types.keys():
            odd = sorted(others.keys() ^ types.keys())[0]
            raise InputError(f"{file} and {files[0].name} have other columns (one lacks {one_line(odd, 60)!r}): write "
                             "all parts alike")  # fmt: skip
        types = {name: others[name] if kind is not None and pa.types.is_null(kind) else kind
                 for name, kind in types.items()}  # fmt: skip
    return Columns(str(path), types, tuple(map(Span, files)))


def _columns_of(path: Path) -> dict[str, Any]:
    """Return the names and types of a file's columns; CSV columns have no type."""
    if path.suffix == ".csv":
        names = _csv_header(path)
        return _checked(names, [None] * len(names), str(path))
    if path.suffix != ".parquet":
        raise InputError(f"{path} is neither .parquet nor .csv: give one of the two")
    import pyarrow.parquet as pq

    with foreign(path, "write it again as Parquet"):
        schema = pq.read_schema(path)
    return _checked(schema.names, schema.types, str(path))


def _csv_header(path: Path) -> list[str]:
    import csv

    with foreign(path, "write it as UTF-8 text"), path.open(newline="", encoding="utf-8-sig") as file:
        first = next(csv.reader(file), [])
    if not first:
        raise InputError(f"{path} is empty: give a first line with the names of columns")
    return first


def _checked(names: Sequence[str], types: Sequence[Any], where: str) -> dict[str, Any]:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{where} has the column {one_line(repr(twice[0]), 60)} twice: keep one of them")
    plain = [getattr(kind, "storage_type", kind) for kind in types]  # tensor columns become lists
    return dict(zip(names, plain, strict=True))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _type(kind: str) -> Any:
    import pyarrow as pa

    if kind.startswith(LIST):
        return pa.large_list(pa.type_for_alias(kind.removeprefix(LIST)))
    return {"string": pa.large_string(), "bool": pa.bool_()}.get(kind) or pa.type_for_alias(kind)


def _cast(batch: Any, columns: Mapping[str, str], where: str) -> Any:
    """Return the batch in the requested types."""
    import pyarrow as pa

    arrays = []
    for array, (name, kind) in zip(batch.columns, columns.items(), strict=True):
        array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else getattr(array, "storage", array)
        try:
            # A float64 in a table of floats may become a float32; a fraction never becomes an integer.
            arrays.append(array.cast(_type(kind), safe=not kind.removeprefix(LIST).startswith("float")))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as bad:
            raise InputError(
                f"{where} has {name} as {array.type}, where {kind} belongs ({one_line(bad, 100)})"
            ) from None
    return pa.record_batch(arrays, names=list(columns))


def stacked(values: Sequence[Array], rows: int, dtype: np.dtype[Any]) -> Array:
    """Stack columns side by side [rows, columns]."""
    return np.column_stack(values) if values else np.empty((rows, 0), dtype)
