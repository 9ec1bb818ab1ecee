"""Options that several commands share, with one name and one meaning.

Some are generated from dataclass fields, which own the name, help, choices and default.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from inspect import Parameter, signature
from typing import Annotated, Any, TypeVar, get_origin

import typer

from fullgraph.axes import FEATURE_KINDS, FORMATS, GRAPH_FORMS, PARTITIONERS
from fullgraph.named import pairs_of
from fullgraph.report.terminal import note
from fullgraph.values import axis_of, choices_of, help_of, hints_of, plain_kinds

F = TypeVar("F", bound=Callable[..., Any])
OWN = ", or your own: my_file.py:Name"


def with_fields(*kinds: type, leave: Iterable[str] = ()) -> Callable[[F], F]:
    """Turn parameters named like fields of these dataclasses into options with the fields' help and choices.

    A last parameter `**fields` stands for all other fields, one option each.
    """

    def decorated(command: F) -> F:
        shape = signature(command)
        known: dict[str, tuple[type, Field[Any]]] = {}
        for kind in kinds:
            for field in fields(kind):
                known.setdefault(field.name, (kind, field))
        made = {
            name: parameter.replace(kind=Parameter.KEYWORD_ONLY)
            for name, parameter in shape.parameters.items()
            if parameter.kind is not Parameter.VAR_KEYWORD
        }
        if len(made) < len(shape.parameters):
            for name, (_, field) in known.items():
                if name not in leave:
                    made.setdefault(name, Parameter(name, Parameter.KEYWORD_ONLY, default=field.default))
        for name in made.keys() & known.keys():
            if get_origin(made[name].annotation) is not Annotated:
                made[name] = made[name].replace(annotation=option_of(known[name][0], name))
        command.__signature__ = shape.replace(parameters=list(made.values()))  # type: ignore[attr-defined]
        command.__annotations__ |= {name: parameter.annotation for name, parameter in made.items()}
        return command

    return decorated


def option_of(kind: type, name: str) -> Any:
    """The annotation of the option that sets one field."""
    hint, text, choices = hints_of(kind)[name], help_of(kind)[name], choices_of(hints_of(kind)[name])
    listed = ", ".join(choices) + (OWN if axis_of(hint) is not None else "")
    shown = ": ".join(part for part in (text.text, listed) if part)
    kinds = list(plain_kinds(hint))
    plain = next((known for known in (bool, int, float) if known in kinds), str)
    info = typer.Option(
        help=shown or None, autocompletion=offer(choices) if choices else None, show_default=text.default or True
    )
    return Annotated[plain, info]


def offer(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Complete a partly typed name in the shell; if no name fits, complete file names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def chosen_from(names: Iterable[str], text: str = "", default: bool | str = True) -> Any:
    """An option that takes one of these names, or a user's own."""
    known = list(names)
    return typer.Option(help=f"{text}{', '.join(known)}{OWN}", autocompletion=offer(known), show_default=default)


GRAPHS = ("demo", *(f"{name}:" for name in FORMATS))
KINDS = f"demo, FILE.npz, a folder of tables or of shards, {', '.join(GRAPH_FORMS)}{OWN}"


GraphArgument = Annotated[str, typer.Argument(help=KINDS, autocompletion=offer(GRAPHS))]
PartsOption = Annotated[int, typer.Option(help="number of parts, one per rank")]
PartitionerName = Annotated[str, chosen_from(PARTITIONERS)]
PartitionerOption = Annotated[
    list[str], typer.Option("-p", "--partitioner-option", help="KEY=VALUE of the partitioner; may be repeated")
]
OldOption = Annotated[list[str], typer.Option("-o", "--option", hidden=True)]
FeaturesOption = Annotated[str, typer.Option(help=", ".join(FEATURE_KINDS), autocompletion=offer(FEATURE_KINDS))]
SplitOption = Annotated[
    str, typer.Option(help="number of a split of the graph, or random:60/20/20 to draw one among labelled nodes")
]
ReversesOption = Annotated[
    bool, typer.Option("--reverses", help="typed graphs: add a relation with reversed edges, rev_NAME, beside each")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON for programs")]


def partitioner_of(name: str, options: list[str], old: list[str]) -> Any:
    if old:
        note("-o gives options to a strategy in other commands; use -p for a partitioner's options")
    return PARTITIONERS.make(name, **pairs_of([*old, *options], "-p"))


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))
