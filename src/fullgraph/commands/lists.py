"""What there is to choose from: strategies, and what a schedule does."""

from typing import Annotated

import typer

from fullgraph.axes import SCHEDULES, STRATEGIES
from fullgraph.commands.shared import OWN, offer
from fullgraph.named import listed
from fullgraph.options import pairs_of
from fullgraph.values import Range, read_option

MOST_STEPS = 1_000_000  # lines of a printed schedule


def schedule(
    name: Annotated[str, typer.Argument(help=", ".join(SCHEDULES) + OWN, autocompletion=offer(SCHEDULES))],
    steps: int = 10,
    option: Annotated[list[str], typer.Option("-o", "--option", help="KEY=VALUE of the schedule")] = [],  # noqa: B006
) -> None:
    """Print when a schedule sends, and which step's rows it reads.

    Example:  fullgraph schedule pipelined --steps 4        or:  fullgraph schedule bounded -o refresh=5
    """
    from fullgraph.exchange import checked_schedule, table

    read_option(Annotated[int, Range(1, MOST_STEPS)], "steps", steps)
    print(table(checked_schedule(SCHEDULES.make(name, **pairs_of(option))), steps))


def strategies() -> None:
    """List the strategies, a line each, with their options.

    Example:  fullgraph strategies
    """
    for name, kind in STRATEGIES.items():
        told = (kind.__doc__ or "").strip().splitlines()[0]
        print(f"{name:14}  {told}  [{listed(STRATEGIES.options(name))}]")
