"""Bytes and test score of every strategy that sends a layer's input, and with `-o narrow=true`.

    .venv/bin/python benchmarks/narrow.py --data FOLDER [--simulated --device cuda --jobs 6] [--only demo]

4 ranks on METIS parts, 3-layer GraphSAGE, the same epochs and seeds for all, at the best validation epoch; beside them
`vanilla`, which maps first in any case. A call cut short goes on where it stopped.
"""

import argparse
from collections.abc import Sequence
from statistics import mean

from campaign import Cut, Outcome, Trial, add_options, add_simulated, carry_out, flags_of, spread
from common import show, size

STRATEGIES = (
    "pipegcn",
    "pipegcn-gf",
    "sylvie-s",
    "sylvie-a",
    "varco",
    "fixed",
    "bns",
    "adaqp",
    "sancus",
    "cd-r",
)
COMMON = "--model sage --norm none --input-dropout --layers 3 --hidden 128 --dropout 0.5 --lr 0.01 --eval-every 5"
CASES = {
    Cut("demo", "none"): f"{COMMON} --epochs 60",
    Cut("cora_ml", "row"): f"{COMMON} --weight-decay 5e-4 --epochs 100",
    Cut("amazon_photo", "row"): f"{COMMON} --epochs 300",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "narrow", graphs=[cut.label for cut in CASES])
    add_simulated(parser)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, metavar="NAME", default=list(STRATEGIES))
    options = parser.parse_args()
    cases = {cut: flags_of(options, flags) for cut, flags in CASES.items() if cut.label in options.only}
    wanted = ["vanilla", *(f"{name}{narrow}" for name in options.strategies for narrow in ("", " -o narrow=true"))]
    seeds = range(options.seeds)
    trials = [Trial(cut, name, seed, cases[cut]) for seed in seeds for cut in cases for name in wanted]

    def tables(done: dict[Trial, Outcome]) -> None:
        for cut, flags in cases.items():
            title = f"{cut.label}: 4 ranks, METIS, {flags}; ±: 95 % confidence interval"
            runs = {trial: outcome for trial, outcome in done.items() if trial.cut == cut}
            table(title, runs, options.strategies, markdown=options.markdown)

    carry_out(trials, options, tables)


def table(title: str, done: dict[Trial, Outcome], strategies: Sequence[str], *, markdown: bool) -> None:
    """One graph: a strategy a row, both orders beside one another."""

    def outcomes(name: str) -> list[Outcome]:
        return [outcome for trial, outcome in done.items() if trial.strategy == name]

    rows = []
    for name in ("vanilla", *strategies):
        wide, narrow = outcomes(name), outcomes(f"{name} -o narrow=true")
        if not wide or (not narrow and name != "vanilla"):
            continue
        test, less = ([own.best().test for own in each] for each in (wide, narrow))
        sent, fewer = (mean(own.bytes for own in each) if each else 0 for each in (wide, narrow))
        cells = (spread(less), size(fewer), f"{fewer / sent:.2f}") if narrow else ("", "", "")
        rows.append((name, spread(test), size(sent), *cells, len(wide)))
    columns = ["strategy", "test", "halo bytes in all", "narrow: test", "bytes", "of the other", "seeds"]
    show(title, columns, rows, markdown=markdown)


if __name__ == "__main__":
    main()
