"""Test score of boundary sampling, bits by variance, skipped broadcasts and halos in turns, against exact training.

    .venv/bin/python benchmarks/halo_accuracy.py --data FOLDER [--jobs 2] [--only pubmed] [--seeds 3] [--report]

`bns`, `adaqp`, `sancus` and `cd-r` at the settings of their papers: 4 ranks on METIS parts, 3-layer GraphSAGE, the same
epochs and seeds for all, at the best validation epoch. A call cut short goes on where it stopped.
"""

import argparse

from campaign import Cut, Trial, add_options, carry_out
from wire_accuracy import compare

COMMON = "--model sage --norm none --input-dropout --layers 3 --hidden 64 --dropout 0.5 --lr 0.01 --eval-every 5"
CASES = {
    Cut("pubmed", "row"): f"{COMMON} --weight-decay 5e-4 --epochs 100",
    Cut("cora_ml", "row"): f"{COMMON} --weight-decay 5e-4 --epochs 100",
    Cut("amazon_photo", "row"): f"{COMMON} --epochs 200",
    Cut("minesweeper", "none"): f"{COMMON} --epochs 200",
}
STRATEGIES = (
    "vanilla",
    "bns -o p=0.1",  # the paper's own choice
    "adaqp -o lam=0.5 -o period=50",  # the authors' configurations
    "sancus -o bound=0.3 -o longest=10",  # dropout moves rows by about a fifth from step to step
    "cd-r -o r=5",  # the paper's cd-5
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "halo_accuracy", graphs=[cut.graph for cut in CASES], seeds=3)
    parser.add_argument("--strategies", nargs="+", metavar="NAME", default=list(STRATEGIES))
    options = parser.parse_args()
    wanted = list(dict.fromkeys(["vanilla", *options.strategies]))
    cuts, seeds = [cut for cut in CASES if cut.graph in options.only], range(options.seeds)
    trials = [Trial(cut, name, seed, CASES[cut]) for seed in seeds for cut in cuts for name in wanted]
    compare(carry_out(trials, options), {cut: CASES[cut] for cut in cuts}, wanted, options.seeds)


if __name__ == "__main__":
    main()
