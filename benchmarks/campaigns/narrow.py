"""Halo bytes until a run scores like vanilla: on all rows, with live rows, and with mapped rows where narrower.

    python benchmarks/campaign.py narrow --data FOLDER [--simulated --device cuda --jobs 6] [--only demo] [--seeds 3]

A run is as good as vanilla when its validation score is at most half a point below the best of vanilla with the same
seed. Bytes are those of all ranks until then, the median over seeds. "never": not within the given epochs.
4 ranks on METIS parts, GraphSAGE 3x128 with its defaults. `vanilla`, `mixgcn` and `gnnpipe-hybrid` have no option
`narrow`: the first two always map first. An interrupted call continues from its results file.
"""

import argparse
from collections.abc import Sequence
from math import inf
from statistics import median

from campaign import Cut, Outcome, Trial, add_options, add_simulated, carry_out, flags_of, spread
from common import show, size

PLAIN = ("vanilla", "mixgcn", "gnnpipe-hybrid -o ways=2")  # without an option `narrow`
PUBLISHED = (
    "pipegcn", "pipegcn-gf", "sylvie-s", "sylvie-a", "varco", "fixed", "bns", "adaqp", "sancus", "cd-r",
)  # fmt: skip
STRATEGIES = PLAIN + PUBLISHED
NARROW, ALL_ROWS = " -o narrow=true", " --all-rows"
TOLERANCE = 0.005
COMMON = "--model sage --layers 3 --hidden 128 --eval-every 2"
CASES = {
    Cut("demo", "none"): f"{COMMON} --epochs 60",
    Cut("pubmed", "none"): f"{COMMON} --epochs 100",
    Cut("coauthor_physics", "none"): f"{COMMON} --epochs 100",
    Cut("amazon_photo", "none"): f"{COMMON} --epochs 200",
    Cut("minesweeper", "none"): f"{COMMON} --epochs 200",
    Cut("squirrel", "none"): f"{COMMON} --epochs 100",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "narrow", graphs=[cut.label for cut in CASES], seeds=3)
    add_simulated(parser)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, metavar="NAME", default=list(STRATEGIES))
    options = parser.parse_args()
    cases = {cut: flags_of(options, flags) for cut, flags in CASES.items() if cut.label in options.only}
    wanted = list(dict.fromkeys(["vanilla", *options.strategies]))  # the reference of the others comes first
    trials = [
        trial
        for seed in range(options.seeds)
        for cut, flags in cases.items()
        for name in wanted
        for trial in stages(Trial(cut, name, seed, flags))
    ]
    carry_out(trials, options, lambda done: table(done, wanted, markdown=options.markdown))


def stages(live: Trial) -> list[Trial]:
    """Return the same training on all rows, with live rows and, if it has the option, with narrow rows."""
    narrow = [live._replace(strategy=live.strategy + NARROW)] if live.strategy in PUBLISHED else []
    return [live._replace(flags=live.flags + ALL_ROWS), live, *narrow]


def until(run: Outcome, val: float) -> float:
    """Return the halo bytes until the first evaluation with at least this score."""
    return next((score.bytes for score in run.trace if score.val >= val), inf)


def table(done: dict[Trial, Outcome], strategies: Sequence[str], *, markdown: bool) -> None:
    """Show one row per graph and strategy, from the seeds with all stages."""
    rows = []
    for cut in dict.fromkeys(trial.cut for trial in done):
        for name in strategies:
            runs = [
                [done[stage] for stage in stages(trial)] + [done[trial._replace(strategy="vanilla")]]
                for trial in done
                if (trial.cut, trial.strategy) == (cut, name) and ALL_ROWS not in trial.flags and _whole(trial, done)
            ]
            if runs:
                rows.append((cut.label, name, *cells(runs, narrow=name in PUBLISHED)))
    columns = ["graph", "strategy", "all rows", "live rows", "live, narrow", "in all", "test - vanilla", "seeds"]
    show("Halo bytes to a validation score half a point below vanilla's best", columns, rows, markdown=markdown)


def _whole(trial: Trial, done: dict[Trial, Outcome]) -> bool:
    return all(stage in done for stage in [*stages(trial), trial._replace(strategy="vanilla")])


def cells(runs: Sequence[Sequence[Outcome]], *, narrow: bool) -> tuple[object, ...]:
    """Return the cells of one row. runs: for every seed its stages, and vanilla's run."""
    *steps, exact = zip(*runs, strict=True)
    goals = [run.best().val - TOLERANCE for run in exact]
    spent = [[until(run, goal) for run, goal in zip(step, goals, strict=True)] for step in steps]
    bytes_of = [median(of_seeds) for of_seeds in spent]
    told = [_told(of_seeds) for of_seeds in spent] + ([] if narrow else [""])
    saved = f"{bytes_of[0] / bytes_of[-1]:.2f}x" if 0 < bytes_of[-1] < inf and bytes_of[0] < inf else ""
    away = [own.best().test - run.best().test for own, run in zip(steps[-1], exact, strict=True)]
    return *told, saved, spread(away, sign="+"), len(runs)


def _told(of_seeds: Sequence[float]) -> str:
    """Format the median, and the number of seeds that reached the score, if not all did."""
    reached = sum(spent < inf for spent in of_seeds)
    some = "" if reached == len(of_seeds) else f" ({reached} of {len(of_seeds)} seeds)"
    middle = median(of_seeds)
    return "never" + some * (reached > 0) if middle == inf else size(middle) + some
