"""The steps from two tables to a graph whose arcs and features stay on a disk.

Legend: N nodes, E rows of the table of edges, K numbers per edge, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fullgraph.data.arrays import Tally, at_once
from fullgraph.data.columns import Columns, open_columns
from fullgraph.data.graph import Graph
from fullgraph.data.labels import read_labels
from fullgraph.data.streamed.ids import Ids, write_ids
from fullgraph.data.streamed.merge import merged
from fullgraph.data.streamed.rows import TableRows
from fullgraph.data.streamed.runs import FORWARD, REVERSE, RUN_ARCS, Run, write_runs
from fullgraph.data.streamed.scratch import Scratch
from fullgraph.data.tables import EdgeColumns, NamedTables, TableNames, feature_columns, read_masks
from fullgraph.data.validate import NOTE, one_hot
from fullgraph.resources import require_disk

VERSION = 1  # of the files of all steps
Progress = Callable[[int, int], None]  # (done, total)

ID_BYTES, ARC_BYTES, SHARD_ARC_BYTES, SHARD_NODE_BYTES = 24, 10, 4, 60


def table_bytes(names: TableNames) -> int:
    """Return the size of the files of both tables."""
    return sum(path.stat().st_size for table in _opened(names) for path in table.paths)


def _opened(names: TableNames) -> tuple[Columns, Columns]:
    return open_columns(names.nodes, "nodes"), open_columns(names.edges, "edges")


class Streamed:
    """Makes the graph of two tables step by step in a folder; memory is needed for nodes, and for blocks of edges."""

    def __init__(self, tables: NamedTables, folder: Path) -> None:
        self.tables = tables
        self.nodes, self.edges = _opened(tables.names)
        files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns]
                 for table in (self.nodes, self.edges) for path in table.paths]  # fmt: skip
        self.features = feature_columns(self.nodes, tables.names)
        plan = {"version": VERSION, "run": RUN_ARCS, "tables": asdict(tables.names), "files": files}
        self.scratch = Scratch(folder, plan)
        self._x: TableRows | None = None

    @property
    def refused(self) -> bool:
        """Whether a row of features was refused, after all steps."""
        return self._x is not None and self._x.refused

    def require_disk(self, out: Path) -> None:
        """Require room for all steps, and for the shards if they are on the same disk."""
        nodes, edges = self.nodes.most_rows(), self.edges.most_rows()
        arcs = edges * (2 if self.tables.names.undirected else 1)
        columns = EdgeColumns.of(self.edges, [_like(self.nodes, self.tables.names.id)] * 2, self.tables.names)
        value = sum(columns.widths) * columns.dtype.itemsize
        text = sum(path.stat().st_size for path in self.nodes.paths) if not self.features else 16 * nodes
        steps = arcs * (ARC_BYTES + 2 * value) + nodes * (ID_BYTES + 8) + text
        width = sum(map(self.nodes.width, self.features)) * self.nodes.number_type(self.features).itemsize
        shards = arcs * (SHARD_ARC_BYTES + value) + nodes * (SHARD_NODE_BYTES + width)
        place = next(path for path in (out, *out.absolute().parents) if path.exists())
        shared = place.stat().st_dev == self.scratch.folder.stat().st_dev
        left = max(0, steps - self.scratch.nbytes)
        require_disk(self.scratch.folder, left + (shards if shared else 0), "cutting tables of this size")
        if not shared:
            require_disk(out, shards, "cutting tables of this size")

    def ids(self, progress: Progress) -> Ids:
        """Step 1: hash the ids of nodes."""
        total, column = self.nodes.most_rows(), self.tables.names.id
        write = lambda building: write_ids(building, self.nodes, column, lambda row: progress(min(row, total), total))  # noqa: E731
        return Ids.open(self.scratch.step("ids", write))

    def runs(self, ids: Ids, progress: Progress) -> tuple[EdgeColumns, list[Run]]:
        """Step 2: look up both ends of all edges, and sort them in runs. Equal arcs keep the order of the table."""
        names = self.tables.names
        columns = EdgeColumns.of(self.edges, [_like(self.nodes, names.id)] * 2, names)
        pieces = list(self.edges.pieces(RUN_ARCS))
        tally = Tally(progress, len(pieces))

        def one(number: int) -> Path:
            def write(building: Path) -> None:
                write_runs(building, pieces[number], columns, ids, self.nodes.name, undirected=names.undirected)

            step = self.scratch.step(f"run-{number:05}", write)
            tally.more(1)
            return step

        steps = list(at_once(one, range(len(pieces))))
        folders = [folder for name in (FORWARD, REVERSE) for step in steps for folder in sorted(step.glob(f"{name}-*"))]
        return columns, [Run.open(folder) for folder in folders]

    def graph(self, ids: Ids, columns: EdgeColumns, runs: list[Run], progress: Progress) -> Graph:
        """Step 3: merge the runs, and read labels and masks."""
        names = self.tables.names
        arcs = merged(self.scratch, runs, len(ids), columns.dtype, sum(columns.widths), progress)
        weight, attr = columns.split(arcs.values)
        y, class_names = read_labels(self.nodes, names.label)
        masks = read_masks(self.nodes, names.split)
        x: Any
        if self.features:
            x = self._x = TableRows(self.nodes, self.features, len(ids))
        else:
            x = one_hot(len(ids))
        return Graph.of_rows(
            (arcs.indptr, arcs.indices, weight), x, y, masks, edge_attr=attr, names=ids.names,
            class_names=class_names, name=self.tables.name,
            notes=() if self.features else (NOTE.format(nodes=len(ids)),),
        )  # fmt: skip


def _like(table: Columns, column: str) -> Any:
    """Return an empty array with the type of the ids."""
    import pyarrow as pa

    table.need(column, "the name of each node")
    return pa.array([], pa.int64() if table.id_type(column) == "int64" else pa.large_string())
