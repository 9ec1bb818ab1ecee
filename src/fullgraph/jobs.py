"""Start a run's ranks here, or join a torchrun or Slurm job as one of them."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from fullgraph.data import Graph
from fullgraph.device import device_of
from fullgraph.errors import InputError, Interrupted, RankFailed, signal_name
from fullgraph.partition import read_manifest
from fullgraph.preparing import is_cut, prepare, require_run_fits
from fullgraph.recutting import recut
from fullgraph.report import Phases
from fullgraph.report.terminal import note
from fullgraph.run import Run, not_in_parts
from fullgraph.train.config import TrainConfig
from fullgraph.train.folder import RunFolder
from fullgraph.train.fork_server import ForkServer
from fullgraph.train.launch import launch
from fullgraph.train.rank_io import Stop
from fullgraph.train.result import versions
from fullgraph.transport import Key, agree, begun, join, note_begun
from fullgraph.transport.gather import text_of_first


def launch_ranks(run: RunFolder, config: Run, job: str, phases: Phases, fork_server: ForkServer | None) -> None:
    """Run the ranks; if one dies, resume from the newest complete checkpoint, as often as the run allows."""
    manifest = read_manifest(config.shards_in(run.path))
    in_parts = not not_in_parts(config, config.parts, manifest.graph)
    require_run_fits(manifest, config.model, config.train, in_parts=in_parts)
    for restart in range(config.train.max_restarts + 1):
        try:
            arguments = [str(run.path), job]
            fork_server = fork_server or ForkServer(config.train.device)
            fork_server.timeout = config.train.timeout
            handles, classes = [run.lock.handle], config.packed()
            return launch(
                config.parts, arguments, inherit=handles, phases=phases, fork_server=fork_server, classes=classes
            )
        except RankFailed as error:
            left = config.train.max_restarts - restart
            if not left:
                raise RankFailed(f"{error}; to go on: fullgraph train --resume {run.path}") from None
            note(f"{error}; resuming from the newest checkpoint, {left} restarts left")
        except Interrupted as error:
            go_on = f"to go on: fullgraph train --resume {run.path}"
            raise Interrupted(f"interrupted by {signal_name(error.number)}: {error}; {go_on}", error.number) from None
        job, fork_server = "resume", None


def with_parts(config: Run, size: int) -> Run:
    return replace(config, parts=agreed(config.parts, size))


def agreed(asked: int, size: int) -> int:
    """The number of ranks: as many as were asked for, or as a launcher started; 0: unknown."""
    if asked and size and asked != size:
        raise InputError(f"--parts {asked} under {size} ranks; leave --parts out or make them equal")
    return asked or size


def on_ranks(config: Run, folder: Path, parts: int, phases: Phases) -> Run:
    """The run on that many ranks, or on its own number of ranks for 0. It is written if its graph is cut again."""
    if parts in (0, config.parts):
        return config
    config = recut(config, folder, parts, phases)
    config.write(folder)
    return config


Begun = tuple[str, RunFolder, Run]  # the ranks' job (train or resume), the folder that rank 0 locks for it, its config


def begin_in_job(config: Run, graph: Graph | str | Path, folder: Path, phases: Phases) -> Begun:
    """Rank 0's part of starting a run; if torchrun restarted all ranks, resume the run that this job began."""
    there = None
    with suppress(InputError):  # the folder holds no run, or a damaged one, which is refused below
        there = Run.read(folder)
    if there is not None and begun(there.id):
        return "resume", RunFolder.existing(folder), on_ranks(there, folder, config.parts, phases)
    run = RunFolder.new(folder, shards=not is_cut(graph))
    try:
        config = prepare(config, graph, run, phases)
    except BaseException:
        run.undo()
        raise
    note_begun(config.id)
    return "train", run, config


def asked(job: str, config: Run, graph: object = None) -> dict[str, object]:
    """Describe what a host was asked to do, by name."""
    given = {"graph": graph} if isinstance(graph, str | Path) else {}
    return {"the command": job, **config.facts(), **given, **versions()}


def as_rank(
    folder: Path,
    config: TrainConfig,
    begin: Callable[[int], Begun],
    phases: Phases,
    about: Callable[[], Mapping[str, object]],
) -> Path:
    """Be one rank of a job that torchrun or Slurm started: rank 0 prepares the run, then tells the others its folder or
    its error.

    about: describes what this host was asked to do; all hosts must agree.
    """
    from fullgraph.worker import work

    stop = Stop()
    stop.listen()
    with phases.display.phase("meeting the other ranks"):
        transport = join(backend=config.backend, device=device_of(config.device), timeout=config.timeout)
    with ExitStack() as stack:
        stack.callback(transport.close)
        agree(transport, about, "ask for")
        told = {"trouble": "", "job": "", "folder": str(folder)}
        run: RunFolder | None = None
        if transport.rank == 0:
            try:
                with transport.away("preparing the run: reading and partitioning the graph"):
                    told["job"], run, _ = begin(transport.size)
                stack.enter_context(run)
            except InputError as error:
                told["trouble"] = str(error)
        told = json.loads(text_of_first(json.dumps(told), transport, Key("tell", 0)))
        if told["trouble"]:
            raise InputError(told["trouble"])
        try:
            work(Path(told["folder"]), told["job"], "", transport, stop, phases)
        except InputError:
            if run is not None and not run.trained:
                run.undo()
            raise
        except Interrupted as error:
            go_on = f"to go on: --resume {told['folder']}"
            raise Interrupted(f"interrupted: {error}; {go_on}", error.number) from None
        return Path(told["folder"])
