"""The run record: files of a run's folder, written so that none is ever half there."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """One line of metrics.jsonl; seconds are the slowest rank's, bytes the sum over ranks."""

    epoch: int
    loss: float
    lr: float
    epoch_s: float
    wait_s: float
    bytes: int
    grad_bytes: int
    train: float | None = None
    val: float | None = None
    test: float | None = None


def write_json(path: Path, value: Any) -> None:
    """Write to a temporary name, then rename."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class MetricsLog:
    """metrics.jsonl: a line an epoch, flushed as it is written; a resumed run drops the lines it will write again."""

    def __init__(self, path: Path, *, resume_at: int) -> None:
        kept = [record for record in read_metrics(path) if record.epoch < resume_at]
        write_text(path, "".join(_line(record) for record in kept))
        self._file = path.open("a")

    def __call__(self, trainer: object, record: EpochRecord) -> None:
        self._file.write(_line(record))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _line(record: EpochRecord) -> str:
    return json.dumps({k: v for k, v in asdict(record).items() if v is not None}) + "\n"


def read_metrics(path: Path) -> list[EpochRecord]:
    """The records of a metrics.jsonl; a last line cut short by a crash is left out."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(EpochRecord(**json.loads(line)))
        except ValueError:
            break
    return records


def seconds_to(records: list[EpochRecord], score: float) -> float | None:
    """Seconds of training until the validation score was first at least `score`; None: never."""
    spent = 0.0
    for record in records:
        spent += record.epoch_s
        if record.val is not None and record.val >= score:
            return spent
    return None


def medians(records: list[EpochRecord]) -> dict[str, float]:
    """Medians over epochs after warm-up (the first tenth, at most five epochs)."""
    warm = records[min(5, len(records) // 10 + 1) :] or records
    return {
        "epoch_s": median(r.epoch_s for r in warm),
        "wait_s": median(r.wait_s for r in warm),
        "bytes_per_epoch": int(median(r.bytes for r in warm)),
        "grad_bytes_per_epoch": int(median(r.grad_bytes for r in warm)),
    }
