"""One measured cell of a matrix; and a campaign's files: one line per cell, then one document."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fullgraph.errors import one_line
from fullgraph.lab.bench.matrix import PEERS, Group, Point, Settings
from fullgraph.report.record import Bytes, Seconds
from fullgraph.storage import (
    discard,
    open_to_append,
    read_text,
    record_of,
    sealed,
    unsealed,
    write_document,
    write_whole,
)
from fullgraph.values import Range, Value, tree_of

Count = Annotated[int, Range(0, 2**53)]
Key = tuple[Point, str, int, bool]  # cells with equal keys replace each other


@dataclass(frozen=True, kw_only=True)
class Cell(Value):
    """One strategy on one graph, model, number of ranks and link.

    Seconds, bytes and packets are per epoch: a mean over the epochs of a round, then the median over rounds. Fields
    that begin with `rank_` have one number per rank.
    """

    # the place in the matrix: texts as the user gave them
    graph: str
    model: str
    strategy: str
    ranks: Annotated[int, Range(1, 65535)]
    rate: str
    device: str = "cpu"
    # settings
    epochs: Count
    rounds: Count
    all_rows: bool = False
    threads: Count  # threads per rank
    cores: Count  # cores of this machine, for all ranks together
    # seconds
    epoch_s: Seconds
    compute_s: Seconds  # C: strategy `none` in the same job, without its waiting, on the slowest rank
    messages_s: Seconds  # M: the messages of one step, sent again while nothing else runs
    wait_s: Seconds  # exposed wait of the rank that waits longest
    sum_wait_s: Seconds = 0.0  # the part of the exposed wait for gradient all-reduces, on the rank where it is longest
    processor_s: Seconds  # processor time of the busiest rank's process, all threads
    round_s: tuple[Seconds, ...]  # seconds per epoch, by round
    rank_wait_s: tuple[Seconds, ...]
    rank_thread_s: tuple[Seconds, ...]  # processor time of each rank's training thread
    rank_processor_s: tuple[Seconds, ...]
    # bytes
    bytes: Bytes  # feature rows and their gradients, all ranks
    weight_bytes: Bytes  # weight gradients in all-reduces, all ranks
    wire_bytes: Bytes | None = None  # bytes on the hosts' links, with headers; None: no links
    wire_packets: Count | None = None
    peak_memory_bytes: Bytes  # peak of the largest rank
    peak_device_bytes: Bytes
    # score
    score_epochs: Count = 0  # epochs of the training for a score
    metric: str = ""
    val: float | None = None  # the best validation score; None: not measured
    best_epoch: Count = 0
    val_s: Seconds | None = None  # seconds of training until that score
    # the graph and its parts
    nodes: Count
    arcs: Count
    features: Count
    classes: Count
    rank_rows: tuple[Count, ...]
    rank_arcs: tuple[Count, ...]
    rank_halo: tuple[Count, ...]
    versions: dict[str, str]

    @property
    def group(self) -> Group:
        return Group(self.graph, self.model, self.ranks, self.rate)

    @property
    def key(self) -> Key:
        return Point(self.group, self.strategy), self.device, self.score_epochs, self.all_rows

    @property
    def is_peer(self) -> bool:
        """Whether the cell measures another library."""
        return self.strategy in PEERS


def key_of(point: Point, settings: Settings) -> Key:
    """The key of the cell to measure."""
    own = point.strategy not in PEERS
    return point, settings.device, settings.score if own else 0, settings.all_rows and own


LINES, FAILED, DOCUMENT = "cells.jsonl", "failed.jsonl", "cells.json"
SCHEMA = 1


def read_cells(path: Path) -> list[Cell]:
    """Read the cells of a campaign's folder, or of its cells.jsonl. An incomplete last line is skipped."""
    path = path / LINES if path.is_dir() else path
    fix = "name a folder that `fullgraph bench` wrote"
    cells: dict[Key, Cell] = {}
    for number, line in enumerate(read_text(path, fix=fix).split("\n")[:-1], start=1):
        here, fix = f"{path} line {number}", "remove that line; the next campaign measures its cell again"
        cell = record_of(Cell, unsealed(line, Path(here), fix), here, fix)
        cells[cell.key] = cell
    return list(cells.values())


class Book:
    """A campaign's results so far, in memory and in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        discard(folder / FAILED, lambda _: "")  # points that failed are tried again
        self.cells = {cell.key: cell for cell in self._so_far()}
        self.failed: dict[Point, str] = {}

    def _so_far(self) -> list[Cell]:
        path = self.folder / LINES
        if not path.exists():
            return []
        text = read_text(path, fix="name another folder")
        if text and not text.endswith("\n"):  # its writer was killed
            write_whole(path, text[: text.rfind("\n") + 1])
        return read_cells(path)

    def add(self, cell: Cell) -> None:
        self._append(LINES, tree_of(cell))
        self.cells[cell.key] = cell

    def fail(self, point: Point, error: object) -> None:
        self.failed[point] = one_line(error)
        self._append(FAILED, {**point.group._asdict(), "strategy": point.strategy, "error": self.failed[point]})

    def _append(self, name: str, tree: dict[str, Any]) -> None:
        with os.fdopen(open_to_append(self.folder / name), "a") as file:
            file.write(json.dumps(sealed(tree), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def failed_lines(self) -> dict[str, str]:
        """The reason of every failure, by point."""
        return {f"{point.strategy}, {point.group}": why for point, why in self.failed.items()}

    def write_document(self) -> None:
        """Write all cells as one JSON document."""
        cells = [tree_of(cell) for cell in self.cells.values()]
        write_document(self.folder / DOCUMENT, {"schema": SCHEMA, "cells": cells})
