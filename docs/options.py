"""Writes the options of `fg.train` into docs/api.md, from the fields of TrainConfig: python docs/options.py."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from fullgraph.commands.panels import PANELS, panel_of
from fullgraph.train.config import TrainConfig
from fullgraph.values import axis_of, choices_of, help_of, hints_of, plain_kinds

PAGE = Path(__file__).parent / "api.md"
BEGIN, END = "<!-- options of fg.train: written by docs/options.py -->\n", "<!-- end of options -->\n"


def lines() -> Iterator[str]:
    """A table for each subject, as in `fullgraph train --help`."""
    for panel in PANELS:
        own = [field for field in fields(TrainConfig) if panel_of(_option(field.name)) == panel]
        if own:
            yield f"**{panel}**\n\n| option | type | default | meaning |\n|---|---|---|---|\n"
            for field in own:
                yield f"| `{field.name}` | {_type(field.name)} | `{field.default!r}` | {_meaning(field.name)} |\n"
            yield "\n"


def _option(name: str) -> str:
    return "callback" if name == "callbacks" else name


def _type(name: str) -> str:
    hint = hints_of(TrainConfig)[name]
    kinds = [kind.__name__ for kind in plain_kinds(hint) if kind in (bool, int, float, str)]
    if name == "callbacks":
        return "tuple of callables"
    if axis_of(hint) is not None:
        return "name or value"
    return " or ".join(dict.fromkeys(kinds)) or "str"


def _meaning(name: str) -> str:
    if name == "callbacks":
        return "called after every epoch with its record; true ends the run"
    text, choices = help_of(TrainConfig)[name], ", ".join(f"`{c}`" for c in choices_of(hints_of(TrainConfig)[name]))
    told = ": ".join(part for part in (text.text, choices) if part)
    return (told or name.replace("_", " ")) + (f" (default: {text.default})" if text.default else "")


def section() -> str:
    return BEGIN + "\n" + "".join(lines()) + END


def main() -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + section() + rest.split(END)[1])


if __name__ == "__main__":
    main()
