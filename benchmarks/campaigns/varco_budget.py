"""VARCO's claim: at equal total bytes, at or above every fixed ratio; at the end, as good as full communication.

    .venv/bin/python benchmarks/campaign.py varco_budget --data FOLDER [--simulated --device cuda --jobs 6]
    .venv/bin/python benchmarks/campaign.py varco_budget --report --readings --plot varco.svg

The paper's setup (arXiv:2406.17611): 3-layer GraphSAGE of width 256, Adam 0.01, 300 epochs, random and METIS parts.
At equal bytes: at a share of the total bytes of a fixed ratio, each run has a best validation epoch so far, and the
test scores of these epochs are compared. At 100 % the ratio's run is finished, and varco's, which sends more in total,
is not. 9 strategies on 6 graphs with 2 partitioners and 5 seeds: 540 trainings. With --every-layer the last layer is
compressed too, as the paper's text says; `none` and full communication are then the same trainings. --readings compares
both: mean scores at shares of full communication's bytes.
"""

import argparse
from math import inf, isnan
from pathlib import Path
from statistics import mean

from campaign import (
    Cut,
    Outcome,
    Trial,
    add_options,
    add_simulated,
    carry_out,
    flags_of,
    half_width,
    spread,
)
from common import show, size

COMMON = "--model sage --norm none --input-dropout --layers 3 --dropout 0.5 --lr 0.01 --epochs 300 --eval-every 5"
# Three blocks on four ranks: each block must be divided, and a row's own features say little about its class.
SBM = "sbm:nodes=8000,edges=24000,classes=3,features=16,blocks=3,p_in=0.9,noise=3,train=0.5,val=0.25"
CASES = {
    Cut("demo", "none"): "",
    Cut("minesweeper", "none"): " --metric roc_auc",
    Cut("squirrel", "row"): "",
    Cut("amazon_photo", "row"): "",
    Cut("tolokers", "none"): " --metric roc_auc",
    Cut(SBM, "none"): "",
}
PARTITIONERS = ("metis", "random")
RATIOS, SLOPES, SHARES = (2, 4, 16), (1, 2, 5, 7), (0.1, 0.25, 0.5, 1.0)
SHOWN = 2  # the slope of `varco-slow`, whose leads are shown one by one
# Not vanilla, which maps rows before sending if they become narrower: the last layer's bytes would differ.
FULL = "fixed -o ratio=1"
EVERY = " -o every_layer=true"
UNCOMPRESSED = ("none", FULL)  # the same with any layers compressed
OF_FULL = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)  # shares of full communication's bytes
Runs = dict[int, Outcome]  # by seed
Done = dict[Cut, dict[str, Runs]]  # by strategy


def fixed(ratio: float) -> str:
    return f"fixed -o ratio={ratio}"


def varco(slope: float) -> str:
    return f"varco -o slope={slope}"


READINGS = [FULL, *(name + every for name in (fixed(16), fixed(4), varco(5), varco(2)) for every in ("", EVERY))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "varco_budget", graphs=[cut.label for cut in CASES])
    add_simulated(parser)
    strategies = ["none", FULL, *map(fixed, RATIOS), *map(varco, SLOPES)]
    parser.add_argument("--hidden", type=int, default=256, help="width of the layers")
    parser.add_argument("--strategies", nargs="+", choices=strategies, metavar="STRATEGY", default=strategies)
    parser.add_argument("--every-layer", action="store_true", help="compress the last layer too, as the paper says")
    parser.add_argument("--readings", action="store_true", help="compare both readings of the last layer")
    parser.add_argument("--plot", type=Path, help="with --readings, picture to write: test score against bytes")
    options = parser.parse_args()
    wanted = options.strategies
    if options.readings:
        wanted = READINGS
    elif options.every_layer:
        wanted = [name if name in UNCOMPRESSED else f"{name}{EVERY}" for name in wanted]
    trials = [
        Trial(
            cut._replace(partitioner=partitioner),
            strategy,
            seed,
            flags_of(options, f"{COMMON} --hidden {options.hidden}{flags}"),
        )
        for seed in range(options.seeds)
        for cut, flags in CASES.items()
        for partitioner in PARTITIONERS
        for strategy in wanted
        if cut.label in options.only
    ]
    carry_out(trials, options, lambda outcomes: (show_readings if options.readings else show_all)(outcomes, options))


def show_all(outcomes: dict[Trial, Outcome], options: argparse.Namespace) -> None:
    done: Done = {}
    for trial, outcome in outcomes.items():
        runs = done.setdefault(trial.cut, {}).setdefault(trial.strategy.removesuffix(EVERY), {})
        runs[trial.seed] = outcome
    counts = {len(runs) for of_cut in done.values() for name, runs in of_cut.items() if name != "none"}
    if not counts:
        return
    seeds = f"{min(counts)} to {max(counts)} seeds" if len(counts) > 1 else f"{max(counts)} seeds"
    show_slopes(done, seeds, markdown=options.markdown)
    show_claim(done, seeds, markdown=options.markdown)
    show_ends(done, seeds, markdown=options.markdown)


def show_readings(outcomes: dict[Trial, Outcome], options: argparse.Namespace) -> None:
    """Show one row per strategy: its mean test score at shares of full communication's bytes."""
    done: Done = {}
    for trial, outcome in outcomes.items():
        done.setdefault(trial.cut, {}).setdefault(trial.strategy, {})[trial.seed] = outcome
    rows = []
    for name in READINGS:
        cells = []
        for share in OF_FULL:
            scores = [
                mean(scores_of(runs[name], share * bytes_of(runs[FULL]))) for runs in done.values() if name in runs
            ]
            known = [score for score in scores if not isnan(score)]
            cells.append(f"{100 * mean(known):.1f}" if len(known) == len(done) else "")
        label = name.removesuffix(EVERY).replace(" -o ", " ")
        layers = "" if name == FULL else "every layer" if name.endswith(EVERY) else "not the last"
        rows.append(("full" if name == FULL else label, layers, *cells))
    title = f"Mean test score over {len(done)} partitions (points of 100) at shares of full communication's bytes; "
    title += "empty: some partition has no evaluation with so few bytes"
    show(title, ["strategy", "compressed", *(f"{share:.0%}" for share in OF_FULL)], rows, markdown=options.markdown)
    if options.plot:
        plot(done, options.plot)


def scores_of(runs: Runs, budget: float = inf) -> list[float]:
    """Return the test score at the best validation epoch, for each seed."""
    return [outcome.best(budget).test for outcome in runs.values()]


def bytes_of(runs: Runs) -> float:
    return mean(outcome.bytes for outcome in runs.values())


def show_slopes(done: Done, seeds: str, *, markdown: bool) -> None:
    """Show one row per slope: its results against all fixed ratios, at shares of their bytes."""
    rows = []
    for slope in SLOPES:
        cells, against = [], rivals(done, slope)
        if not against:
            continue
        for share in SHARES:
            leads = [lead(runs[varco(slope)], base, share * bytes_of(base)) for runs, base in against]
            sure = [gaps for gaps in leads if len(gaps) > 1]
            at_least = sum(mean(gaps) >= 0 for gaps in leads if gaps)
            above = sum(mean(gaps) > half_width(gaps) for gaps in sure)
            below = sum(mean(gaps) < -half_width(gaps) for gaps in sure)
            cells.append(f"{at_least} of {sum(map(bool, leads))} (+{above} -{below})")
        rows.append((f"a={slope}", *cells))
    title = "Number of comparisons in which varco is at or above a fixed ratio, by slope and share of the ratio's "
    title += f"bytes; in brackets: 95 % intervals above 0 and below 0; {seeds}"
    show(title, ["slope", *(f"{share:.0%}" for share in SHARES)], rows, markdown=markdown)


def rivals(done: Done, slope: float) -> list[tuple[dict[str, Runs], Runs]]:
    """Return, per partition with trainings of this slope, all its runs and those of each fixed ratio."""
    names = (FULL, *map(fixed, RATIOS))
    return [(runs, runs[name]) for runs in done.values() if varco(slope) in runs for name in names if name in runs]


def show_claim(done: Done, seeds: str, *, markdown: bool) -> None:
    """Show one row per fixed ratio: its score, and varco's lead at shares of its bytes."""
    rows = []
    for cut, runs in done.items():
        for name in (FULL, *map(fixed, RATIOS)):
            if name not in runs:
                continue
            base = runs[name]
            budget = bytes_of(base)
            leads = [lead(runs.get(varco(SHOWN), {}), base, share * budget) for share in SHARES]
            ratio = "full" if name == FULL else name.split("=")[1]
            cells = [spread(gaps, sign="+") if gaps else "" for gaps in leads]
            about = (f"{cut.label} {cut.partitioner}", ratio, size(budget), spread(scores_of(base)))
            rows.append((*about, *cells, verdict(leads)))
    title = (
        f"Test score of varco with slope {SHOWN} minus fixed (points of 100), at shares of the fixed ratio's bytes, "
    )
    title += f"by seed; ±: 95 % confidence interval; {seeds}. BELOW: an interval below 0"
    heads = [f"{share:.0%}" for share in SHARES]
    show(title, ["graph, parts", "ratio", "bytes", "fixed", *heads, ""], rows, markdown=markdown)


def lead(runs: Runs, base: Runs, budget: float) -> list[float]:
    """Return the lead of each seed's test score over that of `base` at the same bytes, if both have one."""
    gaps = [runs[seed].best(budget).test - base[seed].best(budget).test for seed in runs if seed in base]
    return [gap for gap in gaps if not isnan(gap)]


def verdict(leads: list[list[float]]) -> str:
    """Summarise the leads at all shares of the bytes."""
    known = [gaps for gaps in leads if gaps]
    if any(len(gaps) > 1 and mean(gaps) + half_width(gaps) < 0 for gaps in known):
        return "BELOW"
    return "above" if all(mean(gaps) >= 0 for gaps in known) else "within"


def show_ends(done: Done, seeds: str, *, markdown: bool) -> None:
    """Show two rows per partition: test scores after all epochs, and bytes against full communication."""
    names = {"none": "none", "full": FULL, **{f"ratio {ratio}": fixed(ratio) for ratio in RATIOS}}
    names |= {f"a={slope}": varco(slope) for slope in SLOPES}
    names = {label: name for label, name in names.items() if any(name in runs for runs in done.values())}
    rows = []
    for cut, runs in done.items():
        if FULL not in runs:
            continue
        full = bytes_of(runs[FULL])
        wanted = [runs.get(strategy, {}) for strategy in names.values()]
        rows.append((f"{cut.label} {cut.partitioner}", *(spread(scores_of(each)) if each else "" for each in wanted)))
        shares = [f"{bytes_of(each) / full:.2f}" if each else "" for each in wanted]
        rows.append((f"  of {size(full)}", *shares))
    if not rows:
        return
    title = f"Test score (points of 100) after all epochs, and share of full's bytes; ±: 95 % interval; {seeds}"
    show(title, ["graph, parts", *names], rows, markdown=markdown)


def plot(done: Done, path: Path) -> None:
    """Plot the test score of the best validation epoch so far against bytes so far, mean over seeds."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise SystemExit("the plot needs matplotlib: pip install matplotlib") from None
    lines = {"full": (FULL, "black", "-")}
    colors = {fixed(16): "firebrick", fixed(4): "darkorange", varco(5): "skyblue", varco(2): "navy"}
    for strategy, color in colors.items():
        label = strategy.replace(" -o ", " ")
        lines |= {label: (strategy, color, ":"), f"{label}, every layer": (strategy + EVERY, color, "-")}
    rows = (len(done) + 1) // 2
    figure, axes = pyplot.subplots(rows, 2, figsize=(10, 3 * rows), squeeze=False, layout="constrained")
    for axis, (cut, runs) in zip(axes.flat, done.items(), strict=False):
        for name, (strategy, color, dash) in lines.items():
            if strategy in runs:
                sent = sorted({score.bytes for run in runs[strategy].values() for score in run.trace})
                scores = [100 * mean(scores_of(runs[strategy], budget)) for budget in sent]
                axis.plot([budget / 2**30 for budget in sent], scores, dash, color=color, label=name, linewidth=1.2)
        axis.set(title=f"{cut.label}, {cut.partitioner}", xscale="log", xlabel="halo bytes so far, GiB")
        axis.set_ylabel("test score")
    shown = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"wrote {path}")
