"""A folder of shards and its manifest: the graph, the partitioner, the quality, and a checksum of every file.

The folder appears under its name only when it is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import scipy.sparse as sp

from fullgraph.axes import FEATURE_KINDS
from fullgraph.data import FeatureScaler, Graph
from fullgraph.data.arrays import Array
from fullgraph.data.features import with_lengths
from fullgraph.errors import Damaged, InputError, explain, one_line
from fullgraph.graph_types import Count, GraphTypes
from fullgraph.partition.base import MOST_PARTS, Assignment
from fullgraph.partition.layout import Quality
from fullgraph.storage import checksum, read_document, record_of, sweep, whole_folder, write_document
from fullgraph.values import OneOf, Range, Value

SCHEMA = 1
FILE = "manifest.json"
AGAIN = "run `fullgraph partition` again"


Some = Annotated[int, Range(1, 2**62)]


@dataclass(frozen=True, slots=True)
class FileFact(Value):
    """The size and the CRC-32 of a file. CRC-32 detects any flipped byte, at twice the speed of SHA-256."""

    bytes: Count
    crc32: Annotated[int, Range(0, 2**32 - 1)]


@dataclass(frozen=True, slots=True)
class FieldFact(Value):
    """A named array of nodes or edges: what follows the first dimension of its shape, and its type."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class GraphFacts(Value):
    """Figures of the whole graph."""

    name: str
    nodes: Some
    arcs: Count
    features: Some
    classes: Count  # 0: no labels
    multilabel: bool
    weighted: bool
    splits: Some
    sparse: bool  # True if features are compressed rows
    edge_features: Count = 0
    real: bool = False  # True if labels are real numbers, `classes` of them per node
    labelled: bool = True
    pairs: Count = 0  # for link prediction; masks then mark the nodes that pairs read
    class_names: tuple[str, ...] = ()  # if labels were texts
    node_fields: tuple[FieldFact, ...] = ()  # further arrays of nodes, for a model of the user's own
    edge_fields: tuple[FieldFact, ...] = ()
    types: GraphTypes = GraphTypes()  # of a typed graph, whose union this is

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in (*self.node_fields, *self.edge_fields))


@dataclass(frozen=True, eq=False)
class Manifest(Value):
    """Facts about all parts, which can be read without opening a part."""

    schema: int
    graph: GraphFacts
    parts: Annotated[int, Range(1, MOST_PARTS)]
    method: str
    seed: int
    features: Annotated[str, OneOf(*FEATURE_KINDS)]  # the scaling of features
    split: Count  # the split whose training nodes determine the scaling and the figures
    figures: Quality
    files: dict[str, FileFact]  # path inside the folder -> fact
    checksum: Count = 0  # of this file, which has the checksums of all files

    @property
    def tree(self) -> dict[str, Any]:
        """The content of the file."""
        return {name: value for name, value in asdict(self).items() if name != "checksum"}

    def write(self, folder: Path) -> None:
        write_document(folder / FILE, self.tree)


def describe(
    graph: Graph, assignment: Assignment, *, features: str, split: int, figures: Quality, files: Mapping[str, FileFact]
) -> Manifest:
    """Return the manifest of `graph`, partitioned by `assignment`."""
    facts = facts_of(graph)
    if graph.types:
        facts = replace(facts, types=with_lengths(graph, FeatureScaler(features)))
    manifest = Manifest(
        schema=SCHEMA,
        graph=facts,
        parts=assignment.parts,
        method=assignment.method,
        seed=assignment.seed,
        features=features,
        split=split,
        figures=figures,
        files=dict(files),
    )
    return replace(manifest, checksum=checksum(manifest.tree))


def facts_of(graph: Graph) -> GraphFacts:
    return GraphFacts(
        name=graph.name,
        nodes=graph.num_nodes,
        arcs=graph.num_arcs,
        features=graph.num_features,
        classes=graph.num_classes,
        multilabel=graph.multilabel,
        weighted=graph.weighted,
        splits=graph.num_splits,
        sparse=bool(sp.issparse(graph.x)),
        edge_features=0 if graph.edge_attr is None else int(graph.edge_attr.shape[1]),
        real=graph.real,
        labelled=graph.labelled,
        pairs=0 if graph.pairs is None else len(graph.pairs),
        class_names=graph.class_names,
        node_fields=_facts_of(graph.fields.nodes),
        edge_fields=_facts_of(graph.fields.edges),
        types=graph.types,
    )


def _facts_of(fields: Mapping[str, Array]) -> tuple[FieldFact, ...]:
    return tuple(FieldFact(name, tuple(array.shape[1:]), str(array.dtype)) for name, array in fields.items())


def is_partition_folder(path: str | Path) -> bool:
    """Whether `write_parts` wrote the folder `path`, in whatever state it is now."""
    try:
        return (Path(path) / FILE).is_file()
    except (OSError, ValueError):  # not a valid file name
        return False


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest of a folder of shards; another schema or a damaged text raises one line."""
    path = Path(folder) / FILE
    if not is_partition_folder(folder):
        raise InputError(f"{folder} is not a folder of shards (it has no {FILE}): {AGAIN}, or fix the path")
    content = read_document(path, fix=AGAIN)
    if content.get("schema") != SCHEMA:
        raise InputError(
            f"{folder} holds shards of schema {one_line(content.get('schema'), 20)}, "
            f"this version reads schema {SCHEMA}: {AGAIN}"
        )
    manifest = record_of(Manifest, {**content, "checksum": checksum(content)}, str(path), AGAIN)
    figures = manifest.figures
    shares = [figures.nodes, figures.edges, figures.halo, figures.train]
    shares += [counts for own in figures.types for counts in (own.nodes, own.halo)]
    if any(len(counts) != manifest.parts for counts in shares):
        raise Damaged(f"{path} is damaged (its figures are not those of {manifest.parts} parts); {AGAIN}")
    return manifest


_ARRAY = re.compile(r"(part-[0-9]+/)?[a-z_]+(\.\w+)?\.npy")  # a point stands before the name of a field


@contextmanager
def replaced_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a new folder for shards. It gets the name `folder` if the block succeeds, and is removed otherwise.

    An existing folder stays until then, and is replaced only if it is empty or holds nothing but shards.
    """
    final = Path(os.path.realpath(folder))
    try:
        check_free(final)
        final.parent.mkdir(parents=True, exist_ok=True)
        sweep(final.parent)
        with whole_folder(final, beside_shards) as building:
            yield building
    except OSError as bad:
        known = explain(bad)
        raise InputError(f"cannot write {folder}: {known or bad.strerror or type(bad).__name__}") from None


def beside_shards(folder: Path) -> str:
    """Name the contents of a folder that `fullgraph partition` did not write; empty if there are none."""
    if not folder.is_dir() or folder.is_symlink():
        return "something other than a folder"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    folders = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()}
    if not files and not folders:
        return ""
    try:
        listed = read_manifest(folder).files
    except InputError:
        return f"{FILE}, which is damaged or not of fullgraph" if FILE in files else "something other than shards"
    ours = {FILE, *filter(_ARRAY.fullmatch, listed)}
    others = sorted((files - ours) | (folders - {os.path.dirname(name) for name in ours}))
    return f"{one_line(', '.join(others[:3]), 200)}, which does not belong to its shards" if others else ""


def check_free(final: Path) -> None:
    """Refuse a folder that holds something other than shards."""
    if not os.path.lexists(final):
        return
    if not final.is_dir():
        raise InputError(f"{final} exists and is not a folder: choose another name")
    if not is_partition_folder(final) and any(final.iterdir()):
        raise InputError(f"{final} exists and holds something other than shards: choose another name, or empty it")
    contents = beside_shards(final)
    if contents:
        raise InputError(f"{final} holds {contents}: choose another name, or move that away")
