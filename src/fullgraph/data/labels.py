"""Check labels: class numbers, texts, columns of 0 and 1, or real numbers; and read the labels of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from fullgraph.data.arrays import Array, as_numpy
from fullgraph.data.columns import Columns
from fullgraph.data.splits import SPLITS
from fullgraph.data.validate import as_real
from fullgraph.errors import InputError, one_line

MOST_TEXTS = 65_536  # classes that are texts; more texts must be names of nodes


def coded(y: Any, classes: Any = None) -> tuple[Any, tuple[str, ...]]:
    """Return text labels as class numbers with the texts of the classes in alphabetical order; other labels unchanged.

    An empty text, None and NaN are unlabelled. classes: texts of the classes, if y already holds their numbers.
    """
    if classes is not None:
        return y, _texts_of(as_numpy(classes), y)
    labels = None if y is None else as_numpy(y)
    if labels is None or labels.dtype.kind not in "USO":
        return y, ()
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(f"y is texts of shape {labels.shape}: give one text per node, or columns of 0 and 1")
    texts = labels.tolist()
    known = np.array([not (text is None or text == "" or text != text) for text in texts], dtype=bool)
    strange = next((text for text, ok in zip(texts, known, strict=True) if ok and not isinstance(text, str)), None)
    if strange is not None:
        raise InputError(f"y mixes texts and other objects ({type(strange).__name__}): give texts, or class numbers")
    distinct, numbers = np.unique(np.array([text for text, ok in zip(texts, known, strict=True) if ok], dtype=str),
                               return_inverse=True)  # fmt: skip
    if any(map(is_number, distinct.tolist())):
        problem = f"y has the type {labels.dtype}, and some of its texts are numbers"
        raise InputError(f"{problem}: give class numbers as integers, or texts that are not numbers")
    if len(distinct) > MOST_TEXTS:
        raise InputError(f"y has {len(distinct):,} different texts, more than {MOST_TEXTS:,}: give classes, not names")
    coded = np.full(len(texts), -1)
    coded[known] = numbers
    return coded, tuple(distinct.tolist())


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _texts_of(classes: Array, y: Any) -> tuple[str, ...]:
    """Return the given texts of class numbers: distinct, one per class."""
    if classes.ndim != 1 or classes.dtype.kind not in "US":
        raise InputError(f"class_names is {classes.dtype} {classes.shape}: give one text per class")
    texts = tuple(classes.astype(str).tolist())
    if len(set(texts)) != len(texts):
        raise InputError("class_names has a text twice: give each class a different text")
    numbers = as_numpy(y if y is not None else [])
    if numbers.size and (numbers.ndim != 1 or numbers.dtype.kind not in "iu" or int(numbers.max()) >= len(texts)):
        raise InputError(f"class_names has {len(texts)} texts, which do not match y: give one per class, and y as "
                         "class numbers")  # fmt: skip
    return texts


def check_labels(y: Any, masks: tuple[Array, Array, Array], num_nodes: int) -> Array:
    """Return y as int64 [N] with -1 only outside the masks, as 0/1 float32 [N, C], or as real numbers [N] or [N, C].

    None means that no node has a label.
    """
    if y is None:
        return np.full(num_nodes, -1)
    labels = as_numpy(y)
    if labels.ndim not in (1, 2) or labels.shape[0] != num_nodes:
        raise InputError(f"y has shape {labels.shape} for the {num_nodes} nodes of x: give [nodes] or [nodes, classes]")
    if labels.ndim == 2 and labels.shape[1] == 0:
        raise InputError("y has no class columns: give [nodes, classes] with zeros and ones, or class numbers [nodes]")
    if labels.ndim == 2 and labels.dtype.kind in "iubf" and ((labels == 0) | (labels == 1)).all():
        return labels.astype(np.float32, copy=False)
    if labels.dtype.kind == "f":
        return _check_real(labels, masks)
    if labels.ndim == 2 and labels.shape[1] == 1 and labels.dtype.kind in "iu":  # OGB's form of class numbers
        labels = labels[:, 0]
    if labels.ndim == 2:
        raise InputError(
            f"y of shape {labels.shape} is multi-label and may hold only 0 and 1: "
            "give zeros and ones, class numbers as [nodes], or real numbers as floats"
        )
    return _check_single(labels, masks, num_nodes)


def is_real(labels: Array) -> bool:
    """Whether checked labels are real numbers, not classes."""
    return labels.dtype.kind == "f" and (labels.ndim == 1 or not ((labels == 0) | (labels == 1)).all())


def _check_real(labels: Array, masks: tuple[Array, Array, Array]) -> Array:
    labels = as_real("y", labels)
    unknown = ~np.isfinite(labels.reshape(len(labels), -1)).all(axis=1)
    for name, mask in zip(SPLITS, masks, strict=True):
        bad = np.flatnonzero(unknown & mask.any(axis=1))
        if bad.size:
            problem = f"{bad.size} nodes whose y is NaN or infinite (node {bad[0]})"
            raise InputError(f"{name}_mask marks {problem}: take them out of the mask, or give them finite numbers")
    return labels


def _check_single(labels: Array, masks: tuple[Array, Array, Array], num_nodes: int) -> Array:
    if labels.dtype.kind not in "iu":
        raise InputError(f"y has the type {labels.dtype}: give class numbers as integers, or real numbers as floats")
    low, high = int(labels.min()), int(labels.max())
    if low < -1:
        raise InputError(f"y holds the label {low}: classes start at 0, and -1 means unlabelled")
    if high >= num_nodes:
        raise InputError(
            f"y holds the label {high} for {num_nodes} nodes: number the classes 0, 1, 2, ... without gaps"
        )
    unlabelled = labels == -1
    for name, mask in zip(SPLITS, masks, strict=True):
        bad = np.flatnonzero(unlabelled & mask.any(axis=1))
        if bad.size:
            raise InputError(
                f"{name}_mask marks {bad.size} unlabelled nodes (node {bad[0]} has y = -1): take them out of the mask"
            )
    return labels.astype(np.int64, copy=False)


def whole_numbers(labels: Array) -> bool:
    """Whether real labels could be class numbers: one per node, integers from 0 on, below the number of nodes."""
    flat = labels.reshape(len(labels), -1)
    if flat.shape[1] != 1:
        return False
    known = flat[np.isfinite(flat)]
    return bool(known.size and (known >= 0).all() and (known < len(flat)).all() and (known == np.floor(known)).all())


def as_classes(labels: Array) -> Array:
    """Return integer-valued real labels as class numbers; NaN and infinity become unlabelled."""
    flat = labels.reshape(-1)
    known = np.isfinite(flat)
    return np.where(known, np.where(known, flat, 0), -1).astype(np.int64)


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
    encoded = words.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    if len(texts) > MOST_TEXTS:
        problem = f"{table.name} has {len(texts):,} different texts as {label}"
        raise InputError(f"{problem}, more than {MOST_TEXTS:,}: give classes, not names")
    if any(map(is_number, texts)):
        strange = next(text for text in texts if not is_number(text))
        row = int(pc.index(words, strange).as_py())
        problem = f"{table.at(row)} has {label} {one_line(repr(strange), 60)}, and other rows have numbers"
        raise InputError(f"{problem}: give only numbers, or texts that are not numbers")
    order = np.argsort(np.array(texts, dtype=str), kind="stable")
    number = np.empty(len(texts) + 1, dtype=np.int64)
    number[order], number[-1] = np.arange(len(texts)), -1
    codes = np.asarray(pc.fill_null(encoded.indices, len(texts)))
    return number[codes], np.array(texts, dtype=str)[order]
