"""The label column of a table: class numbers, texts, real numbers, or lists of 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.columns import Columns
from fullgraph.data.labels import MOST_TEXTS, is_number
from fullgraph.errors import InputError, one_line


def read_labels(table: Columns, label: str) -> tuple[Array | None, Array | None]:
    """Return labels, and the texts of classes if labels are texts; (None, None) if the table has no labels.

    y: class numbers [N], -1 for an empty cell; real numbers [N], NaN for an empty cell; or 0 and 1 [N, C].
    """
    import pyarrow as pa

    if label not in table:
        many = table.beginning(f"{label}_")
        columns = [table.rows_of(table.whole(name, "float32"), name, 0) for name in many]
        return (np.stack(columns, axis=1) if many else None), None
    kind = table.types[label]
    if table.is_list(label):
        table.number_type([label])
        return table.rows_of(table.whole(label, "list:float32"), label, 0), None
    if kind is None or pa.types.is_dictionary(kind) or table.is_text(label):
        return _of_words(table, label)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return table.rows_of(table.whole(label, "int64"), label, 0, missing=-1), None
    return _of_numbers(table.whole(label, "float64"), table.number_type([label])), None


def _of_numbers(column: Any, dtype: Any) -> Array:
    """Return integer-valued numbers as classes, since pandas stores integers with gaps as floats; others unchanged."""
    import pyarrow.compute as pc

    values: Array = np.asarray(pc.fill_null(column, float("nan")))
    known = values[~np.isnan(values)]
    if np.isfinite(known).all() and (known == np.floor(known)).all() and (np.abs(known) < 2.0**53).all():
        return np.where(np.isnan(values), -1, np.nan_to_num(values)).astype(np.int64)
    return values.astype(dtype)


def _of_words(table: Columns, label: str) -> tuple[Array, Array | None]:
    """Read texts that are all numbers as numbers; other texts become classes, in alphabetical order."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    words = table.whole(label, "string")
    words = pc.if_else(pc.equal(words, ""), pa.scalar(None, words.type), words)
    nothing = pa.array(csv.ConvertOptions().null_values, words.type)  # NA, NaN, null, ...
    try:
        numbers = pc.if_else(pc.is_in(words, value_set=nothing), pa.scalar(None, words.type), words).cast("float64")
    except pa.ArrowInvalid:
        pass
    else:
        return _of_numbers(numbers, np.dtype(np.float32)), None
    found = words.dictionary_encode()
    texts = found.dictionary.to_pylist()
    if len(texts) > MOST_TEXTS:
        told = f"{table.name} has {len(texts):,} different texts as {label}"
        raise InputError(f"{told}, more than {MOST_TEXTS:,}: give classes, not names")
    if any(map(is_number, texts)):
        strange = next(text for text in texts if not is_number(text))
        row = int(pc.index(words, strange).as_py())
        told = f"{table.at(row)} has {label} {one_line(repr(strange), 60)}, and other rows have numbers"
        raise InputError(f"{told}: give only numbers, or texts that are not numbers")
    order = np.argsort(np.array(texts, dtype=str), kind="stable")
    number = np.empty(len(texts) + 1, dtype=np.int64)
    number[order], number[-1] = np.arange(len(texts)), -1
    codes = np.asarray(pc.fill_null(found.indices, len(texts)))
    return number[codes], np.array(texts, dtype=str)[order]
