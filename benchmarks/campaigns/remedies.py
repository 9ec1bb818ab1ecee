"""What does each remedy for late halos bring, alone and together, where late halos cost most?

    python benchmarks/campaign.py remedies --data FOLDER [--simulated] [--only cora]

The command's default GCN with random parts for 3 ranks, 200 epochs: scores at the best validation epoch. Options are
chosen by validation scores. `late_halos` trains the chosen recipe, `steady`, on all graphs.
"""

import argparse
from statistics import mean

from campaign import Cut, Outcome, Trial, add_options, add_simulated, carry_out, flags_of
from campaigns.late_halos import flags
from common import show

GRAPHS = ("fb100_amherst41", "minesweeper", "cora", "amazon_photo")
BITS = "free -o schedule={} -o codec=lowbit -o bits={} -o exact_from={}"
REMEDIES = (
    "vanilla -o cover=false",
    "pipegcn",
    "pipegcn -o exact_from=0.9",
    "pipegcn -o smooth=f -o extrapolate=true",
    "pipegcn -o smooth=gf -o extrapolate=true",
    "free -o schedule=sync -o codec=full -o most=0.25",
    BITS.format("sync", 2, 0.9),
    BITS.format("sync", 4, 0.95),
    BITS.format("steady -o drift=0.05", 2, 0.9),
    BITS.format("steady -o drift=0.02", 4, 0.95),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "remedies", graphs=GRAPHS, seeds=1)
    add_simulated(parser)
    options = parser.parse_args()
    trials = [
        Trial(Cut(graph, "none", "random", 3), strategy, seed, flags_of(options, flags(graph, "gcn")))
        for seed in range(options.seeds)
        for graph in options.only
        for strategy in REMEDIES
    ]

    def table(done: dict[Trial, Outcome]) -> None:
        rows = []
        for name in REMEDIES:
            cells = []
            for graph in options.only:
                runs = [run for trial, run in done.items() if (trial.cut.graph, trial.strategy) == (graph, name)]
                best = [run.best() for run in runs]
                cells.append(
                    f"{100 * mean(b.val for b in best):.1f} / {100 * mean(b.test for b in best):.1f}" if best else ""
                )
            rows.append((name, *cells))
        show("validation / test score, GCN, 3 random parts", ["", *options.only], rows, markdown=options.markdown)

    carry_out(trials, options, table)


if __name__ == "__main__":
    main()
