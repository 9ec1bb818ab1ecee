"""`fullgraph doctor`."""

from dataclasses import asdict
from typing import Annotated

import typer

from fullgraph.commands.shared import JsonOption, print_json
from fullgraph.display import shown
from fullgraph.errors import one_line

SIGNS = {"ok": "ok", "optional": "--", "missing": "!!"}


def doctor(
    trial: Annotated[bool, typer.Option(help="also train on two ranks for a moment")] = True,
    as_json: JsonOption = False,
) -> None:
    """Check what training needs on this machine, and say what is missing and how to get it.

    Exit status 0: all that is needed is there. 1: something is missing.

    Example:  fullgraph doctor        or, in a script:  fullgraph doctor --no-trial --json
    """
    from fullgraph.lab.doctor import examine

    with shown(errors=as_json) as display:
        found = examine(() if trial else ("trial",), display)
    missing = [finding for finding in found if finding.state == "missing"]
    if as_json:
        print_json({"ok": not missing, "findings": [asdict(finding) for finding in found]})
    else:
        for finding in found:
            print(f"{SIGNS[finding.state]}  {finding.name:16}  {one_line(finding.text, 400)}")
            if finding.fix:
                print(f"{'':22}{one_line(finding.fix, 400)}")
        print(
            f"{len(missing)} of {len(found)} checks found something missing"
            if missing
            else "all that is needed is there"
        )
    if missing:
        raise typer.Exit(1)
