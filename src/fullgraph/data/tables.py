"""Node and edge tables with named columns: Parquet, CSV, folders of part files, or pyarrow tables.

    nodes   id   | label | split | x_0 | x_1 | ...          edges   source | target | weight | e_0 | ...

Node i is row i of the node table. Legend: N nodes, E edges, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array, frozen
from fullgraph.data.columns import Columns, open_columns, stacked
from fullgraph.data.files import need_file, tables_in
from fullgraph.data.graph import Graph
from fullgraph.data.labels import read_labels
from fullgraph.data.names import Names
from fullgraph.data.splits import ALSO, SPLITS
from fullgraph.errors import InputError, one_line
from fullgraph.named import parse_options
from fullgraph.resources import require_memory

Masks = dict[str, Array | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNames:
    """The files, and the names of their columns."""

    nodes: str = ""
    edges: str = ""
    id: str = "id"
    label: str = "label"  # numbers or texts, empty: unlabelled; or label_0, label_1, ...: 0 or 1 each
    split: str = "split"  # train, val, test or empty; or train_mask, val_mask, test_mask: true or false each
    features: str = "x_"  # prefix of feature columns; if no column has it, all other columns are features
    source: str = "source"
    target: str = "target"
    weight: str = "weight"
    edge_features: str = "e_"
    undirected: bool = False  # True: every edge stands for both directions


def load_tables(spec: str) -> Graph:
    """Return the graph of `nodes=FILE,edges=FILE` and, for columns with different names, `id=user,...`."""
    names = parse_options("tables", TableNames, spec)
    if not (names.nodes and names.edges):
        raise InputError("tables: needs both files: write tables:nodes=FILE,edges=FILE, with .parquet or .csv files")
    return graph_from_tables(names.nodes, names.edges, names, Path(names.nodes).stem)


def load_table_folder(folder: Path) -> Graph:
    """Return the graph of a folder with nodes.parquet or nodes.csv, and edges.parquet or edges.csv."""
    nodes, edges = (_only_file(folder, stem) for stem in ("nodes", "edges"))
    return graph_from_tables(nodes, edges, TableNames(), folder.resolve().name)


def is_table_folder(folder: Path) -> bool:
    return bool(tables_in(folder, "nodes"))


def _only_file(folder: Path, stem: str) -> Path:
    matches = tables_in(folder, stem)
    if len(matches) > 1:
        raise InputError(f"{folder} holds {matches[0].name} and {matches[1].name}: keep one of them")
    if matches:
        return matches[0]
    return need_file(folder / f"{stem}.parquet", f"add it, {stem}.csv, or a folder of part files")


def graph_from_tables(nodes: Any, edges: Any, names: TableNames, name: str) -> Graph:
    """nodes, edges: paths of .parquet or .csv files, or of folders of part files, or pyarrow tables."""
    node_table, edge_table = open_columns(nodes, "nodes"), open_columns(edges, "edges")
    rows = read_nodes(node_table, names)
    end = rows.ids, node_table.name
    edge_index, weight, attr = read_edges(edge_table, (end, end), names)
    return Graph(
        edge_index, rows.x, rows.y, rows.masks, edge_weight=weight, edge_attr=attr, names=rows.names, name=name,
        num_nodes=len(rows.ids), class_names=rows.class_names,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The rows of a table of nodes."""

    ids: Any  # pyarrow array [N]
    x: Array | None
    y: Array | None
    class_names: Array | None
    masks: Masks

    @property
    def names(self) -> Names:
        return _names(self.ids)


def read_nodes(table: Columns, names: TableNames) -> NodeTable:
    ids = _ids(table, names.id)
    y, class_names = read_labels(table, names.label)
    masks = _masks(table, names.split)
    return NodeTable(ids, _features(table, _feature_columns(table, names), len(ids)), y, class_names, masks)


def _ids(table: Columns, column: str) -> Any:
    """Return the ids [N] as one pyarrow array of int64 or text; refuse duplicates."""
    import pyarrow.compute as pc

    table.need(column, "the name of each node")
    ids = table.whole(column, table.id_type(column))
    if ids.null_count:
        row = int(pc.index(pc.is_null(ids), True).as_py())
        raise InputError(f"{table.at(row)} has no {column}: give every node an id")
    if not len(ids):
        raise InputError(f"{table.name} has no rows: give one per node")
    if pc.count_distinct(ids).as_py() != len(ids):
        counts = pc.value_counts(ids)
        twice = pc.filter(counts.field("values"), pc.greater(counts.field("counts"), 1))[0].as_py()
        raise InputError(
            f"{table.name} has the {column} {one_line(repr(twice), 60)} more than once: keep one row per node"
        )
    return ids


def _names(ids: Any) -> Names:
    """Return the ids as names of a graph, sharing pyarrow's memory."""
    import pyarrow as pa

    if pa.types.is_integer(ids.type):
        return Names(frozen(ids.to_numpy()))
    _, starts, text = ids.buffers()
    offsets = np.frombuffer(starts, dtype=np.int64)[ids.offset : ids.offset + len(ids) + 1]
    letters = np.frombuffer(text or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return Names(frozen(letters), frozen(offsets - offsets[0]))


def _masks(table: Columns, column: str) -> Masks:
    """Return the split as three masks, from one column of words or three columns of booleans."""
    if column not in table:
        return {
            split: table.rows_of(table.whole(f"{split}_mask", "bool"), f"{split}_mask", 0)
            if f"{split}_mask" in table
            else None
            for split in SPLITS
        }
    import pyarrow as pa
    import pyarrow.compute as pc

    words = table.whole(column, "string")
    called = {split: [split, *(other for other, meant in ALSO.items() if meant == split)] for split in SPLITS}
    sets = {split: pa.array(names, pa.large_string()) for split, names in called.items()}
    masks = {split: np.asarray(pc.is_in(words, value_set=names)) for split, names in sets.items()}
    known = pc.is_in(words, value_set=pa.array([*SPLITS, *ALSO, "", None], pa.large_string()))
    if not pc.all(known).as_py():
        row = int(pc.index(known, False).as_py())
        problem = f"{table.at(row)} has {column} {one_line(repr(words[row].as_py()), 60)}"
        raise InputError(f"{problem}: write train, val, test, or leave it empty")
    return dict(masks)


def _feature_columns(table: Columns, names: TableNames) -> Sequence[str]:
    """Return the columns with the prefix of features; if there are none, all columns without another role."""
    labels = {names.label, *table.beginning(f"{names.label}_")}
    return _beginning(table, names.features, {names.id, *labels, names.split, *(f"{split}_mask" for split in SPLITS)})


def _beginning(table: Columns, prefix: str, taken: set[str]) -> Sequence[str]:
    """Return columns with a prefix, or a list column of that name; if there are none, all columns not in `taken`."""
    matches = table.beginning(prefix, but=taken)
    alone = prefix.rstrip("_")
    lists = [alone] if alone in table and alone not in taken and table.is_list(alone) else []
    return lists + [column for column in matches if column not in lists] or table.beginning("", but=taken)


def _features(table: Columns, columns: Sequence[str], num_nodes: int) -> Array | None:
    """Return x [N, F], filled in batches of rows; None if the table has no feature columns."""
    if not columns:
        return None
    dtype = table.number_type(columns)
    widths = [table.width(column) for column in columns]
    ends = np.cumsum(widths).tolist()
    require_memory(num_nodes * ends[-1] * dtype.itemsize, f"reading the features of {table.name}")
    x = np.empty((num_nodes, ends[-1]), dtype=dtype)
    row = 0
    for batch in table.batches(table.as_numbers(columns, dtype)):
        for number, column in enumerate(columns):
            values = table.rows_of(batch.column(number), column, row).reshape(len(batch), -1)
            _check_width(table, column, row, values.shape[1], widths[number])
            x[row : row + len(batch), ends[number] - widths[number] : ends[number]] = values
        row += len(batch)
    return x


def _check_width(table: Columns, column: str, row: int, width: int, wanted: int) -> None:
    if width != wanted:
        problem = f"{table.at(row)} has a list of {width} numbers as {column}, and other rows have {wanted}"
        raise InputError(f"{problem}: give all rows the same number, at least one")


def read_edges(
    table: Columns, nodes: tuple[tuple[Any, str], tuple[Any, str]], names: TableNames
) -> tuple[Array, Array | None, Array | None]:
    """Return arcs [2, E] as node numbers, their weights and their features.

    nodes: of the sources and of the targets, the ids and the name of their table. Ids of about N edges are looked up at
    a time, because each lookup hashes all node ids again.
    """
    for column in (names.source, names.target):
        table.need(column, "the id of the node at that end")
    columns_of_ends = (names.source, names.target)
    ends = {column: table.id_type(column, like=ids) for column, (ids, _) in zip(columns_of_ends, nodes, strict=True)}
    weighted = [names.weight] if names.weight in table else []
    taken = {*ends, names.weight}
    attr_columns = _beginning(table, names.edge_features, taken)
    columns = [*weighted, *attr_columns]
    dtype = table.number_type(columns)
    if weighted and table.is_list(names.weight):
        raise InputError(f"{table.name} has {names.weight} as lists: give one number per edge")
    widths = [table.width(column) for column in columns]
    blocks: list[tuple[Array, Array]] = []
    row = 0
    for batch in table.groups(ends | table.as_numbers(columns, dtype), max(len(ids) for ids, _ in nodes)):
        arcs = [_looked_up(batch.column(end), nodes[end], table, row, column) for end, column in enumerate(ends)]
        values = [table.rows_of(_one(batch.column(2 + at)), column, row) for at, column in enumerate(columns)]
        for value, column, width in zip(values, columns, widths, strict=True):
            _check_width(table, column, row, value.reshape(len(batch), -1).shape[1], width)
        blocks.append((np.stack(arcs), stacked(values, len(batch), dtype)))
        row += len(batch)
    edge_index = np.concatenate([np.empty((2, 0), np.int32), *(arcs for arcs, _ in blocks)], axis=1)
    numbers = np.concatenate([np.empty((0, sum(widths)), dtype), *(values for _, values in blocks)])
    if names.undirected:
        edge_index, numbers = np.concatenate([edge_index, edge_index[::-1]], axis=1), np.concatenate([numbers] * 2)
    weight = np.ascontiguousarray(numbers[:, 0]) if weighted else None
    attr = np.ascontiguousarray(numbers[:, len(weighted) :]) if attr_columns else None
    return edge_index, weight, attr


def _one(chunked: Any) -> Any:
    """Return a column of a table as one array."""
    return chunked.combine_chunks() if hasattr(chunked, "combine_chunks") else chunked


def _looked_up(ends: Any, nodes: tuple[Any, str], table: Columns, row: int, column: str) -> Array:
    """Return the node numbers of some ids."""
    ids, node_table = nodes
    import pyarrow.compute as pc

    matches = pc.index_in(ends, value_set=ids)
    if matches.null_count:
        bad = int(pc.index(pc.is_null(matches), True).as_py())
        value = ends[bad].as_py()
        problem = f"{table.at(row + bad)} has "
        if value is None:
            raise InputError(f"{problem}no {column}: give the id of a node")
        raise InputError(
            f"{problem}the {column} {one_line(repr(value), 60)}, which is not an id in {node_table}: add that node"
        )
    numbers: Array = np.asarray(matches)
    return numbers
