"""Named arrays of nodes and edges beside x and edge_attr: a model of the user's own may take them as arguments.

Legend: N nodes, E edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array, as_numpy, frozen
from fullgraph.errors import InputError, one_line

RESERVED = frozenset(
    ("x", "y", "edge_index", "edge_weight", "edge_attr", "adj_t", "node_id", "train_mask", "val_mask", "test_mask",
     "num_nodes", "names", "class_names")
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Fields:
    """`nodes` holds arrays [N, ...] by name, `edges` arrays [E, ...] in the order of the graph's edges."""

    nodes: Mapping[str, Array] = field(default_factory=dict)
    edges: Mapping[str, Array] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.edges)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.nodes.values(), *self.edges.values()))

    def picked(self, nodes: Any = None, edges: Any = None) -> Fields:
        """Return the rows that masks or positions choose; None keeps all."""
        return Fields(_rows(self.nodes, nodes), _rows(self.edges, edges))


def _rows(arrays: Mapping[str, Array], chosen: Any) -> Mapping[str, Array]:
    return arrays if chosen is None else {name: frozen(array[chosen]) for name, array in arrays.items()}


def is_name(name: str) -> bool:
    """Whether an argument of a function can have this name, and nothing else of a graph has it."""
    return name.isidentifier() and not name.startswith("_") and name not in RESERVED


def belongs(name: str, shape: tuple[int, ...], kind: str, nodes: int, edges: int) -> str:
    """Return "nodes", "edges" or "": with as many nodes as edges, the name decides, as in PyG."""
    length = shape[0] if shape and kind in "biuf" and is_name(name) else -1
    if length == edges and (edges != nodes or "edge" in name):
        return "edges"
    return "nodes" if length == nodes else ""


def check_fields(given: Any, nodes: int, edges: int) -> Fields:
    """Return named arrays as `Fields`, or raise one line that names the array that does not fit."""
    if isinstance(given, Fields):
        given = {**given.nodes, **given.edges}
    found: dict[str, dict[str, Array]] = {"nodes": {}, "edges": {}}
    for name, value in (given or {}).items():
        array = as_numpy(value)
        if not is_name(str(name)):
            raise InputError(
                f"fields: {one_line(name, 40)} cannot name a field; use another name, such as {name}_field"
            )
        of = belongs(name, array.shape, array.dtype.kind, nodes, edges)
        if not of:
            told = f"{array.dtype} {array.shape}"
            raise InputError(
                f"the field {name} is {told}: give numbers, one row for each of {nodes} nodes or {edges} edges"
            )
        found[of][name] = frozen(array.astype(np.float32) if array.dtype == np.float16 else array)
    return Fields(found["nodes"], found["edges"])
