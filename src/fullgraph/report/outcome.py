"""What tables tell of a finished run: a part of its result.json, checked."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from fullgraph.errors import printable
from fullgraph.report.record import Bytes, Seconds
from fullgraph.storage import read_document, record_of
from fullgraph.values import Range, Value

PAGE = "report.html"  # of a run that was trained with `report`
FIX = "name the folder of a finished run"


@dataclass(frozen=True, kw_only=True)
class Outcome(Value):
    """How good a run was, and what it cost."""

    schema: Annotated[int, Range(1, 1)]
    strategy: str
    model: str
    ranks: Annotated[int, Range(1, 65535)]
    epochs: Annotated[int, Range(1, 10**9)]
    metric: str
    smaller_is_better: bool = False
    best_epoch: Annotated[int, Range(0, 10**9)]  # 0: there was no score
    test: float | None
    val: float | None
    epoch_s: Seconds
    wait_s: Seconds
    bytes_per_epoch: Bytes
    bytes_total: Bytes


def read_outcome(folder: Path) -> Outcome:
    """The outcome of the run in `folder`; result.json holds more, which others may add to."""
    path = folder / "result.json"
    tree = read_document(path, fix=FIX)
    known = {field.name: tree[field.name] for field in fields(Outcome) if field.name in tree}
    known = {name: printable(value) if isinstance(value, str) else value for name, value in known.items()}
    return record_of(Outcome, known, str(path), FIX)
