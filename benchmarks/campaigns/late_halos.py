"""Does a strategy with its defaults fall far below vanilla, and did the run note that its loss hardly fell?

    python benchmarks/campaign.py late_halos --data FOLDER [--simulated --device cuda --jobs 6] [--only pubmed]

The command's default GraphSAGE and GCN on every graph, with random parts for 3 ranks, so that most rows are halo rows:
200 epochs, test score at the best validation epoch, in points against vanilla with the same seed. 14 graphs, 2 models,
12 strategies and 3 seeds: 1008 trainings.
"""

import argparse
from statistics import mean

from campaign import Cut, Outcome, Trial, add_options, add_simulated, carry_out, flags_of
from common import show

GRAPHS = (
    "amazon_photo", "blogcatalog3_multilabel", "chameleon_directed", "citeseer", "coauthor_cs", "coauthor_physics",
    "cora", "cora_ml", "fb100_amherst41", "minesweeper", "musae_github", "pubmed", "squirrel", "tolokers",
)  # fmt: skip
AUC = ("minesweeper", "tolokers")  # scored by ROC-AUC, as in their paper
MODELS = ("sage", "gcn")
STRATEGIES = (
    "pipegcn", "pipegcn-gf", "sylvie-s", "sylvie-a", "sylvie-a-bounded", "varco", "bns", "adaqp", "sancus", "cd-r",
    "steady",
)  # fmt: skip
TOLERANCE = 2.0  # points below vanilla
TOLD = "hardly fallen"  # in the run's note; late_notes.py examines other notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "late_halos", graphs=GRAPHS, seeds=3)
    add_simulated(parser)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--strategies", nargs="+", metavar="NAME", default=list(STRATEGIES))
    options = parser.parse_args()
    wanted = list(dict.fromkeys(["vanilla", *options.strategies]))
    trials = [
        Trial(Cut(graph, "none", "random", 3), strategy, seed, flags_of(options, flags(graph, model)))
        for seed in range(options.seeds)
        for graph in options.only
        for model in options.models
        for strategy in wanted
    ]

    def tables(done: dict[Trial, Outcome]) -> None:
        for model in options.models:
            runs = {trial: outcome for trial, outcome in done.items() if f"--model {model} " in trial.flags}
            if runs:
                table(model, runs, wanted[1:], markdown=options.markdown)

    carry_out(trials, options, tables)


def flags(graph: str, model: str) -> str:
    """Return the command's defaults; the metric depends on the graph."""
    return f"--model {model} --epochs 200" + (" --metric roc_auc" if graph in AUC else "")


def table(model: str, done: dict[Trial, Outcome], strategies: list[str], *, markdown: bool) -> None:
    """Show one row per graph: vanilla's score, and each strategy's difference."""
    rows, below = [], []
    for cut in dict.fromkeys(trial.cut for trial in done):
        exact = {trial.seed: run for trial, run in done.items() if (trial.cut, trial.strategy) == (cut, "vanilla")}
        if not exact:
            continue
        cells = []
        for name in strategies:
            runs = {trial.seed: run for trial, run in done.items() if (trial.cut, trial.strategy) == (cut, name)}
            cells.append(cell(runs, exact))
        below += [text for text in cells if "BELOW" in text]
        scores = [run.best().test for run in exact.values()]
        rows.append((cut.label, len(scores), f"{100 * mean(scores):.2f}", *cells))
    title = f"{model}: points against vanilla, 3 random parts, mean over seeds. BELOW: more than {TOLERANCE} points "
    title += f"({len(below)} cells, in {sum(' w' in text for text in below)} of them a run printed a note). "
    title += "wN: N runs noted that the loss hardly fell"
    show(title, ["graph", "seeds", "vanilla", *strategies], rows, markdown=markdown)


def cell(runs: dict[int, Outcome], exact: dict[int, Outcome]) -> str:
    """Return the mean difference over common seeds, marked if far below, and the number of runs with a note."""
    both = [seed for seed in runs if seed in exact]
    if not both:
        return ""
    away = 100 * mean(runs[seed].best().test - exact[seed].best().test for seed in both)
    told = sum(any(TOLD in note for note in runs[seed].notes) for seed in both)
    return f"{away:+.1f}{' BELOW' if away < -TOLERANCE else ''}{f' w{told}' if told else ''}"
