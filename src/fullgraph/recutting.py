"""Cut a run's graph again, into another number of parts, so that the run continues on another number of ranks.

The run's weights, optimizer and learned rows are in its checkpoints for all nodes, so each rank reads those of its new
nodes. Rows that channels kept between steps are of the old cut; channels begin with fresh rows (exchange/clock.py).
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fullgraph.axes import PARTITIONERS
from fullgraph.codec import Full
from fullgraph.cutting import cut, write_shards
from fullgraph.errors import InputError
from fullgraph.partition import Manifest, Metis, Partitioner, read_manifest
from fullgraph.partition.manifest import beside_shards
from fullgraph.partition.whole import read_graph
from fullgraph.placement import Pipeline
from fullgraph.preparing import check_placement
from fullgraph.remarks import late_halos
from fullgraph.report import Phases
from fullgraph.report.terminal import note
from fullgraph.run import Run, placement_of
from fullgraph.storage import scratch, settle
from fullgraph.train.folder import SHARDS, cut_into


def recut(config: Run, folder: Path, parts: int, phases: Phases) -> Run:
    """Return the run on `parts` ranks, with shards for them in its folder; the config is not written.

    The old shards stay. A cut that an earlier call left here is used again.
    """
    again = replace(config, parts=parts)
    check_movable(config, parts)
    check_placement(again)
    old = config.shards_in(folder)
    manifest = read_manifest(old)
    if manifest.checksum != config.shards_checksum:
        raise InputError(f"{old} are not the shards this run began with; restore those, or start a new run")
    for name in (SHARDS, cut_into(parts)):
        found = _same_graph(folder / name, manifest, parts)
        if found is not None:
            return _told(config, replace(again, shards=_named(name), shards_checksum=found.checksum))
    partitioner = config.strategy.partitioner() or config.partitioner or _by_name(manifest.method)
    with phases("read", f"reading the {config.parts} parts of {old}"):
        graph, scaler = read_graph(old)
    assignment = cut(graph, parts, partitioner, manifest.seed, phases)
    name = cut_into(parts)
    with scratch(folder) as work:
        found = write_shards(work / name, graph, assignment, phases, features=scaler, split=manifest.split)
        settle(work / name, folder / name, beside_shards)
    return _told(config, replace(again, shards=name, shards_checksum=found.checksum, partitioner=partitioner))


def check_movable(config: Run, parts: int) -> None:
    """Refuse a run whose state belongs to its number of ranks."""
    layout = placement_of(config)
    if isinstance(layout, Pipeline) and layout.chunks != 1:
        raise InputError(
            f"the run's chunks and their snapshots are those of {config.parts} ranks, and cannot be moved to {parts}; "
            f"resume with {config.parts} ranks, or start a new run"
        )


def _same_graph(folder: Path, old: Manifest, parts: int) -> Manifest | None:
    """The manifest of the folder if it has the same graph and features, in that many parts."""
    with suppress(InputError):
        found = read_manifest(folder)
        facts = ("graph", "features", "split", "method", "seed")
        if found.parts == parts and all(getattr(found, name) == getattr(old, name) for name in facts):
            return found
    return None


def _named(name: str) -> str:
    """A folder of shards as a run's config names it."""
    return "" if name == SHARDS else name


def _by_name(method: str) -> Partitioner:
    """The partitioner of shards that came with the run, with its default options; METIS if its name says nothing."""
    with suppress(InputError):
        partitioner: Partitioner = PARTITIONERS.make(method)
        return partitioner
    return Metis()


def _told(old: Run, new: Run) -> Run:
    kept = "; what ranks kept between steps (late rows, averages, errors) begins fresh" if keeps_rows(old) else ""
    note(f"{new.parts} ranks continue the run of {old.parts}, on another cut of the graph{kept}")
    return new


def keeps_rows(config: Run) -> bool:
    """Whether channels keep rows, averages, errors or a codec's memory from one step to the next."""
    wires = [config.wires.at(layer) for layer in range(config.model.graph_layers)]
    kept = any(getattr(wire, name, None) for wire in wires for name in ("smooth", "feedback", "drift"))
    remember = any(hasattr(getattr(wire, "codec", Full()), "for_channel") for wire in wires)
    return config.parts > 1 and (late_halos(config) or kept or remember)
