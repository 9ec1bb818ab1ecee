"""`load`: a graph from a name that a user types."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fullgraph.axes import FORMATS, GRAPH_FORMS
from fullgraph.data.demo import demo_graph
from fullgraph.data.files import MOST_FILES, foreign
from fullgraph.data.graph import Graph
from fullgraph.data.npz import is_typed_npz, load_npz, load_typed_npz
from fullgraph.data.tables import NamedTables, is_table_folder, load_table_folder, named_tables, tables_of_folder
from fullgraph.data.typed import TypedGraph
from fullgraph.data.typed.pyg import is_hetero, typed_from_pyg
from fullgraph.data.typed.tables import is_typed_folder, load_typed_folder
from fullgraph.errors import InputError, nearest, one_line
from fullgraph.named import OWN, pairs_of, parse_options
from fullgraph.own_code import own_code
from fullgraph.reference import is_reference
from fullgraph.words import count

FORMS = f"demo, FILE.npz, a folder of tables, {', '.join(GRAPH_FORMS)}; or your own: {OWN}"


def load(spec: str | Path = "demo") -> Graph:
    """Load the graph named by `spec`, in one of FORMS; typed graphs are loaded by `load_typed`."""
    return untyped(load_any(spec))


def load_union(spec: str | Path = "demo", *, reverses: bool = False) -> Graph:
    """Load the graph named by `spec` to partition or to train on; a typed graph becomes its union."""
    return as_union(load_any(spec), reverses=reverses)


def as_union(graph: Graph | TypedGraph, *, reverses: bool = False) -> Graph:
    """Return the graph to partition or to train on: a typed graph's union, or the homogeneous graph itself.

    reverses: add a reversed relation beside each relation.
    """
    if isinstance(graph, TypedGraph):
        return (graph.with_reverses() if reverses else graph).union
    if reverses:
        raise InputError(f"{graph.name} has no relations, and reverses are for typed graphs: leave them out")
    return graph


def load_typed(spec: str | Path) -> TypedGraph:
    """Load the typed graph named by `spec`; a homogeneous graph has one type, `node`, and one relation, `edge`."""
    graph = load_any(spec)
    return graph if isinstance(graph, TypedGraph) else TypedGraph.of(graph)


def untyped(graph: Graph | TypedGraph) -> Graph:
    """Refuse a typed graph, for functions that take homogeneous ones."""
    if isinstance(graph, TypedGraph):
        raise refused(graph.name, len(graph.nodes), len(graph.edges))
    return graph


def refused(name: str, types: int, relations: int) -> InputError:
    """Return the error of a command that takes no typed graph."""
    held = f"{count(types, 'node type')}, {count(relations, 'relation')}"
    return InputError(
        f"{one_line(name, 100)} is a typed graph ({held}), and here only homogeneous graphs can be used; "
        "`fullgraph train`, inspect and partition, fg.train and fg.load_typed take typed ones (docs/typed.md)"
    )


def load_any(spec: str | Path = "demo") -> Graph | TypedGraph:
    """Load the graph named by `spec`, homogeneous or typed."""
    text = str(spec)
    kind, colon, rest = text.partition(":")
    if text == "demo":
        return demo_graph()
    if is_own(text):
        return _own(text)
    with foreign(text, f"correct it, or give another of {FORMS}"):
        if colon and kind in FORMATS:
            found = FORMATS[kind]
            graph: Graph | TypedGraph = parse_options(kind, found, rest)() if isinstance(found, type) else found(rest)
            return graph
        path = Path(text)
        if path.is_dir():
            if is_typed_folder(path):
                return load_typed_folder(path)
            if is_table_folder(path):
                return load_table_folder(path)
            raise InputError(_folder_hint(path))
        if path.suffix == ".npz" or path.is_file():
            return load_typed_npz(path) if is_typed_npz(path) else load_npz(path)
    raise _unknown(text)


def tables_named(text: str) -> NamedTables | None:
    """Return the two tables that a name of a graph stands for; None for other graphs, typed ones too."""
    kind, _, rest = text.partition(":")
    if text == "demo" or is_own(text) or kind in FORMATS:
        return named_tables(rest) if kind == "tables" else None
    with foreign(text, f"correct it, or give another of {FORMS}"):
        path = Path(text)
        if path.is_dir() and not is_typed_folder(path) and is_table_folder(path):
            return tables_of_folder(path)
    return None


def check_name(text: str) -> None:
    """Refuse a name that cannot be a graph, without reading a file; `load` may still refuse the file's content."""
    kind, colon, rest = text.partition(":")
    if is_own(text):
        _source(text)
    elif colon and kind in FORMATS:
        if isinstance(FORMATS[kind], type):
            parse_options(kind, FORMATS[kind], rest)
    elif text != "demo" and not Path(text).exists():
        raise _unknown(text)


def is_own(text: str) -> bool:
    """Whether a name stands for code of the user's own."""
    name = text.partition(",")[0]
    return name.partition(":")[0] not in FORMATS and is_reference(name)


def _own(text: str) -> Graph | TypedGraph:
    """The graph that a user's own function, or a value of a user's own class, returns."""
    source = _source(text)
    with own_code(source):
        return as_any_graph(source())


def _source(text: str) -> Any:
    name, *options = text.split(",")
    return FORMATS.make(name, **pairs_of(options, name))


def _unknown(text: str) -> InputError:
    kind, colon, _ = text.partition(":")
    known = nearest(kind, FORMATS) if colon else nearest(text, ["demo", *_names_here(Path(text))])
    return InputError(f"'{one_line(text, 100)}' is not the name of a graph{known}: give {FORMS}")


def _names_here(path: Path) -> list[str]:
    """Return the graphs in the path's folder, as a user would type them."""
    try:
        there = [*islice(path.parent.glob("*.npz"), MOST_FILES), *islice(path.parent.glob("*/"), MOST_FILES)]
        return [str(file) for file in there]
    except (OSError, ValueError):
        return []


def as_graph(value: Any) -> Graph:
    """Return a graph from a Graph, its name or path, or a PyG `Data`."""
    if is_hetero(value):
        raise refused("the HeteroData", len(value.node_types), len(value.edge_types))
    return untyped(as_any_graph(value))


def as_any_graph(value: Any) -> Graph | TypedGraph:
    """Return a homogeneous or typed graph from an argument of `as_graph`, or from a PyG `HeteroData`."""
    if isinstance(value, Graph | TypedGraph):
        return value
    if isinstance(value, str | Path):
        return load_any(value)
    if all(map(is_hetero, _of_three(value))):
        return typed_from_pyg(value)
    if any(hasattr(one, key) for one in _of_three(value) for key in ("edge_index", "adj_t")):
        return Graph.from_pyg(value)
    raise InputError(f"a {type(value).__name__} is not a graph; give a fullgraph.Graph, a PyG Data object, or {FORMS}")


def _of_three(value: Any) -> Sequence[Any]:
    """Return the three PyG data of RandomLinkSplit, or one data alone, as a sequence."""
    return value if isinstance(value, list | tuple) else (value,)


def _folder_hint(path: Path) -> str:
    if (path / "manifest.json").is_file():
        fix = "pass it to `fullgraph train`, or give the graph that it was cut from"
        return f"{path} is a partitioned folder, not a graph: {fix}"
    if (path / "adj_full.npz").is_file():
        return f"{path} is a GraphSAINT folder: write saint:{path}"
    return f"{path} is a folder without a graph: give {FORMS}"
