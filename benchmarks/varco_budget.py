"""VARCO's claim: at equal total bytes, at or above every fixed ratio; in the end, as good as full communication.

    .venv/bin/python benchmarks/varco_budget.py --data FOLDER [--jobs 4] [--only demo] [--plot varco.html]

The paper's setup (arXiv:2406.17611): 3-layer GraphSAGE of width 256, Adam 0.01, 300 epochs, random and METIS parts.
At equal bytes: with a share of all the bytes that a fixed ratio sends, each has a best validation epoch so far, and its
test scores are compared. With all of a ratio's bytes its run is over, and varco's, which sends more in the end, is not.
"""

import argparse
from math import inf
from pathlib import Path
from statistics import mean

from campaign import Cut, Outcome, Trial, add_options, add_simulated, carry_out, flags_of, spread
from common import ROOT, show, size

EPOCHS = 300
COMMON = f"--model sage --norm none --input-dropout --layers 3 --dropout 0.5 --lr 0.01 --epochs {EPOCHS} --eval-every 5"
GRAPHS = {"demo": "none", "minesweeper": "none", "amazon_photo": "row"}  # and how features are scaled
FLAGS = {"minesweeper": " --metric roc_auc"}
PARTITIONERS = ("metis", "random")
RATIOS, SLOPES, SHARES = (2, 4, 16), (2, 3, 4, 5, 6, 7), (0.1, 0.25, 0.5, 1.0)
# Not vanilla, which maps rows before they are sent where that makes them narrower: the last layer's bytes would differ.
FULL = "fixed -o ratio=1"
TOLERANCE = 0.5  # points: less is not told apart from chance by a few seeds
Done = dict[tuple[str, str, str], list[Outcome]]  # graph, partitioner, strategy -> an outcome a seed


def fixed(ratio: float) -> str:
    return f"fixed -o ratio={ratio}"


def varco(slope: float) -> str:
    return f"varco -o slope={slope}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "varco_budget", graphs=GRAPHS)
    add_simulated(parser)
    strategies = ["none", FULL, *map(fixed, RATIOS), *map(varco, SLOPES)]
    parser.add_argument("--hidden", type=int, default=256, help="width of the layers")
    parser.add_argument("--strategies", nargs="+", choices=strategies, metavar="STRATEGY", default=strategies)
    parser.add_argument("--plot", type=Path, default=ROOT / "runs" / "varco_budget" / "plot.html", help="file to write")
    options = parser.parse_args()
    trials = [
        Trial(
            Cut(graph, GRAPHS[graph], partitioner),
            strategy,
            seed,
            flags_of(options, f"{COMMON} --hidden {options.hidden}{FLAGS.get(graph, '')}"),
        )
        for seed in range(options.seeds)  # outermost: a call cut short leaves whole comparisons
        for graph in options.only
        for partitioner in PARTITIONERS
        for strategy in options.strategies
    ]
    carry_out(trials, options, lambda outcomes: show_all(outcomes, options))


def show_all(outcomes: dict[Trial, Outcome], options: argparse.Namespace) -> None:
    done: Done = {}
    for trial, outcome in outcomes.items():
        done.setdefault((trial.cut.graph, trial.cut.partitioner, trial.strategy), []).append(outcome)
    cuts = list(dict.fromkeys(key[:2] for key in done))
    show_claim(cuts, done)
    show_ends(cuts, done)
    plot(cuts, done, options.plot)


def scores_of(run: list[Outcome], budget: float = inf) -> list[float]:
    """An outcome's test score at its best validation epoch, for each seed."""
    return [outcome.best(budget).test for outcome in run]


def show_claim(cuts: list[tuple[str, str]], done: Done) -> None:
    """A row a fixed ratio: its score, varco's lead with shares of its bytes, and by slope with all of them."""
    rows, table = [], []
    for cut in cuts:
        for name in (FULL, *map(fixed, RATIOS)):
            base = done.get((*cut, name))
            if not base:
                continue
            budget = base[0].bytes
            gaps = [lead(done.get((*cut, varco(5)), []), base, share * budget) for share in SHARES]
            gaps += [lead(done.get((*cut, varco(slope)), []), base, budget) for slope in SLOPES if slope != 5]
            table.append(gaps)
            cells = ["" if gap is None else f"{gap:+.2f}" for gap in gaps]
            ratio = "full" if name == FULL else name.split("=")[1]
            rows.append((" ".join(cut), ratio, size(budget), spread(scores_of(base)), *cells, verdict(gaps[:4])))
    columns = [[gap for gap in column if gap is not None] for column in zip(*table, strict=True)]
    counts = [f"{sum(gap >= 0 for gap in column)}/{len(column)}" for column in columns]
    rows.append(("at or above", "", "", "", *counts, ""))
    heads = [f"a=5, {share:.0%}" for share in SHARES] + [f"a={slope}" for slope in SLOPES if slope != 5]
    title = f"varco - fixed in test score (points of 100) with shares of the fixed ratio's bytes; {seeds_of(done)}"
    show(title, ["graph, parts", "ratio", "bytes", "fixed", *heads, "a=5"], rows)


def lead(run: list[Outcome], base: list[Outcome], budget: float) -> float | None:
    return 100 * (mean(scores_of(run, budget)) - mean(scores_of(base, budget))) if run else None


def verdict(gaps: list[float | None]) -> str:
    worst = min((gap for gap in gaps if gap is not None), default=0.0)
    return "above" if worst >= 0 else "BELOW" if worst < -TOLERANCE else f"below by < {TOLERANCE}"


def show_ends(cuts: list[tuple[str, str]], done: Done) -> None:
    """Two rows a cut: test scores of all epochs, and bytes against full communication."""
    names = {"none": "none", "full": FULL, **{f"ratio {ratio}": fixed(ratio) for ratio in RATIOS}}
    names |= {f"a={slope}": varco(slope) for slope in SLOPES}
    rows = []
    for cut in cuts:
        full = done.get((*cut, FULL))
        if not full:
            continue
        runs = [done.get((*cut, strategy), []) for strategy in names.values()]
        rows.append((" ".join(cut), *(f"{100 * mean(scores_of(run)):.2f}" if run else "" for run in runs)))
        shares = [f"{run[0].bytes / full[0].bytes:.2f}" if run else "" for run in runs]
        rows.append((f"  of {size(full[0].bytes)}", *shares))
    show(
        f"Test score (points of 100) after {EPOCHS} epochs, and share of full's bytes; {seeds_of(done)}",
        ["graph, parts", *names],
        rows,
    )


def seeds_of(done: Done) -> str:
    counts = sorted({len(run) for run in done.values()})
    return f"seeds: {' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))}" if counts else "no runs"


def plot(cuts: list[tuple[str, str]], done: Done, path: Path) -> None:
    """Test score of the best validation epoch so far against bytes so far, mean over seeds."""
    try:
        from plotly.colors import sample_colorscale
        from plotly.graph_objects import Scatter
        from plotly.subplots import make_subplots
    except ImportError:
        raise SystemExit("the plot needs plotly: pip install plotly") from None
    lines = {"full": (FULL, "black", "solid")}
    for ratio, dash in zip(RATIOS, ("solid", "dash", "dot"), strict=True):
        lines[f"ratio {ratio}"] = (fixed(ratio), "firebrick", dash)
    blues = sample_colorscale("Blues", [0.4 + 0.1 * step for step in range(len(SLOPES))])
    for slope, blue in zip(SLOPES, blues, strict=True):
        lines[f"varco a={slope}"] = (varco(slope), blue, "solid")
    num_rows = (len(cuts) + 1) // 2
    figure = make_subplots(num_rows, 2, subplot_titles=[", ".join(cut) for cut in cuts])
    for index, cut in enumerate(cuts):
        place = {"row": index // 2 + 1, "col": index % 2 + 1}
        for name, (strategy, color, dash) in lines.items():
            run = done.get((*cut, strategy))
            if run:
                sent = [score.bytes for score in run[0].trace]
                scores = [100 * mean(scores_of(run, budget)) for budget in sent]
                look = {"mode": "lines", "line": {"color": color, "dash": dash}}
                line = Scatter(x=sent, y=scores, name=name, legendgroup=name, showlegend=index == 0, **look)
                figure.add_trace(line, **place)
        alone = done.get((*cut, "none"))
        if alone:  # sends nothing: a level to compare with
            figure.add_hline(100 * mean(scores_of(alone)), line={"color": "gray", "dash": "dot"}, **place)
    figure.update_xaxes(title="halo bytes so far", exponentformat="SI")
    figure.update_yaxes(title="test score")
    title = "Test score at the best validation epoch so far, mean over seeds; dotted grey: no communication"
    figure.update_layout(height=420 * num_rows + 100, template="plotly_white", title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
