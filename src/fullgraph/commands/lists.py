"""Commands that print choices: strategies, what layers send under them, and schedules."""

from typing import Annotated

import typer

from fullgraph.axes import MODELS, SCHEDULES, STRATEGIES
from fullgraph.commands.shared import OWN, chosen_from, offer, with_fields
from fullgraph.errors import InputError, one_line
from fullgraph.model_options import ModelOptions
from fullgraph.named import pairs_of
from fullgraph.options import fields_of
from fullgraph.values import Range, read_option

MOST_STEPS = 1_000_000  # largest number of lines of a printed schedule
MOST_STAGES = 1000
COLUMNS, MOST_COLUMNS = 80, 140  # of the table of strategies


def schedule(
    name: Annotated[
        str, typer.Argument(help=", ".join([*SCHEDULES, "gnnpipe"]) + OWN, autocompletion=offer(SCHEDULES))
    ],
    steps: int = 10,
    stages: Annotated[int, typer.Option(help="stages of gnnpipe")] = 4,
    chunks: Annotated[int, typer.Option(help="chunks of gnnpipe per step; 0: four per stage")] = 0,
    option: Annotated[list[str], typer.Option("-o", "--option", help="KEY=VALUE of the schedule")] = [],  # noqa: B006
) -> None:
    """Print when a schedule sends and which step's rows it reads, or the order in which a pipeline's stages work.

    Example:  fullgraph schedule pipelined --steps 4        or:  fullgraph schedule gnnpipe --stages 4 --chunks 8
    """
    if name == "gnnpipe":
        from fullgraph.placement.pipeline.order import table as order_table

        read_option(Annotated[int, Range(1, MOST_STAGES)], "stages", stages)
        read_option(Annotated[int, Range(0, MOST_STAGES)], "chunks", chunks)
        print(order_table(stages, chunks or 4 * stages))
        return
    from fullgraph.exchange import checked_schedule, table

    read_option(Annotated[int, Range(1, MOST_STEPS)], "steps", steps)
    print(table(checked_schedule(SCHEDULES.make(name, **pairs_of(option))), steps))


@with_fields(ModelOptions)
def strategies(
    name: Annotated[
        str, typer.Argument(help="one strategy: show its options", autocompletion=offer(STRATEGIES), show_default=False)
    ] = "",
    graph: Annotated[
        str, typer.Option("--for", help="a graph: print what each layer would send, in how many bits and how late")
    ] = "",
    strategy: Annotated[
        list[str],
        typer.Option("--strategy", help="with --for: only these; options follow the name: 'sylvie-a bits=2'",
                     autocompletion=offer(STRATEGIES)),
    ] = [],  # noqa: B006
    model: Annotated[str, chosen_from(MODELS)] = "sage",
    layers: int = ModelOptions.layers,
    hidden: int = ModelOptions.hidden,
) -> None:  # fmt: skip
    """List the strategies; print one strategy's options; or print what each layer would send for a graph.

    Example:  fullgraph strategies        or:  fullgraph strategies sylvie-a

    For a graph:  fullgraph strategies --for mygraph.npz --strategy sylvie-a
    """
    if name and graph:
        raise InputError(f"give --strategy {one_line(name, 40)} with --for, not a name alone")
    if name:
        _one(name)
        return
    if graph:
        _plans(graph, strategy or [name for name in STRATEGIES if name != "auto"], model, layers, hidden)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fullgraph.commands.catalogue import entries

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("strategy", "result", "paper", ""):
        table.add_column(head, overflow="fold", no_wrap=bool(head))
    for entry in entries():
        table.add_row(*map(Text, (entry.name, entry.kind, entry.paper.rpartition(", ")[2], entry.text)))
    Console(width=max(COLUMNS, min(MOST_COLUMNS, Console().width))).print(table)
    print("exact: equal to one process. late: rows of earlier steps. lossy: rows are rounded, or some left out.")
    print("fullgraph strategies NAME shows the options of one; docs/strategies.md what each one sends.")


def _one(name: str) -> None:
    from fullgraph.commands.catalogue import PAPERS, kind_of, options_text

    described = " ".join((STRATEGIES[name].__doc__ or "").split())
    paper = next((text for start, text in PAPERS.items() if name.startswith(start)), "")
    known = kind_of(name) if name in STRATEGIES else ""
    print(f"{name}: {described}")
    print("; ".join(text for text in (known, paper) if text))
    options = options_text(name)
    print("options, by -o KEY=VALUE:" if options else "It has no options.")
    for line in options:
        print(line)


def _plans(graph: str, strategies: list[str], model: str, layers: int, hidden: int) -> None:
    from fullgraph.data import load
    from fullgraph.remarks import lines_of
    from fullgraph.run import Run
    from fullgraph.tasks import fitted
    from fullgraph.train.config import TrainConfig

    spec = MODELS.make(model, **fields_of(MODELS[model], {"layers": layers, "hidden": hidden}))
    if not hasattr(spec, "chain"):
        raise InputError("the layers of your own model are known only when it runs; name one of fullgraph's models")
    task, whole = fitted("auto", load(graph), 0)
    for text in strategies:
        name, *options = text.split()
        run = Run(model=spec, strategy=STRATEGIES.make(name, **pairs_of(options)), train=TrainConfig(task=task))
        print(f"{text}:")
        for line in lines_of(run, whole):
            print(f"  {line}")
