"""The files of a campaign: a line a cell while it lasts, then all cells as one document."""

import json
import os
from pathlib import Path
from typing import Any

from fullgraph.errors import one_line
from fullgraph.lab.bench.cell import Cell, Key
from fullgraph.lab.bench.matrix import Point
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
from fullgraph.values import tree_of

LINES, FAILED, DOCUMENT = "cells.jsonl", "failed.jsonl", "cells.json"
SCHEMA = 1


def read_cells(path: Path) -> list[Cell]:
    """The cells of a campaign's folder, or of its cells.jsonl. A last line that was cut short is left out."""
    path = path / LINES if path.is_dir() else path
    fix = "name a folder that `fullgraph bench` wrote"
    cells: dict[Key, Cell] = {}
    for number, line in enumerate(read_text(path, fix=fix).split("\n")[:-1], start=1):
        here, fix = f"{path} line {number}", "remove that line; the next campaign measures its cell again"
        cell = record_of(Cell, unsealed(line, Path(here), fix), here, fix)
        cells[cell.key] = cell
    return list(cells.values())


class Book:
    """What a campaign has found so far, in memory and in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        discard(folder / FAILED, lambda _: "")  # what failed is tried again
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
        """What failed, and why."""
        return {f"{point.strategy}, {point.group}": why for point, why in self.failed.items()}

    def write_document(self) -> None:
        """All cells as one JSON document."""
        cells = [tree_of(cell) for cell in self.cells.values()]
        write_document(self.folder / DOCUMENT, {"schema": SCHEMA, "cells": cells})
