"""The record of a run: metrics.jsonl, one line per epoch, each with its own checksum."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Annotated

from fullgraph.errors import Damaged
from fullgraph.storage import open_to_append, read_text, record_of, sealed, unsealed, write_whole
from fullgraph.values import Range, Value, read_value

if TYPE_CHECKING:
    from torch import Tensor

Bytes = Annotated[int, Range(0, 2**53)]
Seconds = Annotated[float, Range(0, 1e12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord(Value, Mapping[str, "int | float | None"]):
    """One epoch: seconds of the slowest rank, bytes summed over ranks. A score that does not exist is None.

    Read a field as `record.loss` or as `record["loss"]`; `dict(record)` has all fields.
    """

    epoch: Annotated[int, Range(1, 2**53)]  # counts from 1
    loss: float
    lr: float
    epoch_s: Seconds
    wait_s: Seconds
    bytes: Bytes
    grad_bytes: Bytes
    train: float | None = None
    val: float | None = None
    test: float | None = None
    # |late - fresh| / |fresh| of halo rows; measured in some epochs
    late: Annotated[float, Range(0, 1e300)] | None = None
    other_bytes: Bytes = 0  # 0 in files of older versions, which did not count them
    row_wait_s: Seconds | None = None  # the part of `wait_s` for halo rows; None in files of older versions
    # |rows - rows of the last step| / |rows - their mean|; measured if a schedule follows it
    drift: Annotated[float, Range(0, 1e300)] | None = None

    def __getitem__(self, name: str) -> int | float | None:
        if name not in FIELDS:
            raise KeyError(f"{name}: an epoch's record has {', '.join(FIELDS)}")
        value: int | float | None = getattr(self, name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(FIELDS)

    def __len__(self) -> int:
        return len(FIELDS)


FIELDS = tuple(field.name for field in fields(EpochRecord))
WHOLE = ("epoch", "bytes", "grad_bytes", "other_bytes")


def as_table(records: list[EpochRecord]) -> Tensor:
    """Records as a table of numbers [epochs, fields] for a checkpoint; a missing number is NaN."""
    import torch

    rows = [[math.nan if value is None else float(value) for value in asdict(r).values()] for r in records]
    return torch.tensor(rows, dtype=torch.float64).view(-1, len(FIELDS))


def from_table(table: Tensor) -> list[EpochRecord]:
    """Read the records from a table of `as_table`; an older table has only the first fields."""
    records = []
    for row in table.tolist():
        values = {
            name: None if math.isnan(value) else value for name, value in zip(FIELDS[: len(row)], row, strict=True)
        }
        whole = {name: int(value) for name, value in values.items() if name in WHOLE and value is not None}
        records.append(read_value(EpochRecord, values | whole, "the checkpoint's history"))
    return records


class MetricsLog:
    """Writes metrics.jsonl: the epochs so far, then one line as each epoch ends. Training never reads it."""

    def __init__(self, path: Path, so_far: list[EpochRecord]) -> None:
        write_whole(path, "".join(_line(record) for record in so_far))
        self._file = os.fdopen(open_to_append(path), "a")

    def __call__(self, trainer: object, record: EpochRecord) -> None:
        self._file.write(_line(record))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _line(record: EpochRecord) -> str:
    kept = {name: value for name, value in asdict(record).items() if value is not None}
    return json.dumps(sealed(kept), allow_nan=False) + "\n"


def read_metrics(
    path: Path, epochs: int | None = None, known: dict[str, EpochRecord] | None = None
) -> list[EpochRecord]:
    """Read the records of a metrics.jsonl; refuse any damage.

    epochs: the length of a finished run; if None, the run is not finished, and a last line that a crash cut short is
    skipped.
    known: the records of lines that were read before; new ones are added.
    """
    fix = "remove it; `fullgraph train --resume` writes it again from the checkpoint"
    lines = read_text(path, fix=fix).split("\n")
    if epochs is not None and (len(lines) != epochs + 1 or lines[-1]):
        raise Damaged(f"{path} has {len(lines) - 1} whole lines for {epochs} epochs; {fix}")
    records, known = [], {} if known is None else known
    for number, line in enumerate(lines[:-1], start=1):
        here = f"{path} line {number}"
        if line not in known:
            known[line] = record_of(EpochRecord, unsealed(line, Path(here), fix), here, fix)
        records.append(known[line])
        if records[-1].epoch != number:
            raise Damaged(f"{here} is of epoch {records[-1].epoch}, not {number}: a line is missing or doubled; {fix}")
    return records


def seconds_to(records: list[EpochRecord], score: float, *, smaller: bool = False) -> float | None:
    """Seconds of training until the validation score first reached `score`; None: never.

    smaller: a smaller score is better.
    """
    spent = 0.0
    for record in records:
        spent += record.epoch_s
        if record.val is not None and (record.val <= score if smaller else record.val >= score):
            return spent
    return None


def medians(records: list[EpochRecord]) -> dict[str, float]:
    """Medians over epochs after warm-up; the first 1 + (a tenth, rounded down) epochs, at most 5, are left out.

    Other bytes are a mean: they come with evaluations, and a median would miss them.
    """
    warm = records[min(5, len(records) // 10 + 1) :] or records
    for_rows = [r.row_wait_s for r in warm if r.row_wait_s is not None]
    return {
        "epoch_s": median(r.epoch_s for r in warm),
        "wait_s": median(r.wait_s for r in warm),
        **({"row_wait_s": median(for_rows)} if for_rows else {}),
        "bytes_per_epoch": int(median(r.bytes for r in warm)),
        "grad_bytes_per_epoch": int(median(r.grad_bytes for r in warm)),
        "other_bytes_per_epoch": round(mean(r.other_bytes for r in warm)),
    }
