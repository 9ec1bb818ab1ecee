"""Scores on typed graphs: exact training with each model, and every strategy's halos against it.

    python benchmarks/campaign.py typed_accuracy --data FOLDER --simulated [--model hgt] [--strategies vanilla]

3 ranks on METIS parts, 60 epochs, 2 layers, the same settings and seeds for all, scores at the best validation epoch.
One call has one model: 11 strategies on 3 graphs with 5 seeds are 165 trainings.
"""

import argparse

from campaign import Cut, add_options, add_simulated
from campaigns.wire_accuracy import carry_out_against_vanilla

COMMON = "--layers 2 --epochs 60 --eval-every 5"
CASES = {
    Cut("dblp", "none", parts=3): f"{COMMON} --hidden 64",
    Cut("imdb_multilabel", "none", parts=3): f"{COMMON} --hidden 64",
    Cut("aifb", "none", parts=3): f"{COMMON} --hidden 16",
}
OPTIONS = {"rgcn": {"aifb": "--bases 30"}}  # as in the paper of R-GCN
STRATEGIES = (
    "vanilla", "pipegcn", "pipegcn-f", "pipegcn-g", "pipegcn-gf", "sylvie-s", "sylvie-a", "varco", "adaqp", "sancus",
    "cd-r",
)  # fmt: skip
TOLERANCE = 1.0  # points below vanilla


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "typed_accuracy", graphs=[cut.label for cut in CASES])
    add_simulated(parser)
    parser.add_argument("--model", choices=["rgcn", "hetero-sage", "rgat", "hgt"], default="rgcn")
    parser.add_argument("--strategies", nargs="+", metavar="NAME", default=list(STRATEGIES))
    options = parser.parse_args()
    more = OPTIONS.get(options.model, {})
    cases = {cut: f"--model {options.model} {flags} {more.get(cut.label, '')}".strip() for cut, flags in CASES.items()}
    carry_out_against_vanilla(cases, options, TOLERANCE)
