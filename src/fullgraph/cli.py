"""The command line: turn options into the values of a run.

Commands import modules when they need them: `--help` needs few, and ranks start before this process reads a graph.
"""

import os
import signal
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullgraph.axes import DECODERS, MODELS, STRATEGIES
from fullgraph.commands.graphs import inspect, partition
from fullgraph.commands.lists import schedule, strategies
from fullgraph.commands.runs import compare, next_commands, predict
from fullgraph.commands.shared import (
    FeaturesOption,
    GraphArgument,
    PartitionerName,
    PartitionerOption,
    ReversesOption,
    SplitOption,
    chosen_from,
    with_fields,
)
from fullgraph.display import Display, shown
from fullgraph.environ import in_job, number
from fullgraph.errors import Interrupted, PeerLost, RankFailed, explain, one_line
from fullgraph.lab.commands.measuring import bench, doctor, report
from fullgraph.lab.commands.planning import calibrate, plan, probe
from fullgraph.model_options import KINDS
from fullgraph.options import only, options_of, over_a_run, place_in_config, read_config, run_of
from fullgraph.own_code import own_code
from fullgraph.reference import libraries_in
from fullgraph.report import PAGE, Phases, age, read_outcome
from fullgraph.report.terminal import complain, output_trouble, tolerate_output
from fullgraph.train.config import FILE, TrainConfig, device_in, libraries_of
from fullgraph.train.fork_server import ForkServer
from fullgraph.train.rank_io import SIGNALS, ignore, interrupt
from fullgraph.version import __version__

if TYPE_CHECKING:
    from fullgraph.api import FinishedRun

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fullgraph {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def fullgraph(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Train graph neural networks on the whole graph, across many workers."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command()
@with_fields(*KINDS, TrainConfig, leave=("callbacks",))
def train(
    ctx: typer.Context,
    graph: GraphArgument = "demo",
    config: Annotated[
        Path | None,
        typer.Option(callback=read_config, is_eager=True, help="TOML file of these options, or a run's config.json"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder [default: a new one under runs/]")] = None,
    resume: Annotated[Path | None, typer.Option(help="continue the run in this folder")] = None,
    parts: Annotated[
        int, typer.Option(help="ranks; 0: one per part of the folder, or 1; with --resume: as many as before")
    ] = 0,
    strategy: Annotated[str, chosen_from(STRATEGIES, "see `fullgraph strategies`: ")] = "vanilla",
    option: Annotated[list[str], typer.Option("-o", "--option", help="KEY=VALUE of the strategy")] = [],  # noqa: B006
    model: Annotated[
        str | None,
        chosen_from(
            MODELS, default="sage; typed graphs: hetero-sage; --task link: gcn, 2 layers, without norm and dropout"
        ),
    ] = None,
    model_option: Annotated[
        list[str], typer.Option("-m", "--model-option", help="KEY=VALUE of a model of your own")
    ] = [],  # noqa: B006
    train_option: Annotated[
        list[str], typer.Option("-t", "--train-option", help="KEY=VALUE of the task, loss or optimizer")
    ] = [],  # noqa: B006
    decoder: Annotated[str | None, chosen_from(DECODERS, "for a pair's two rows (link): ")] = None,
    callback: Annotated[list[str], typer.Option(help="called after every epoch: my_file.py:Name[,KEY=VALUE...]")] = [],  # noqa: B006
    partitioner: PartitionerName = "metis",
    partitioner_option: PartitionerOption = [],  # noqa: B006
    features: FeaturesOption = "none",
    split: SplitOption = "0",
    reverses: ReversesOption = False,
    **fields: Any,
) -> None:
    """Train on the whole graph.

    Example:  fullgraph train demo --parts 2 --model sage --epochs 100

    Under torchrun or Slurm, this process is one rank of several machines; --out must be a folder that they share.
    """
    given = options_of(ctx)
    more = libraries_in(given)
    if resume is not None:
        only(ctx, "--resume", ("resume", "epochs", "schedule_epochs", "parts", "max_restarts"))
        given["device"], more = device_in(resume / FILE), libraries_of(resume / FILE)
    elif config is not None and over_a_run(given):
        given.setdefault("device", device_in(config))
        more = more or libraries_of(config)
    with (
        nullcontext() if in_job() else ForkServer(given.get("device", TrainConfig.device), more=more) as ahead,
        shown() as display,
    ):
        run = _train(given, ahead, display)
        for asked in SIGNALS:  # the run is saved by now; only messages follow
            signal.signal(asked, ignore)
    if number("RANK", 0) == 0:
        from fullgraph.report.tables import print_next, print_result

        print_result(read_outcome(run.folder), run.folder)
        if (run.folder / PAGE).exists():
            print(f"report: {one_line(run.folder / PAGE)}")
        print_next(next_commands(run.folder, app))


def _train(given: dict[str, Any], ahead: ForkServer | None, display: Display) -> "FinishedRun":
    """Start or resume a run; its ranks are already importing their modules."""
    with display.phase("starting"):
        from fullgraph import api
        from fullgraph.preparing import new_folder

    phases = Phases({"import": age()}, display)
    if given["resume"] is not None:
        more = {name: given.get(name) for name in ("epochs", "schedule_epochs", "max_restarts")}
        more["parts"] = given.get("parts") or None
        return api.resume(given["resume"], **more, ahead=ahead, phases=phases)
    named = str(given.get("model", ""))
    with display.phase(f"importing {named}") if ":" in named else nullcontext():
        run = run_of(given)
    return api.start(run, run.graph, new_folder(run, given["out"]), ahead=ahead, phases=phases)


for command in (
    partition, inspect, predict, compare, report, bench, plan, calibrate, probe, schedule, strategies, doctor,
):  # fmt: skip
    app.command()(command)


def main() -> None:
    """Run a command. Exit code 0: success. 2: wrong input; one line says how to fix it. 1: any other error.

    128 + n: signal n asked to stop; one line says what was saved.
    """
    tolerate_output()
    with suppress(ValueError):  # not in the main thread
        for asked in SIGNALS:
            if asked != signal.SIGHUP or signal.getsignal(asked) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
                signal.signal(asked, interrupt)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if a parent ignored it, we would not learn how ranks end
    try:
        with own_code():
            code = app(prog_name="fullgraph", standalone_mode=False)
        _end(code if isinstance(code, int) else 0)
    except (RankFailed, PeerLost) as error:
        _fail(error, 1)
    except Interrupted as error:
        _fail(error, 128 + error.number)
    except Exception as error:
        known = explain(error)
        if known is not None:
            _fail(known, 2)
        # Wrong options: typer may bundle its own copy of click, so its class cannot be imported.
        if not hasattr(error, "format_message"):
            raise
        _fail(f"{place_in_config(error)}{error.format_message()}", 2)


def _end(code: int) -> None:
    """Exit. If a command only prints, output that could not be written is a failure."""
    trouble = output_trouble()
    if trouble is not None and not isinstance(trouble, BrokenPipeError):
        complain(f"cannot write to standard output: {trouble.strerror}")
        code = code or 1
    _exit(code)


def _fail(error: object, code: int) -> None:
    complain(error)
    sys.stderr.write(getattr(error, "trace", ""))  # the frames of a user's own code
    _exit(code)


def _exit(code: int) -> None:
    with suppress(ValueError):  # not in the main thread
        for asked in SIGNALS:  # Python's handlers are removed before the process ends
            signal.signal(asked, signal.SIG_IGN)
    if "RANK" in os.environ:  # one rank of a job: the backend's threads may not survive an orderly exit
        os._exit(code)
    sys.exit(code)
