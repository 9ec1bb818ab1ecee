"""Node and edge tables with named columns, as Parquet, CSV or pyarrow's own, through pyarrow.

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
from fullgraph.data.columns import Columns, column_of, numbers_of, open_columns, stacked
from fullgraph.data.files import need_file
from fullgraph.data.graph import Graph
from fullgraph.data.names import Names
from fullgraph.data.options import parse_options
from fullgraph.errors import InputError, one_line
from fullgraph.room import need_memory

SPLITS = ("train", "val", "test")
ENDINGS = (".parquet", ".csv")
Masks = dict[str, Array | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNames:
    """Which files, and what their columns are called."""

    nodes: str = ""
    edges: str = ""
    id: str = "id"
    label: str = "label"  # class numbers, nothing: unlabelled; or label_0, label_1, ...: 0 or 1 each
    split: str = "split"  # train, val, test or nothing; or train_mask, val_mask, test_mask: true or false each
    features: str = "x_"  # what the names of feature columns begin with; where none does, all others are features
    source: str = "source"
    target: str = "target"
    weight: str = "weight"
    edge_features: str = "e_"
    undirected: bool = False  # every edge stands for both directions


def load_tables(spec: str) -> Graph:
    """The graph of `nodes=FILE,edges=FILE` and, where columns are called otherwise, their names: `id=user,...`."""
    names = parse_options("tables", TableNames, spec)
    if not (names.nodes and names.edges):
        raise InputError("tables: needs both files: write tables:nodes=FILE,edges=FILE, with .parquet or .csv files")
    return graph_from_tables(names.nodes, names.edges, names, Path(names.nodes).stem)


def load_table_folder(folder: Path) -> Graph:
    """The graph of a folder with nodes.parquet or nodes.csv, and edges likewise."""
    nodes, edges = (_only_file(folder, stem) for stem in ("nodes", "edges"))
    return graph_from_tables(nodes, edges, TableNames(), folder.resolve().name)


def is_table_folder(folder: Path) -> bool:
    return any((folder / f"nodes{ending}").is_file() for ending in ENDINGS)


def _only_file(folder: Path, stem: str) -> Path:
    found = [folder / f"{stem}{ending}" for ending in ENDINGS if (folder / f"{stem}{ending}").is_file()]
    if len(found) > 1:
        raise InputError(f"{folder} holds {found[0].name} and {found[1].name}: keep one of them")
    return found[0] if found else need_file(folder / f"{stem}{ENDINGS[0]}", f"add it, or {stem}.csv")


def graph_from_tables(nodes: Any, edges: Any, names: TableNames, name: str) -> Graph:
    """nodes, edges: paths of .parquet or .csv files, or pyarrow tables."""
    node_table, edge_table = open_columns(nodes, "nodes"), open_columns(edges, "edges")
    ids = _ids(node_table, names.id)
    y, masks = _labels(node_table, names), _masks(node_table, names.split)
    x = _features(node_table, _feature_columns(node_table, names), len(ids))
    edge_index, weight, attr = _edges(edge_table, ids, names, node_table.name)
    return Graph(edge_index, x, y, masks, edge_weight=weight, edge_attr=attr, names=_names(ids), name=name)


def _ids(table: Columns, column: str) -> Any:
    """The ids [N] as one pyarrow array of int64 or text; each is there once."""
    import pyarrow.compute as pc

    table.need(column, "what each node is called")
    ids = table.whole(column, table.id_type(column))
    if ids.null_count:
        row = int(pc.index(pc.is_null(ids), True).as_py())
        raise InputError(f"{table.name} row {row + 1} has no {column}: give every node one")
    if not len(ids):
        raise InputError(f"{table.name} has no row: give one a node")
    if pc.count_distinct(ids).as_py() != len(ids):
        counts = pc.value_counts(ids)
        twice = pc.filter(counts.field("values"), pc.greater(counts.field("counts"), 1))[0].as_py()
        raise InputError(
            f"{table.name} has the {column} {one_line(repr(twice), 60)} more than once: keep one row a node"
        )
    return ids


def _names(ids: Any) -> Names:
    """The same ids, as a graph keeps them: over pyarrow's own memory."""
    import pyarrow as pa

    if pa.types.is_integer(ids.type):
        return Names(frozen(ids.to_numpy()))
    _, starts, text = ids.buffers()
    offsets = np.frombuffer(starts, dtype=np.int64)[ids.offset : ids.offset + len(ids) + 1]
    letters = np.frombuffer(text or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return Names(frozen(letters), frozen(offsets - offsets[0]))


def _labels(table: Columns, names: TableNames) -> Array | None:
    """Class numbers [N], or 0 and 1 [N, C]; None where the table has neither."""
    many = table.beginning(f"{names.label}_")
    if names.label in table:
        return numbers_of(table.whole(names.label, "int64"), table.name, names.label, missing=-1)
    if not many:
        return None
    return np.stack([numbers_of(table.whole(name, "float32"), table.name, name) for name in many], axis=1)


def _masks(table: Columns, column: str) -> Masks:
    """The split as three masks, from one column of words or three of booleans."""
    if column not in table:
        return {
            split: numbers_of(table.whole(f"{split}_mask", "bool"), table.name, f"{split}_mask")
            if f"{split}_mask" in table
            else None
            for split in SPLITS
        }
    import pyarrow as pa
    import pyarrow.compute as pc

    words = table.whole(column, "string")
    masks = {split: np.asarray(pc.fill_null(pc.equal(words, split), False)) for split in SPLITS}
    known = pc.is_in(words, value_set=pa.array([*SPLITS, "", None], pa.large_string()))
    if not pc.all(known).as_py():
        row = int(pc.index(known, False).as_py())
        told = f"{table.name} row {row + 1} has {column} {one_line(repr(words[row].as_py()), 60)}"
        raise InputError(f"{told}: write train, val, test or nothing")
    return dict(masks)


def _feature_columns(table: Columns, names: TableNames) -> Sequence[str]:
    """Columns with the features' beginning; where there are none, all that are nothing else."""
    labels = {names.label, *table.beginning(f"{names.label}_")}
    taken = {names.id, *labels, names.split, *(f"{split}_mask" for split in SPLITS)}
    found = table.beginning(names.features, but=taken) or table.beginning("", but=taken)
    if not found:
        raise InputError(
            f"{table.name} has no feature column: add some, named {names.features}0, {names.features}1, ..."
        )
    return found


def _features(table: Columns, columns: Sequence[str], num_nodes: int) -> Array:
    """x [N, F], filled a batch of rows at a time."""
    dtype = table.number_type(columns)
    need_memory(num_nodes * len(columns) * dtype.itemsize, f"reading the features of {table.name}")
    x = np.empty((num_nodes, len(columns)), dtype=dtype)
    row = 0
    for batch in table.batches(dict.fromkeys(columns, dtype.name)):
        for number, column in enumerate(columns):
            x[row : row + len(batch), number] = column_of(batch, number, table.name, column, row)
        row += len(batch)
    return x


def _edges(table: Columns, ids: Any, names: TableNames, node_table: str) -> tuple[Array, Array | None, Array | None]:
    """Arcs [2, E] as node numbers, their weights, their features.

    Ids are looked up for as many edges at a time as there are nodes: each time the ids are hashed anew.
    """
    for column in (names.source, names.target):
        table.need(column, "the id of the node at that end")
    ends = {names.source: table.id_type(names.source, like=ids), names.target: table.id_type(names.target, like=ids)}
    weighted = [names.weight] if names.weight in table else []
    taken = {*ends, names.weight}
    attr_columns = table.beginning(names.edge_features, but=taken) or table.beginning("", but=taken)
    dtype = table.number_type([*weighted, *attr_columns])
    blocks: list[tuple[Array, Array]] = []
    row = 0
    for batch in table.groups(ends | dict.fromkeys([*weighted, *attr_columns], dtype.name), len(ids)):
        arcs = [
            _looked_up(batch.column(end), ids, f"{table.name} row", row, column, node_table)
            for end, column in enumerate(ends)
        ]
        values = [
            column_of(batch, 2 + number, table.name, column, row)
            for number, column in enumerate([*weighted, *attr_columns])
        ]
        blocks.append((np.stack(arcs), stacked(values, len(batch), dtype)))
        row += len(batch)
    edge_index = np.concatenate([np.empty((2, 0), np.int32), *(arcs for arcs, _ in blocks)], axis=1)
    numbers = np.concatenate(
        [np.empty((0, len(weighted) + len(attr_columns)), dtype), *(values for _, values in blocks)]
    )
    if names.undirected:
        edge_index, numbers = np.concatenate([edge_index, edge_index[::-1]], axis=1), np.concatenate([numbers] * 2)
    weight = np.ascontiguousarray(numbers[:, 0]) if weighted else None
    attr = np.ascontiguousarray(numbers[:, len(weighted) :]) if attr_columns else None
    return edge_index, weight, attr


def _looked_up(ends: Any, ids: Any, where: str, row: int, column: str, node_table: str) -> Array:
    """The node numbers of some ids."""
    import pyarrow.compute as pc

    found = pc.index_in(ends, value_set=ids)
    if found.null_count:
        bad = int(pc.index(pc.is_null(found), True).as_py())
        value = ends[bad].as_py()
        told = f"{where} {row + bad + 1} has "
        if value is None:
            raise InputError(f"{told}no {column}: give the id of a node")
        raise InputError(
            f"{told}the {column} {one_line(repr(value), 60)}, which is no id of {node_table}: add that node"
        )
    numbers: Array = np.asarray(found)
    return numbers
