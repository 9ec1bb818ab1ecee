"""Shards on disk: a folder with a manifest, the assignment, and one folder of memory-mapped arrays per part.

Legend: n owned rows, F features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fullgraph.data import FeatureScaler, Graph, Names, fit_features
from fullgraph.data.arrays import Array, FeatureMatrix, Tally, at_once
from fullgraph.errors import InputError
from fullgraph.partition import npy
from fullgraph.partition.base import Assignment
from fullgraph.partition.cut import arcs_of, labels_of, no_arcs, structure_of
from fullgraph.partition.layout import Layout, Quality, lay_out, quality
from fullgraph.partition.manifest import AGAIN, FileFact, Manifest, describe, read_manifest, replaced_folder
from fullgraph.partition.part import Part, array_names, assemble
from fullgraph.resources import require_disk

BLOCK_ROWS = 1 << 16
BLOCK_ENTRIES = 1 << 22

Files = dict[str, FileFact]


def write_parts(
    folder: str | Path, graph: Graph, assignment: Assignment, *, features: str | FeatureScaler = "none", split: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:  # fmt: skip
    """Partition `graph` and write every part.

    features: the scaling, fitted on the training nodes of `split`, or a scaler that was fitted before. The scaler and
    the nodes' names are stored beside the parts.

    Features and arcs are read in order and in blocks, so neither has to fit in memory. A separate thread writes the
    features. progress: called with (done, total), in rows or parts.
    """
    scaler = features if isinstance(features, FeatureScaler) else fit_features(graph, features, split)
    layout = lay_out(graph, assignment)
    figures = quality(graph, assignment, split, layout=layout)
    require_disk(Path(folder), _bytes_of(graph, figures), "cutting the graph")
    files: Files = {}
    with replaced_folder(folder) as building, ThreadPoolExecutor(1, thread_name_prefix="fullgraph-features") as pool:
        for rank in range(assignment.parts):
            (building / f"part-{rank}").mkdir()
        stream = _stream_sparse if sp.issparse(graph.x) else _stream_dense
        done = Tally(progress, graph.num_nodes + assignment.parts)
        features_done = pool.submit(stream, building, graph, assignment, layout, scaler, done)
        for name, array in _of_all_parts(graph, assignment, scaler).items():
            files[f"{name}.npy"] = npy.save(building / f"{name}.npy", array)

        def write(rank: int) -> Files:
            arrays = structure_of(graph, layout, rank) | labels_of(graph, layout.owned[rank])
            files = {_file(rank, name): npy.save(building / _file(rank, name), arrays[name]) for name in arrays}
            files |= _stream_arcs(building, graph, layout, rank, int(arrays["indptr"][-1]))
            done.more(1)
            return files

        for written in at_once(write, range(assignment.parts)):
            files |= written
        files |= features_done.result()
        manifest = describe(graph, assignment, features=scaler.kind, split=split, figures=figures, files=files)
        manifest.write(building)
    return manifest


def open_part(folder: str | Path, rank: int, *, split: int = 0, verify: bool = True) -> Part:
    """Memory-map the files of `rank` only; `verify` reads them once to compare checksums.

    Features scaled by the training nodes of one split depend on test nodes of another split, so the part opens only
    with that split.
    """
    manifest = read_manifest(folder)
    if not 0 <= rank < manifest.parts:
        raise InputError(f"{folder} holds {manifest.parts} parts, so there is no rank {rank}: start as many ranks")
    _check_split(folder, manifest, split)
    arrays = read_arrays(folder, manifest, rank, verify=verify)
    return assemble(arrays, rank, manifest, split, Path(folder) / f"part-{rank}")


def read_arrays(folder: str | Path, manifest: Manifest, rank: int, *, verify: bool = True) -> dict[str, Array]:
    """Memory-map all arrays of a part."""
    names = array_names(manifest.graph)
    names = (*names, "position") if _file(rank, "position") in manifest.files else names

    def one(name: str) -> Array:
        file = _file(rank, name)
        if file not in manifest.files:
            raise InputError(f"{folder} lists no {file} in its manifest: {AGAIN}")
        npy.check(Path(folder) / file, manifest.files[file], content=verify)
        return npy.open_mapped(Path(folder) / file)

    return dict(zip(names, at_once(one, names), strict=True))


def read_assignment(folder: str | Path) -> Assignment:
    """Return the assignment of the shards in `folder`."""
    manifest = read_manifest(folder)
    part = _shared(folder, manifest, "assignment")["assignment"]
    return Assignment(part, manifest.parts, manifest.method, manifest.seed)


def read_scaler(folder: str | Path) -> FeatureScaler:
    """Return the scaler of the features in the shards in `folder`."""
    manifest = read_manifest(folder)
    fitted = _shared(folder, manifest, "shift", "scale")
    if manifest.features == "standard" and "scale" not in fitted:
        raise InputError(
            f"{folder} was written by an older version and does not record how features were scaled: {AGAIN}"
        )
    return FeatureScaler(manifest.features, fitted.get("shift"), fitted.get("scale"))


def read_names(folder: str | Path) -> Names | None:
    """Return the user's names of the nodes in `folder` (of a typed graph: of its target type); None if it has none."""
    arrays = _shared(folder, read_manifest(folder), *Names.ARRAYS)
    return Names.from_arrays(arrays) if arrays else None


def _of_all_parts(graph: Graph, assignment: Assignment, scaler: FeatureScaler) -> dict[str, Array]:
    """Return the arrays that all parts share."""
    arrays = {"assignment": assignment.part, "shift": scaler.shift, "scale": scaler.scale}
    present = {name: array for name, array in arrays.items() if array is not None}
    return present if graph.names is None else present | graph.names.arrays()


def _shared(folder: str | Path, manifest: Manifest, *names: str) -> dict[str, Array]:
    """Return the named shared arrays that exist, checked and memory-mapped."""
    paths = {name: Path(folder) / f"{name}.npy" for name in names if f"{name}.npy" in manifest.files}
    for path in paths.values():
        npy.check(path, manifest.files[path.name])
    return {name: npy.open_mapped(path) for name, path in paths.items()}


def _bytes_of(graph: Graph, figures: Quality) -> int:
    """Return the bytes that all parts need on a disk, without file headers."""
    entries = graph.x.nnz if sp.issparse(graph.x) else math.prod(graph.x.shape)
    x = entries * (graph.x.dtype.itemsize + (4 if sp.issparse(graph.x) else 0))
    labels = graph.y.nbytes + 3 * graph.train_mask.nbytes
    more = 0 if graph.edge_weight is None else graph.edge_weight.nbytes
    more += 0 if graph.edge_attr is None else graph.edge_attr.nbytes
    more += graph.fields.nbytes
    more += 0 if graph.names is None else sum(array.nbytes for array in graph.names.arrays().values())
    more += 0 if graph.pairs is None else 26 * len(graph.pairs)
    return int(x + labels + more + 4 * graph.num_arcs + 20 * graph.num_nodes + 16 * figures.halo_rows)


def _check_split(folder: str | Path, manifest: Manifest, split: int) -> None:
    if not 0 <= split < manifest.graph.splits:
        raise InputError(f"split {split} does not exist: choose from 0 to {manifest.graph.splits - 1}")
    if manifest.features == "standard" and split != manifest.split:
        raise InputError(
            f"{folder} was scaled with the training nodes of split {manifest.split}; "
            f"partition again with --split {split}"
        )


def _file(rank: int, name: str) -> str:
    return f"part-{rank}/{name}.npy"


def _blocks(
    graph: Graph, assignment: Assignment, scaler: FeatureScaler, width: int
) -> Iterator[tuple[int, FeatureMatrix]]:
    """Yield (part, its next scaled rows), reading graph.x from front to back."""
    step = max(1, min(BLOCK_ROWS, BLOCK_ENTRIES // max(1, width)))
    for low in range(0, graph.num_nodes, step):
        block = scaler.apply(graph.x[low : low + step])
        part = assignment.part[low : low + step]
        if (part == part[0]).all():  # one part: no copy is needed
            yield int(part[0]), block
            continue
        order = np.argsort(part, kind="stable")
        ranks, first = np.unique(part[order], return_index=True)
        for rank, rows in zip(ranks.tolist(), np.split(order, first[1:]), strict=True):
            yield rank, block[rows]


def _stream_arcs(building: Path, graph: Graph, layout: Layout, rank: int, count: int) -> Files:
    out = {
        name: npy.NpyWriter(building / _file(rank, name), (count, *kind.shape[1:]), kind.dtype)
        for name, kind in no_arcs(graph).items()
    }
    for _, block in arcs_of(graph, layout, rank):
        for name, values in block.items():
            out[name].append(values)
    return {_file(rank, name): writer.close() for name, writer in out.items()}


def _stream_dense(
    building: Path, graph: Graph, assignment: Assignment, layout: Layout, scaler: FeatureScaler, done: Tally
) -> Files:
    width = graph.num_features
    dtype = scaler.apply(graph.x[:0]).dtype
    out = {
        _file(rank, "x"): npy.NpyWriter(building / _file(rank, "x"), (len(ids), width), dtype)
        for rank, ids in enumerate(layout.owned)
    }
    for rank, block in _blocks(graph, assignment, scaler, width):
        out[_file(rank, "x")].append(block)
        done.more(len(block))
    return {name: writer.close() for name, writer in out.items()}


def _stream_sparse(
    building: Path, graph: Graph, assignment: Assignment, layout: Layout, scaler: FeatureScaler, done: Tally
) -> Files:
    files: Files = {}
    out = {}
    length = np.diff(graph.x.indptr)
    dtype = scaler.apply(graph.x[:0]).dtype
    for rank, ids in enumerate(layout.owned):
        indptr = np.zeros(len(ids) + 1, dtype=np.int64)
        np.cumsum(length[ids], out=indptr[1:])
        files[_file(rank, "x_indptr")] = npy.save(building / _file(rank, "x_indptr"), indptr)
        for name, kind in (("x_indices", np.dtype(np.int32)), ("x_values", dtype)):
            file = _file(rank, name)
            out[file] = npy.NpyWriter(building / file, (int(indptr[-1]),), kind)
    for rank, block in _blocks(graph, assignment, scaler, graph.x.nnz // graph.num_nodes):
        out[_file(rank, "x_indices")].append(block.indices)
        out[_file(rank, "x_values")].append(block.data)
        done.more(block.shape[0])
    return files | {name: writer.close() for name, writer in out.items()}
