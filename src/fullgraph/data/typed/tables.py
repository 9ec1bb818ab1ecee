"""Typed graphs as tables: TYPE.parquet for every node type, SOURCE__RELATION__TARGET.csv for every relation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullgraph.data.columns import open_columns
from fullgraph.data.files import ENDINGS, HIDDEN
from fullgraph.data.tables import TableNames, read_edges, read_nodes
from fullgraph.data.typed.graph import TypedGraph
from fullgraph.errors import InputError, nearest, one_line


def is_typed_folder(folder: Path) -> bool:
    """Whether a folder holds a table named SOURCE__RELATION__TARGET."""
    return any(path.name.count("__") == 2 and _is_table(path) for path in folder.iterdir())


def _is_table(path: Path) -> bool:
    return not path.name.startswith(HIDDEN) and (path.suffix in ENDINGS or path.is_dir())


def load_typed_folder(folder: Path) -> TypedGraph:
    """Return the graph of a folder of tables; those whose names have two double underscores are relations."""
    tables = _stems(folder)
    nodes = {stem: path for stem, path in tables.items() if "__" not in stem}
    edges = {stem: path for stem, path in tables.items() if "__" in stem}
    return typed_from_tables(nodes, edges, TableNames(), folder.resolve().name)


def _stems(folder: Path) -> dict[str, Path]:
    """Return a folder's tables by name: .parquet and .csv files, and folders of part files."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if not _is_table(path):
            continue
        stem = path.name if path.is_dir() else path.stem
        if stem in found:
            raise InputError(f"{folder} holds {found[stem].name} and {path.name}: keep one of them")
        found[stem] = path
    return found


def typed_from_tables(nodes: Any, edges: Any, names: TableNames, name: str) -> TypedGraph:
    """nodes, edges: tables by type and by relation, each a path of a file or of part files, or a pyarrow table."""
    if not isinstance(nodes, Mapping) or not isinstance(edges, Mapping):
        raise InputError("tables of a typed graph are two mappings: node type -> table, relation -> table")
    kinds, ends = {}, {}
    for kind, table in nodes.items():
        columns = open_columns(table, str(kind))
        rows = read_nodes(columns, names)
        labels = {"y": rows.y, "class_names": rows.class_names} | {f"{key}_mask": m for key, m in rows.masks.items()}
        given = {"x": rows.x, "names": rows.names, **labels}
        size = {"num_nodes": len(rows.ids)} if rows.x is None else {}
        kinds[kind] = size | {key: value for key, value in given.items() if value is not None}
        ends[kind] = rows.ids, columns.name
    links = {}
    for relation, table in edges.items():
        parts = relation.split("__") if isinstance(relation, str) else tuple(relation)
        where = relation if isinstance(relation, str) else "__".join(relation)
        if len(parts) != 3:
            raise InputError(f"{one_line(where, 80)}: name a table of edges SOURCE__RELATION__TARGET")
        missing = [end for end in (parts[0], parts[2]) if end not in ends]
        if missing:
            raise InputError(
                f"{where} ends at '{missing[0]}', for which there is no table of nodes{nearest(missing[0], ends)}: add "
                f"{missing[0]}.parquet or {missing[0]}.csv"
            )
        if names.undirected and parts[0] != parts[2]:
            raise InputError(f"{where} joins two types, and undirected=True is for edges inside one: leave it out; "
                             "with_reverses() adds reversed relations")  # fmt: skip
        columns = open_columns(table, where)
        edge_index, weight, attr = read_edges(columns, (ends[parts[0]], ends[parts[2]]), names)
        links[relation] = {"edge_index": edge_index, "edge_weight": weight, "edge_attr": attr}
    return TypedGraph(kinds, links, name=name)
