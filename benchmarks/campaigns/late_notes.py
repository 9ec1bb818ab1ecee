"""Which runs with late rows print a note, and which suffer: false alarms and misses of train/callbacks.py.

    .venv/bin/python benchmarks/campaign.py late_notes --data FOLDER --simulated [--only cora] [--report]

The command's default GraphSAGE and GCN, 3 ranks, METIS and random parts, 200 epochs, seed 0. A run suffers if its test
score (at the best validation epoch) is more than 2 points below that of `vanilla`, which is exact with any parts and
therefore trained only once. A run has a note if today's rules find a problem in its losses, which the results file
stores: for changed rules, `--report` prints their table and trains nothing.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from campaign import Cut, Outcome, Trial, add_options, add_simulated, carry_out, flags_of
from campaigns.late_halos import GRAPHS, MODELS, TOLERANCE, flags
from common import show

from fullgraph.train.callbacks import EVERY, FIRST, hardly_learns, swings

LATE = ("pipegcn", "cd-r", "sylvie-a")
CUTS = ("random", "metis")
Rule = Callable[[list[float]], str]
RULES: dict[str, Rule] = {
    "hardly fallen": hardly_learns,
    "swings": swings,
    "either, as runs say": lambda losses: hardly_learns(losses) or swings(losses),
}


class Case(NamedTuple):
    """A training with late rows, and its difference from exact training, in points."""

    trial: Trial
    outcome: Outcome
    away: float

    @property
    def suffers(self) -> bool:
        return self.away < -TOLERANCE

    def told(self, rule: Rule) -> bool:
        losses = list(self.outcome.losses)
        return any(rule(losses[:epoch]) for epoch in range(FIRST, len(losses) + 1, EVERY))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "late_notes", graphs=GRAPHS, seeds=1)
    add_simulated(parser)
    options = parser.parse_args()

    def trial(graph: str, partitioner: str, model: str, strategy: str, seed: int) -> Trial:
        return Trial(Cut(graph, "none", partitioner, 3), strategy, seed, flags_of(options, flags(graph, model)))

    exact = {
        (graph, model, seed): trial(graph, "random", model, "vanilla", seed)
        for graph in options.only for seed in range(options.seeds) for model in MODELS
    }  # fmt: skip
    late = {
        trial(graph, partitioner, model, strategy, seed): exact[graph, model, seed]
        for graph, model, seed in exact for partitioner in CUTS for strategy in LATE
    }  # fmt: skip

    def tables(done: dict[Trial, Outcome]) -> None:
        cases = [
            Case(one, done[one], 100 * (done[one].best().test - done[vanilla].best().test))
            for one, vanilla in late.items()
            if one in done and vanilla in done
        ]
        rules(cases, markdown=options.markdown)
        cells(cases, markdown=options.markdown)

    carry_out([*exact.values(), *late], options, tables, losses=True)


def rules(cases: list[Case], *, markdown: bool) -> None:
    """Show one row per rule and partitioner: the runs that suffer, and those with a note."""
    rows = []
    for name, rule in RULES.items():
        for cut in CUTS:
            found = [(case.suffers, case.told(rule)) for case in cases if case.trial.cut.partitioner == cut]
            kinds = ((True, True), (True, False), (False, True), (False, False))
            rows.append((name, cut, *(found.count(kind) for kind in kinds)))
    title = f"{len(cases)} runs with late rows; one suffers if it is more than {TOLERANCE:g} points below vanilla"
    show(
        title, ["rule", "cut", "suffer, told", "suffer, missed", "fine, told", "fine, silent"], rows, markdown=markdown
    )


def cells(cases: list[Case], *, markdown: bool) -> None:
    """Show one row per graph, model and partitioner: points against vanilla."""
    rows = []
    for graph, model, cut in dict.fromkeys(_place(case) for case in cases):
        here = {case.trial.strategy: case for case in cases if _place(case) == (graph, model, cut)}
        rows.append((graph, model, cut, *(_cell(here[name]) if name in here else "" for name in LATE)))
    title = "Points against vanilla; t: the run has a note, !: it suffers"
    show(title, ["graph", "model", "cut", *LATE], rows, markdown=markdown)


def _place(case: Case) -> tuple[str, str, str]:
    return case.trial.cut.graph, case.trial.flags.split()[1], case.trial.cut.partitioner


def _cell(case: Case) -> str:
    told = case.told(RULES["either, as runs say"])
    return f"{case.away:+.1f}{' !' if case.suffers else ''}{' t' if told else ''}"
