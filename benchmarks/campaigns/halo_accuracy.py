"""Test score of boundary sampling, bits by variance, skipped broadcasts and halos in turns, against exact training.

    python benchmarks/campaign.py halo_accuracy --data FOLDER [--simulated --device cuda --jobs 6] [--only pubmed]

`bns`, `adaqp`, `sancus` and `cd-r` with the settings of their papers: 4 ranks on METIS parts, 3-layer GraphSAGE, the
same epochs and seeds for all, scores at the best validation epoch. 5 strategies, 4 graphs, 5 seeds: 100 trainings.
"""

import argparse

from campaign import Cut, add_options, add_simulated
from campaigns.wire_accuracy import carry_out_against_vanilla

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
    add_options(parser, "halo_accuracy", graphs=[cut.label for cut in CASES])
    add_simulated(parser)
    parser.add_argument("--strategies", nargs="+", metavar="NAME", default=list(STRATEGIES))
    carry_out_against_vanilla(CASES, parser.parse_args())
