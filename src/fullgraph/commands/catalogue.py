"""Strategies for a reader: what each one costs, its paper, and its options."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fullgraph.axes import STRATEGIES
from fullgraph.named import listed
from fullgraph.values import choices_of, hints_of

PAPERS = {
    "pipegcn": "PipeGCN, arXiv:2203.10428",
    "sylvie": "Sylvie, arXiv:2303.01277",
    "varco": "VARCO, arXiv:2406.17611",
    "fixed": "VARCO, arXiv:2406.17611",
    "bns": "BNS-GCN, arXiv:2203.10983",
    "adaqp": "AdaQP, arXiv:2306.01381",
    "sancus": "SANCUS, VLDB 2022",
    "cd-r": "DistGNN, arXiv:2104.06700",
    "mixgcn": "MixGCN, arXiv:2501.01951",
    "gnnpipe": "GNNPipe, arXiv:2308.10087",
}
EXACT, LATE, LOSSY = "exact", "late", "lossy"
LAYERS, EPOCHS = 3, 200


class Entry(NamedTuple):
    """One strategy, with its default options."""

    name: str
    kind: str
    paper: str
    text: str


def entries() -> Iterator[Entry]:
    for name in STRATEGIES:
        paper = next((text for start, text in PAPERS.items() if name.startswith(start)), "")
        yield Entry(name, kind_of(name), paper, summary(name))


def summary(name: str) -> str:
    """The first clause of a strategy's description."""
    text = " ".join((STRATEGIES[name].__doc__ or "").split())
    return text.split(". ")[0].split("; ")[0].rstrip(".")


def kind_of(name: str) -> str:
    """exact; late: reads rows of earlier steps; lossy: sends rounded rows, or not all. With default options."""
    from fullgraph.placement import Pipeline
    from fullgraph.recipes import wires_of
    from fullgraph.remarks import is_late, is_lossy
    from fullgraph.run import Run, placement_of

    if name in ("auto", "free"):
        return {"auto": EXACT, "free": "any"}[name]  # auto takes exact strategies unless it is told otherwise
    strategy = STRATEGIES.make(name)
    placement = placement_of(replace(Run(parts=2), strategy=strategy))
    wires = [wires_of(strategy, epochs=EPOCHS, layers=LAYERS).at(layer) for layer in range(LAYERS)]
    kinds = [LATE] * (isinstance(placement, Pipeline) or any(map(is_late, wires)))
    kinds += [LOSSY] * (placement.isolated or any(map(is_lossy, wires)))
    return ", ".join(kinds) or EXACT


def options_text(name: str) -> list[str]:
    """One line per option: its default, and its choices."""
    kind, lines = STRATEGIES[name], []
    for option, value in STRATEGIES.options(name).items():
        hint = hints_of(kind).get(option)
        choices = ", ".join(str(choice) or "(empty)" for choice in choices_of(hint)) if hint is not None else ""
        lines.append(f"  {listed({option: value}):<24}{choices}".rstrip())
    return lines
