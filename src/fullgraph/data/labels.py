"""Check labels: class numbers, texts as class numbers, columns of 0 and 1, or real numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fullgraph.data.arrays import Array, as_numpy
from fullgraph.data.splits import SPLIT_NAMES
from fullgraph.data.validate import as_real
from fullgraph.errors import InputError

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
    found, numbers = np.unique(np.array([text for text, ok in zip(texts, known, strict=True) if ok], dtype=str),
                               return_inverse=True)  # fmt: skip
    if any(map(is_number, found.tolist())):
        told = f"y has the type {labels.dtype}, and some of its texts are numbers"
        raise InputError(f"{told}: give class numbers as integers, or texts that are not numbers")
    if len(found) > MOST_TEXTS:
        raise InputError(f"y has {len(found):,} different texts, more than {MOST_TEXTS:,}: give classes, not names")
    coded = np.full(len(texts), -1)
    coded[known] = numbers
    return coded, tuple(found.tolist())


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
    for name, mask in zip(SPLIT_NAMES, masks, strict=True):
        bad = np.flatnonzero(unknown & mask.any(axis=1))
        if bad.size:
            told = f"{bad.size} nodes whose y is NaN or infinite (node {bad[0]})"
            raise InputError(f"{name}_mask marks {told}: take them out of the mask, or give them finite numbers")
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
    for name, mask in zip(SPLIT_NAMES, masks, strict=True):
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
