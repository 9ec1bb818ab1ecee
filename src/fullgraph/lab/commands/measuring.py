"""Commands that measure, check and show: `fullgraph bench`, `doctor`, `report` and `watch`."""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fullgraph.axes import MODELS, STRATEGIES
from fullgraph.commands.shared import GRAPHS, JsonOption, offer, print_json, with_fields
from fullgraph.display import shown
from fullgraph.errors import InputError, Interrupted, one_line
from fullgraph.options import read_config
from fullgraph.train.config import TrainConfig


@with_fields(TrainConfig)
def bench(
    graph: Annotated[list[str], typer.Option(help="as in `train`; may be repeated", autocompletion=offer(GRAPHS))] = [  # noqa: B006
        "demo"
    ],
    model: Annotated[
        list[str],
        typer.Option(help="NAME or NAME:KEY=VALUE,..., such as gcn:layers=16,hidden=64", autocompletion=offer(MODELS)),
    ] = ["sage"],  # noqa: B006
    strategy: Annotated[
        list[str],
        typer.Option(help="NAME or 'NAME KEY=VALUE ...', such as 'sylvie-a bits=2'", autocompletion=offer(STRATEGIES)),
    ] = ["vanilla", "pipegcn"],  # noqa: B006
    ranks: Annotated[list[int], typer.Option(help="number of ranks; may be repeated")] = [2],  # noqa: B006
    rate: Annotated[
        list[str],
        typer.Option(
            help="loopback, or the rate of links between emulated hosts, such as 1gbit or 200mbit (needs root)"
        ),
    ] = ["loopback"],  # noqa: B006
    config: Annotated[
        Path | None, typer.Option(callback=read_config, is_eager=True, help="TOML file of these options")
    ] = None,
    epochs: Annotated[int, typer.Option(help="epochs per round; a round is their mean")] = 8,
    rounds: Annotated[int, typer.Option(help="rounds per cell; a cell is their median")] = 3,
    score: Annotated[int, typer.Option(help="also train this many epochs for a validation score; 0: none")] = 0,
    peers: Annotated[bool, typer.Option("--peers", help="also measure PyG in one process")] = False,
    all_rows: bool = TrainConfig.all_rows,
    device: str = TrainConfig.device,
    out: Annotated[Path, typer.Option(help="folder of the cells; cells in it are not measured again")] = Path(
        "runs/bench"
    ),
) -> None:
    """Measure graphs x models x strategies x ranks x rates; an interrupted campaign continues where it stopped.

    Writes cells.jsonl as it goes, then cells.json, table.md and bench.html. Exit status 1: some cells failed.

    Example:  fullgraph bench --graph sbm:nodes=100000 --strategy vanilla --strategy pipegcn --ranks 2 --ranks 4
    """
    from fullgraph.lab.bench.campaign import carry_out
    from fullgraph.lab.bench.matrix import Matrix, Settings
    from fullgraph.lab.bench.tables import print_cells

    if config is not None and config.suffix == ".json":
        raise InputError(f"--config {one_line(config, 100)}: give a TOML file of this command's options")
    axes = {"graph": graph, "model": model, "strategy": strategy, "ranks": ranks, "rate": rate}
    matrix = Matrix(**{name: tuple(chosen) for name, chosen in axes.items()}, peers=peers)  # type: ignore[arg-type]
    settings = Settings(epochs=epochs, rounds=rounds, score=score, device=device, all_rows=all_rows)
    with shown() as display:
        book = carry_out(matrix, settings, out, display)
    print_cells(list(book.cells.values()))
    for where, why in book.failed_lines().items():
        print(f"failed: {one_line(where)}: {why}")
    print(f"wrote {one_line(out)}: cells.json, table.md, bench.html")
    if book.failed:
        raise typer.Exit(1)


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, finished or not")],
    out: Annotated[
        Path | None,
        typer.Option(help="the page", show_default="RUN/report.html; for several runs: report.html"),
    ] = None,
) -> None:
    """Write a page about one run, or one that compares several: a single file that needs no network.

    Example:  fullgraph report runs/mine        or:  fullgraph report runs/vanilla runs/pipegcn --out both.html
    """
    from fullgraph.lab.html import PAGE, write_comparison, write_report

    page = write_report(runs[0], out) if len(runs) == 1 else write_comparison(runs, out or Path(PAGE))
    print(f"wrote {one_line(page)}")


def watch(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs that train on this machine")],
    port: Annotated[int, typer.Option(help="0: any free one", min=0, max=65535)] = 0,
) -> None:
    """Show the page of runs while they train: in a browser on this machine, read-only. It ends when they end.

    Only this machine can reach the page. From another one: ssh -L PORT:127.0.0.1:PORT, with a --port.

    Example:  fullgraph watch runs/mine        or:  fullgraph watch runs/first runs/second
    """
    from fullgraph.lab.html.live import watch as shown_live

    with suppress(Interrupted):  # Ctrl-C is how a user stops watching
        shown_live(runs, port, lambda line: print(one_line(line, 1000), flush=True))


SIGNS = {"ok": "ok", "optional": "--", "missing": "!!"}


def doctor(
    trial: Annotated[bool, typer.Option(help="also train briefly on two ranks")] = True,
    as_json: JsonOption = False,
) -> None:
    """Check what training needs on this machine; say what is missing and how to get it.

    Exit status 0: nothing that is needed is missing. 1: something is missing.

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
