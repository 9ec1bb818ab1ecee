"""The manifest of a folder of shards: what graph, who cut it and how well, and a checksum of every file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.errors import InputError
from fullgraph.partition.base import Assignment

SCHEMA = 1
FILE = "manifest.json"
AGAIN = "run `fullgraph partition` again"


@dataclass(frozen=True, slots=True)
class FileFact:
    """What a file must be: its size and its CRC-32, which any flipped byte changes, at twice the speed of SHA-256."""

    bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The whole graph in a few numbers."""

    name: str
    nodes: int
    arcs: int
    features: int
    classes: int
    multilabel: bool
    weighted: bool
    splits: int
    sparse: bool  # features are compressed rows


@dataclass(frozen=True, eq=False)
class Manifest:
    """What is known of all parts without opening one."""

    schema: int
    graph: GraphFacts
    parts: int
    method: str
    seed: int
    features: str  # how features were scaled: none, row or standard
    split: int  # whose training nodes that scaling, and the figures, were taken from
    figures: dict[str, Any]  # Quality.as_dict()
    files: dict[str, FileFact]  # path inside the folder -> fact

    def to_json(self) -> str:
        """The text of manifest.json; its last line is a checksum of the rest."""
        content = asdict(self)
        return json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n"


def describe(
    graph: Graph,
    assignment: Assignment,
    *,
    features: str,
    split: int,
    figures: Mapping[str, Any],
    files: Mapping[str, FileFact],
) -> Manifest:
    """The manifest of `graph` cut by `assignment`."""
    facts = GraphFacts(
        name=graph.name,
        nodes=graph.num_nodes,
        arcs=graph.num_arcs,
        features=graph.num_features,
        classes=graph.num_classes,
        multilabel=graph.multilabel,
        weighted=graph.weighted,
        splits=graph.num_splits,
        sparse=bool(sp.issparse(graph.x)),
    )
    return Manifest(
        schema=SCHEMA,
        graph=facts,
        parts=assignment.parts,
        method=assignment.method,
        seed=assignment.seed,
        features=features,
        split=split,
        figures=dict(figures),
        files=dict(files),
    )


def is_partition_folder(path: str | Path) -> bool:
    """Whether `path` is a folder that write_parts wrote, in whatever state it is now."""
    return (Path(path) / FILE).is_file()


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a folder of shards; another schema or a damaged text is one line that says so."""
    path = Path(folder) / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder} is no folder of shards (it has no {FILE}): {AGAIN}, or fix the path") from None
    except OSError as bad:
        raise InputError(f"cannot read {path} ({bad.strerror}): fix its permissions or the path") from None
    except ValueError:
        raise InputError(f"{path} is damaged (not JSON): {AGAIN}") from None
    if not isinstance(content, dict) or "schema" not in content:
        raise InputError(f"{path} is damaged (it names no schema): {AGAIN}")
    if content["schema"] != SCHEMA:
        raise InputError(
            f"{folder} holds shards of schema {content['schema']!r}, this version reads schema {SCHEMA}: {AGAIN}"
        )
    if content.pop("checksum", None) != _checksum(content):
        raise InputError(f"{path} is damaged (its checksum does not match): {AGAIN}")
    try:
        content["graph"] = GraphFacts(**content["graph"])
        content["files"] = {name: FileFact(**fact) for name, fact in content["files"].items()}
        return Manifest(**content)
    except (TypeError, KeyError):
        raise InputError(f"{path} has other fields than this version writes: {AGAIN}") from None


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
