"""Node and edge tables with named columns: Parquet, CSV, folders of part files, or pyarrow tables.

    nodes   id   | label | split | x_0 | x_1 | ...          edges   source | target | weight | e_0 | ...

Node i is row i of the node table. Legend: N nodes, E edges, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class NamedTables:
    """The two tables of a graph, and the graph's name."""

    names: TableNames
    name: str

    def load(self) -> Graph:
        return graph_from_tables(self.names.nodes, self.names.edges, self.names, self.name)


def load_tables(spec: str) -> Graph:
    """Return the graph of `nodes=FILE,edges=FILE` and, for columns with different names, `id=user,...`."""
    return named_tables(spec).load()


def load_table_folder(folder: Path) -> Graph:
    """Return the graph of a folder with nodes.parquet or nodes.csv, and edges.parquet or edges.csv."""
    return tables_of_folder(folder).load()


def named_tables(spec: str) -> NamedTables:
    names = parse_options("tables", TableNames, spec)
    if not (names.nodes and names.edges):
        raise InputError("tables: needs both files: write tables:nodes=FILE,edges=FILE, with .parquet or .csv files")
    return NamedTables(names, Path(names.nodes).stem)


def tables_of_folder(folder: Path) -> NamedTables:
    nodes, edges = (str(_only_file(folder, stem)) for stem in ("nodes", "edges"))
    return NamedTables(TableNames(nodes=nodes, edges=edges), folder.resolve().name)


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
    masks = read_masks(table, names.split)
    return NodeTable(ids, _features(table, feature_columns(table, names), len(ids)), y, class_names, masks)


def _ids(table: Columns, column: str) -> Any:
    """Return the ids [N] as one pyarrow array of int64 or text; refuse duplicates."""
    import pyarrow.compute as pc

    table.need(column, "the name of each node")
    ids = table.whole(column, table.id_type(column))
    need_ids(table, ids, column, 0)
    if not len(ids):
        raise InputError(f"{table.name} has no rows: give one per node")
    if pc.count_distinct(ids).as_py() != len(ids):
        counts = pc.value_counts(ids)
        twice = pc.filter(counts.field("values"), pc.greater(counts.field("counts"), 1))[0].as_py()
        raise repeated(table.name, column, twice)
    return ids


def need_ids(table: Columns, ids: Any, column: str, row: int) -> None:
    """Refuse empty ids; `row` is the number of the first row."""
    import pyarrow.compute as pc

    if ids.null_count:
        bad = row + int(pc.index(pc.is_null(ids), True).as_py())
        raise InputError(f"{table.at(bad)} has no {column}: give every node an id")


def repeated(where: str, column: str, value: Any) -> InputError:
    return InputError(f"{where} has the {column} {one_line(repr(value), 60)} more than once: keep one row per node")


def _names(ids: Any) -> Names:
    """Return the ids as names of a graph, sharing pyarrow's memory."""
    import pyarrow as pa

    if pa.types.is_integer(ids.type):
        return Names(frozen(ids.to_numpy()))
    _, starts, text = ids.buffers()
    offsets = np.frombuffer(starts, dtype=np.int64)[ids.offset : ids.offset + len(ids) + 1]
    letters = np.frombuffer(text or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return Names(frozen(letters), frozen(offsets - offsets[0]))


def read_masks(table: Columns, column: str) -> Masks:
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


def feature_columns(table: Columns, names: TableNames) -> Sequence[str]:
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
    """Return x [N, F]; None if the table has no feature columns."""
    if not columns:
        return None
    dtype, width = table.number_type(columns), sum(map(table.width, columns))
    require_memory(num_nodes * width * dtype.itemsize, f"reading the features of {table.name}")
    x = np.empty((num_nodes, width), dtype=dtype)
    row = 0
    for block in feature_rows(table, columns):
        x[row : row + len(block)] = block
        row += len(block)
    return x


def feature_rows(table: Columns, columns: Sequence[str], rows: int = 0) -> Iterator[Array]:
    """Yield the features of consecutive rows, at most `rows` at a time if given."""
    dtype, widths = table.number_type(columns), [table.width(column) for column in columns]
    row = 0
    for batch in table.batches(table.as_numbers(columns, dtype), rows):
        values = [table.rows_of(batch.column(at), column, row) for at, column in enumerate(columns)]
        for value, column, width in zip(values, columns, widths, strict=True):
            _check_width(table, column, row, value.reshape(len(batch), -1).shape[1], width)
        yield stacked(values, len(batch), dtype)
        row += len(batch)


def _check_width(table: Columns, column: str, row: int, width: int, wanted: int) -> None:
    if width != wanted:
        problem = f"{table.at(row)} has a list of {width} numbers as {column}, and other rows have {wanted}"
        raise InputError(f"{problem}: give all rows the same number, at least one")


@dataclass(frozen=True, eq=False)
class EdgeColumns:
    """The columns of a table of edges that are read, and the kinds to request."""

    table: Columns = field(repr=False)
    ends: dict[str, str]  # source and target -> kind
    weight: str  # empty: none
    attrs: Sequence[str]
    dtype: np.dtype[Any]
    widths: Sequence[int]  # of the weight and each of attrs

    @classmethod
    def of(cls, table: Columns, ids: Sequence[Any], names: TableNames) -> EdgeColumns:
        """ids: of the sources' and of the targets' nodes, any array with their type."""
        for column in (names.source, names.target):
            table.need(column, "the id of the node at that end")
        ends = {column: table.id_type(column, like=one)
                for column, one in zip((names.source, names.target), ids, strict=True)}  # fmt: skip
        weight = names.weight if names.weight in table else ""
        attrs = _beginning(table, names.edge_features, {*ends, names.weight})
        columns = [*([weight] if weight else []), *attrs]
        dtype = table.number_type(columns)
        if weight and table.is_list(weight):
            raise InputError(f"{table.name} has {weight} as lists: give one number per edge")
        return cls(table, ends, weight, attrs, dtype, [table.width(column) for column in columns])

    @property
    def numbers(self) -> list[str]:
        return [*([self.weight] if self.weight else []), *self.attrs]

    @property
    def kinds(self) -> dict[str, str]:
        return self.ends | self.table.as_numbers(self.numbers, self.dtype)

    def block(self, batch: Any, table: Columns, row: int, find: Sequence[Callable[[Any], Array]],
              nodes: Sequence[str]) -> tuple[Array, Array]:  # fmt: skip
        """Return the arcs [2, rows] of a batch, and their weights and features side by side [rows, K].

        row: number of the batch's first row in `table`. find: maps the ids of sources, and of targets, to numbers of
        nodes, -1 if unknown. nodes: the names of their tables.
        """
        arcs = [_looked_up(batch.column(end), find[end], nodes[end], table, row, column)
                for end, column in enumerate(self.ends)]  # fmt: skip
        values = [table.rows_of(_one(batch.column(2 + at)), column, row) for at, column in enumerate(self.numbers)]
        for value, column, width in zip(values, self.numbers, self.widths, strict=True):
            _check_width(table, column, row, value.reshape(len(batch), -1).shape[1], width)
        return np.stack(arcs), stacked(values, len(batch), self.dtype)

    def split(self, numbers: Array) -> tuple[Array | None, Array | None]:
        """Return weights [E] and features [E, K] from both side by side."""
        return numbers[:, 0] if self.weight else None, numbers[:, int(bool(self.weight)) :] if self.attrs else None


def read_edges(
    table: Columns, nodes: tuple[tuple[Any, str], tuple[Any, str]], names: TableNames
) -> tuple[Array, Array | None, Array | None]:
    """Return arcs [2, E] as node numbers, their weights and their features.

    nodes: of the sources and of the targets, the ids and the name of their table. Ids of about N edges are looked up at
    a time, because each lookup hashes all node ids again.
    """
    columns = EdgeColumns.of(table, [ids for ids, _ in nodes], names)
    find, of = [_finder(ids) for ids, _ in nodes], [name for _, name in nodes]
    blocks: list[tuple[Array, Array]] = []
    row = 0
    for batch in table.groups(columns.kinds, max(len(ids) for ids, _ in nodes)):
        blocks.append(columns.block(batch, table, row, find, of))
        row += len(batch)
    edge_index = np.concatenate([np.empty((2, 0), np.int32), *(arcs for arcs, _ in blocks)], axis=1)
    empty = np.empty((0, sum(columns.widths)), columns.dtype)
    numbers = np.concatenate([empty, *(values for _, values in blocks)])
    if names.undirected:
        edge_index, numbers = np.concatenate([edge_index, edge_index[::-1]], axis=1), np.concatenate([numbers] * 2)
    weight, attr = map(_compact, columns.split(numbers))
    return edge_index, weight, attr


def _compact(values: Array | None) -> Array | None:
    return None if values is None else np.ascontiguousarray(values)


def _finder(ids: Any) -> Callable[[Any], Array]:
    """Return a function that maps ids to their positions in `ids`, -1 if they have none."""
    import pyarrow.compute as pc

    return lambda ends: np.asarray(pc.fill_null(pc.index_in(ends, value_set=ids), -1))


def _one(chunked: Any) -> Any:
    """Return a column of a table as one array."""
    return chunked.combine_chunks() if hasattr(chunked, "combine_chunks") else chunked


def _looked_up(
    ends: Any, find: Callable[[Any], Array], node_table: str, table: Columns, row: int, column: str
) -> Array:
    """Return the node numbers of some ids."""
    numbers = find(ends)
    if numbers.min(initial=0) < 0:
        bad = int(np.flatnonzero(numbers < 0)[0])
        value = ends[bad].as_py()
        problem = f"{table.at(row + bad)} has "
        if value is None:
            raise InputError(f"{problem}no {column}: give the id of a node")
        raise InputError(
            f"{problem}the {column} {one_line(repr(value), 60)}, which is not an id in {node_table}: add that node"
        )
    return numbers
