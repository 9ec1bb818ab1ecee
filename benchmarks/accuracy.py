"""Test scores on real graphs, 2 ranks, mean and standard deviation over seeds, at the best validation epoch.

    .venv/bin/python benchmarks/accuracy.py --data FOLDER [--only cora pubmed] [--hide-test]

Settings are chosen by the validation score; --hide-test hides the test score meanwhile.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from common import ROOT, fresh_folder, show, train


class Case(NamedTuple):
    graph: str
    model: str
    metric: str
    target: float | None  # on the test nodes; None: no target
    flags: str


# Chosen by the validation score of seed 0: for cora from four settings, minesweeper three, blogcatalog3 two; the others
# are first guesses.
CASES = [
    Case("cora", "gcn", "accuracy", 0.810, "--layers 2 --hidden 64 --dropout 0.8 --weight-decay 5e-4 --features row"),
    Case("pubmed", "gcn", "accuracy", 0.785, "--layers 2 --hidden 64 --dropout 0.5 --weight-decay 5e-4 --features row"),
    Case("amazon_photo", "sage", "accuracy", 0.930, "--layers 2 --hidden 128 --dropout 0.5 --features row"),
    Case("coauthor_physics", "sage", "accuracy", 0.965, "--layers 2 --hidden 128 --dropout 0.5 --features row"),
    Case("minesweeper", "sage", "roc_auc", 0.890, "--layers 5 --hidden 64 --dropout 0.2 --norm batch --residual"),
    Case(
        "blogcatalog3_multilabel", "sage", "micro_f1", None, "--layers 2 --hidden 256 --dropout 0.5 --features standard"
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz graphs")
    parser.add_argument("--only", nargs="+", choices=[case.graph for case in CASES])
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strategy", default="vanilla")
    parser.add_argument("--hide-test", action="store_true", help="show validation scores only")
    options = parser.parse_args()
    folder = fresh_folder("accuracy")
    rows = []
    for case in CASES:
        if options.only and case.graph not in options.only:
            continue
        results = []
        for seed in range(options.seeds):
            flags = ["--parts", options.parts, "--strategy", options.strategy, "--model", case.model]
            flags += ["--norm", "none", "--input-dropout", "--metric", case.metric, "--seed", seed]
            graph, out = options.data / f"{case.graph}.npz", folder / f"{case.graph}-{seed}"
            result = train(graph, out, *flags, *case.flags.split())
            assert result["metric"] == case.metric, f"{case.graph}: scored by {result['metric']}, not {case.metric}"
            print(f"{case.graph} seed {seed}: val {result['val']:.4f}", flush=True)
            results.append(result)
        test, val = [r["test"] for r in results], [r["val"] for r in results]
        spread = stdev(test) if len(test) > 1 else 0.0
        verdict = "-" if case.target is None else "met" if mean(test) >= case.target else "MISSED"
        target = "-" if case.target is None else f"{100 * case.target:.1f}"
        figures = (f"{100 * mean(val):.2f}", f"{100 * mean(test):.2f} ± {100 * spread:.2f}")
        if options.hide_test:
            figures, verdict = (figures[0], "hidden"), "-"
        rows.append((case.graph, case.model, case.metric, *figures, target, verdict))
    title = f"{options.strategy} on {options.parts} ranks, {options.seeds} seeds, in points of 100"
    show(title, ["graph", "model", "metric", "val", "test", "target", ""], rows)


if __name__ == "__main__":
    main()
