"""Options that several commands have, each with one meaning and one name in all of them."""

import json
from typing import Annotated, Any

import typer

from fullgraph.axes import FORMATS, GRAPH_FORMS, PARTITIONERS
from fullgraph.commands.fields import OWN, chosen_from, offer
from fullgraph.named import pairs_of
from fullgraph.report.terminal import note

FEATURES = ("none", "row", "standard")
GRAPHS = ("demo", *(f"{name}:" for name in FORMATS))
KINDS = f"demo, FILE.npz, a folder of tables or of shards, {', '.join(GRAPH_FORMS)}{OWN}"


GraphArgument = Annotated[str, typer.Argument(help=KINDS, autocompletion=offer(GRAPHS))]
PartsOption = Annotated[int, typer.Option(help="into how many parts the graph is cut, one a rank")]
PartitionerName = Annotated[str, chosen_from(PARTITIONERS)]
PartitionerOption = Annotated[
    list[str], typer.Option("-p", "--partitioner-option", help="KEY=VALUE of the partitioner, many times")
]
OldOption = Annotated[list[str], typer.Option("-o", "--option", hidden=True)]
FeaturesOption = Annotated[str, typer.Option(help=", ".join(FEATURES), autocompletion=offer(FEATURES))]
SplitOption = Annotated[
    str, typer.Option(help="which of the graph's K splits, or random:60/20/20 to draw one among labelled nodes")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON for a machine to read")]


def partitioner_of(name: str, options: list[str], old: list[str]) -> Any:
    """The partitioner that was named, with its options."""
    if old:
        note("-o is for a strategy's options in other commands; a partitioner's are given by -p, here too")
    return PARTITIONERS.make(name, **pairs_of([*old, *options], "-p"))


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))
