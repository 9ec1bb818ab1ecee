"""evaluation.json: how right the best model is, by class or by size of the error, beside the best constant answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fullgraph.storage import read_record, write_document
from fullgraph.values import OneOf, Range, Value, tree_of

FILE = "evaluation.json"
FIX = "remove it; the report then leaves that part out"
MOST_CLASSES = 64  # with more, the matrix of classes is left out

Count = Annotated[int, Range(0, 2**62)]


@dataclass(frozen=True, kw_only=True)
class Evaluation(Value):
    """The best model on one split.

    kind: one class per node (classes), a set of classes (sets), real numbers (numbers) or pairs of nodes (pairs).
    """

    schema: Annotated[int, Range(1, 1)] = 1
    kind: Annotated[str, OneOf("classes", "sets", "numbers", "pairs")]
    split: str  # whose rows are counted below
    rows: dict[str, Count]  # labelled rows, by split
    constant: dict[str, float | None]  # by split, the metric of the best answer that is the same for every row
    names: tuple[str, ...] = ()  # of classes, if the graph names them
    labelled: tuple[Count, ...] = ()  # by class, rows with that label
    predicted: tuple[Count, ...] = ()  # by class, rows with that prediction
    right: tuple[Count, ...] = ()  # by class, rows with both
    confusion: tuple[tuple[Count, ...], ...] = ()  # [label][prediction]
    limits: tuple[float, ...] = ()  # ends of bins: of errors (numbers), or of probabilities (pairs)
    bins: dict[str, tuple[Count, ...]] = field(default_factory=dict)  # rows by bin, by kind of row

    def write(self, folder: Path) -> None:
        write_document(folder / FILE, tree_of(self))


def read_evaluation(folder: Path) -> Evaluation | None:
    """The evaluation of a run; None if it has none."""
    path = folder / FILE
    return read_record(Evaluation, path, fix=FIX) if path.exists() else None
