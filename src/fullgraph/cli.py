"""The command line: options become the values of a run.

Commands import what they need: `--help` needs next to nothing, and ranks start before this process reads a graph.
"""

import os
import signal
import sys
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullgraph.axes import (
    LOSSES,
    METRICS,
    MODELS,
    OPTIMIZERS,
    PARTITIONERS,
    SCHEDULES,
    STRATEGIES,
    TASKS,
)
from fullgraph.environ import in_job, number
from fullgraph.errors import Interrupted, PeerLost, RankFailed, explain, one_line
from fullgraph.named import listed
from fullgraph.options import only, options_of, over_a_run, pairs_of, read_config, run_of
from fullgraph.report import Phases, age, read_outcome
from fullgraph.report.terminal import complain, output_trouble, tolerate_output
from fullgraph.train.config import FILE, device_in
from fullgraph.train.nursery import Nursery
from fullgraph.values import OneOf, Range, read_option

if TYPE_CHECKING:
    from fullgraph.api import FinishedRun

OWN = ", or your own: my_file.py:Name"
FEATURES = ("none", "row", "standard")
MOST_STEPS = 1_000_000  # lines of a printed schedule
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def fullgraph(ctx: typer.Context) -> None:
    """Train graph neural networks on the whole graph, across many workers."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


GraphArgument = Annotated[str, typer.Argument(help="demo, FILE.npz, a folder of tables or of shards, pyg:CLASS/NAME, "
                                              "ogb:NAME, saint:FOLDER, tables:KEY=VALUE,..., sbm:KEY=VALUE,... "
                                              "or rmat:KEY=VALUE,...")]  # fmt: skip


PartitionerOption = Annotated[list[str], typer.Option("-o", "--option", help="KEY=VALUE of the partitioner")]


@app.command()
def train(
    ctx: typer.Context,
    graph: GraphArgument = "demo",
    config: Annotated[
        Path | None,
        typer.Option(callback=read_config, is_eager=True, help="TOML file of these options, or a run's config.json"),
    ] = None,
    parts: Annotated[int, typer.Option(help="ranks; 0: as many as the folder has parts, else 1")] = 0,
    strategy: Annotated[str, typer.Option(help="see `fullgraph strategies`" + OWN)] = "vanilla",
    option: Annotated[list[str], typer.Option("-o", "--option", help="KEY=VALUE of the strategy")] = [],  # noqa: B006
    model: Annotated[str, typer.Option(help=", ".join(MODELS) + OWN)] = "sage",
    layers: int = 3,
    hidden: int = 128,
    dropout: float = 0.5,
    norm: Annotated[str | None, typer.Option(help="none, layer or batch", show_default="none; resgcn: layer")] = None,
    linear_layers: Annotated[int, typer.Option(help="how many of the layers, the last ones, are dense")] = 0,
    residual: Annotated[bool, typer.Option(help="add each hidden layer's input to its output")] = False,
    model_option: Annotated[list[str], typer.Option("-m", help="KEY=VALUE of a model of your own")] = [],  # noqa: B006
    heads: Annotated[int, typer.Option(help="attention heads (gat)")] = 4,
    alpha: Annotated[float, typer.Option(help="the first rows' share of every layer (gcnii)")] = 0.1,
    lam: Annotated[float, typer.Option(help="lambda: how much of a layer's weights counts (gcnii)")] = 0.5,
    epochs: Annotated[int | None, typer.Option(show_default="200")] = None,
    schedule_epochs: Annotated[
        int | None, typer.Option(help="epochs that schedules are laid out for", show_default="the run's first --epochs")
    ] = None,
    task: Annotated[str, typer.Option(help=f"auto, {', '.join(TASKS)}; auto: what the labels are for")] = "auto",
    loss: Annotated[str, typer.Option(help=f"auto, {', '.join(LOSSES)}{OWN}")] = "auto",
    decoder: Annotated[str | None, typer.Option(help="of a pair's two rows (link): dot" + OWN)] = None,
    optimizer: Annotated[str, typer.Option(help=", ".join(OPTIMIZERS) + OWN)] = "adam",
    train_option: Annotated[list[str], typer.Option("-t", help="KEY=VALUE of the task, loss or optimizer")] = [],  # noqa: B006
    callback: Annotated[list[str], typer.Option(help="told of every epoch: my_file.py:Name[,KEY=VALUE...]")] = [],  # noqa: B006
    lr: float = 0.01,
    weight_decay: float = 0.0,
    lr_schedule: Annotated[str, typer.Option(help="constant, cosine or step")] = "constant",
    seed: int = 0,
    partitioner: Annotated[str, typer.Option(help=", ".join(PARTITIONERS) + OWN)] = "metis",
    partitioner_option: Annotated[list[str], typer.Option("-p", help="KEY=VALUE of the partitioner")] = [],  # noqa: B006
    features: Annotated[str, typer.Option(help="none, row or standard")] = "none",
    split: Annotated[int, typer.Option(help="which of the graph's K splits")] = 0,
    metric: Annotated[str, typer.Option(help=f"auto, {', '.join(METRICS)}{OWN}")] = "auto",
    inductive: Annotated[bool, typer.Option(help="train on the subgraph of training nodes")] = False,
    precompute: Annotated[bool, typer.Option(help="aggregate dense input features once")] = True,
    all_rows: Annotated[bool, typer.Option("--all-rows", help="also compute rows that the loss does not read")] = False,
    order: Annotated[str, typer.Option(help="of a rank's rows: given, or auto (on a GPU by clusters)")] = "auto",
    eval_every: int = 10,
    patience: Annotated[int, typer.Option(help="stop after this many evaluations without a better one; 0: never")] = 0,
    checkpoint_every: Annotated[int, typer.Option(help="epochs; 0: never")] = 10,
    dtype: Annotated[str, typer.Option(help="float32 or float64")] = "float32",
    precision: Annotated[str, typer.Option(help="fp32, tf32, or bf16 (rows and wires; weights in fp32)")] = "fp32",
    features_on: Annotated[
        str, typer.Option(help="device, or host: dense input rows stay in pinned memory and are streamed to a GPU")
    ] = "device",
    checkpoint_layers: Annotated[
        bool, typer.Option(help="keep only the rows between layers; compute the rest again in the backward pass")
    ] = False,
    device: str = "cpu",
    backend: str = "gloo",
    timeout: Annotated[float, typer.Option(help="seconds after which a silent rank or link is given up")] = 60.0,
    on_signal: Annotated[str, typer.Option(help="what SIGTERM and SIGINT do first: checkpoint or stop")] = "checkpoint",
    max_restarts: Annotated[
        int | None, typer.Option(help="resume by itself so often after a rank died", show_default="0")
    ] = None,
    threads: Annotated[int, typer.Option(help="per rank; 0: this machine's cores over its ranks")] = 0,
    tensorboard: Annotated[bool, typer.Option(help="write scalars for TensorBoard into the run's folder")] = False,
    report: Annotated[bool, typer.Option(help="measure where epochs go, and write report.html")] = True,
    trace: Annotated[bool, typer.Option("--trace", help="write trace.json, for Perfetto or chrome://tracing")] = False,
    trace_epochs: Annotated[int, typer.Option(help="how many epochs it has")] = 3,
    trace_skip: Annotated[int, typer.Option(help="epochs before them, of which the first compiles kernels")] = 1,
    trace_torch: Annotated[bool, typer.Option("--trace-torch", help="torch's profile of the same epochs too")] = False,
    out: Annotated[Path | None, typer.Option(help="the run's folder [default: a new one under runs/]")] = None,
    resume: Annotated[Path | None, typer.Option(help="continue the run in this folder")] = None,
) -> None:
    """Train on the whole graph.

    Example:  fullgraph train demo --parts 2 --model sage --epochs 100

    Under torchrun or Slurm it joins as one rank of many machines (give --out a folder they share).
    """
    given = options_of(ctx)
    if resume is not None:
        only(ctx, "--resume", ("resume", "epochs", "schedule_epochs", "parts", "max_restarts"))
        given["device"] = device_in(resume / FILE)
    elif config is not None and over_a_run(given):
        given.setdefault("device", device_in(config))
    with nullcontext() if in_job() else Nursery(given["device"]) as ahead:
        run = _train(given, ahead)
    if number("RANK", 0) == 0:
        from fullgraph.report.tables import print_result

        print_result(read_outcome(run.folder), run.folder)


def _train(given: dict[str, Any], ahead: Nursery | None) -> "FinishedRun":
    """Start or resume a run, of ranks that are importing what they need by now."""
    from fullgraph import api
    from fullgraph.preparing import new_folder

    phases = Phases({"import": age()}, aloud=number("RANK", 0) == 0 and sys.stdout.isatty())
    if given["resume"] is not None:
        more = {name: given[name] for name in ("epochs", "schedule_epochs", "max_restarts")}
        more["parts"] = given["parts"] or None
        return api.resume(given["resume"], **more, ahead=ahead, phases=phases)
    run = run_of(given)
    return api.start(run, run.graph, new_folder(run, given["out"]), ahead=ahead, phases=phases)


@app.command("partition")
def partition_command(
    graph: GraphArgument,
    out: Annotated[Path, typer.Option(help="folder to write")],
    parts: int = 2,
    partitioner: Annotated[str, typer.Option(help=", ".join(PARTITIONERS) + OWN)] = "metis",
    features: Annotated[str, typer.Option(help="none, row or standard")] = "none",
    split: int = 0,
    seed: int = 0,
    task: Annotated[str, typer.Option(help=f"auto, {', '.join(TASKS)}; link: with its pairs")] = "auto",
    option: PartitionerOption = [],  # noqa: B006
) -> None:
    """Cut a graph into a folder of shards, one a rank.

    Example:  fullgraph partition mygraph.npz --parts 4 --out parts/ -o node_weight=1 -o degree_weight=0.5
    """
    from fullgraph.data import load
    from fullgraph.partition import partition, write_parts
    from fullgraph.report.tables import print_quality
    from fullgraph.tasks import fitted

    read_option(Annotated[str, OneOf(*FEATURES)], "features", features)
    chosen = PARTITIONERS.make(partitioner, **pairs_of(option))  # refused before a graph is read
    _, whole = fitted(task, load(graph), seed)
    assignment = partition(whole, parts, chosen, seed)
    manifest = write_parts(out, whole, assignment, features=features, split=split)
    print_quality(asdict(manifest.figures), manifest.method)
    print(f"wrote {out}")


@app.command()
def inspect(
    graph: GraphArgument,
    parts: int = 2,
    partitioner: Annotated[str, typer.Option(help=", ".join(PARTITIONERS) + OWN)] = "metis",
    seed: int = 0,
    option: PartitionerOption = [],  # noqa: B006
) -> None:
    """Print how good a cut is: arcs cut, halo rows, and each rank's share.

    Example:  fullgraph inspect parts/        or:  fullgraph inspect mygraph.npz --parts 8 --partitioner random
    """
    from fullgraph.data import load
    from fullgraph.partition import is_partition_folder, partition, quality, read_manifest
    from fullgraph.report.tables import print_quality

    if is_partition_folder(Path(graph)):
        manifest = read_manifest(Path(graph))
        print_quality(asdict(manifest.figures), manifest.method)
        return
    chosen = PARTITIONERS.make(partitioner, **pairs_of(option))  # refused before a graph is read
    whole = load(graph)
    assignment = partition(whole, parts, chosen, seed)
    print_quality(asdict(quality(whole, assignment)), assignment.method)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="a finished run's folder")],
    graph: Annotated[str | None, typer.Option(help="another graph than the run's; it needs no labels")] = None,
    parts: Annotated[int, typer.Option(help="ranks for --graph; 0: as many as the run has")] = 0,
    embeddings: Annotated[
        str | None, typer.Option(help="write this layer's output too: its number, from 1, or its name in the model")
    ] = None,
    format: Annotated[str, typer.Option(help="npy, csv or parquet")] = "npy",
    out: Annotated[
        Path | None, typer.Option(help="folder for the files", show_default="the run's predictions/")
    ] = None,
) -> None:
    """Write every node's class and probabilities, in the graph's own node order, with a run's best model.

    Example:  fullgraph predict runs/mine --graph new.npz --out predictions/ --embeddings 2 --format parquet
    """
    with Nursery(device_in(run / FILE)) as ahead:
        from fullgraph.predicting import predict as written

        done = written(run, out, graph=graph, parts=parts, embeddings=embeddings, format=format, ahead=ahead)
    print(f"wrote {', '.join(map(str, done.files))}")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of finished runs")],
    target: Annotated[
        float | None, typer.Option(help="a validation score: show the seconds until it was reached")
    ] = None,
) -> None:
    """Print runs side by side: scores, epoch time, wait, bytes, time to a given score.

    Example:  fullgraph compare runs/vanilla runs/pipegcn --target 0.9
    """
    from fullgraph.report import read_metrics, seconds_to
    from fullgraph.report.tables import print_comparison

    outcomes = {str(folder): read_outcome(folder) for folder in runs}
    reached = {}
    if target is not None:
        for name, outcome in outcomes.items():
            records = read_metrics(Path(name) / "metrics.jsonl", outcome.epochs)
            reached[name] = seconds_to(records, target, smaller=outcome.smaller_is_better)
    print_comparison(outcomes, reached, target)


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, finished or not")],
    out: Annotated[
        Path | None,
        typer.Option(help="the page", show_default="RUN/report.html; of several: report.html"),
    ] = None,
) -> None:
    """Write a page that shows a run, or several beside one another: one file that opens without a network.

    Example:  fullgraph report runs/mine        or:  fullgraph report runs/vanilla runs/pipegcn --out both.html
    """
    from fullgraph.report.html import PAGE, write_comparison, write_report

    page = write_report(runs[0], out) if len(runs) == 1 else write_comparison(runs, out or Path(PAGE))
    print(f"wrote {one_line(page)}")


@app.command()
def schedule(
    name: Annotated[str, typer.Argument(help=", ".join(SCHEDULES) + OWN)],
    steps: int = 10,
    option: Annotated[list[str], typer.Option("-o", "--option", help="KEY=VALUE of the schedule")] = [],  # noqa: B006
) -> None:
    """Print when a schedule sends, and which step's rows it reads.

    Example:  fullgraph schedule pipelined --steps 4        or:  fullgraph schedule bounded -o refresh=5
    """
    from fullgraph.exchange import table

    read_option(Annotated[int, Range(1, MOST_STEPS)], "steps", steps)
    print(table(SCHEDULES.make(name, **pairs_of(option)), steps))


@app.command()
def strategies() -> None:
    """List the strategies, a line each, with their options.

    Example:  fullgraph strategies
    """
    for name, kind in STRATEGIES.items():
        print(f"{name:14}  {(kind.__doc__ or '').strip().splitlines()[0]}  [{listed(STRATEGIES.options(name))}]")


def main() -> None:
    """Run a command. Exit 0: done. 2: the input is wrong, one line says how to fix it. 1: anything else.

    128 + n: signal n asked to stop, and one line says what was kept.
    """
    tolerate_output()
    with suppress(ValueError):  # not in the main thread
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
    try:
        code = app(standalone_mode=False)
        _end(code if isinstance(code, int) else 0)
    except (RankFailed, PeerLost) as error:
        _fail(error, 1)
    except Interrupted as error:
        _fail(error, 128 + error.number)
    except Exception as error:
        known = explain(error)
        if known is not None:
            _fail(known, 2)
        # Wrong options: typer may carry its own copy of click, so its class cannot be named.
        if not hasattr(error, "format_message"):
            raise
        _fail(error.format_message(), 2)


def _interrupt(number: int, frame: object) -> None:
    """While ranks train, the launcher has handlers of its own."""
    name = signal.Signals(number).name
    raise Interrupted(f"interrupted by {name} before training began; nothing was kept", number)


def _end(code: int) -> None:
    """Exit; where printing is all that a command does, words that could not be written are a failure."""
    trouble = output_trouble()
    if trouble is not None and not isinstance(trouble, BrokenPipeError):
        complain(f"cannot write to standard output: {trouble.strerror}")
        code = code or 1
    _exit(code)


def _fail(text: object, code: int) -> None:
    complain(text)
    _exit(code)


def _exit(code: int) -> None:
    if "RANK" in os.environ:  # one rank of a job: its backend's threads may not survive an orderly exit
        os._exit(code)
    sys.exit(code)
