"""The built-in graph on two ranks with four strategies: one table, and one page.

make demo
"""

from common import ROOT, fresh_folder, fullgraph, seconds, show, size, train

STRATEGIES = ("vanilla", "pipegcn", "sylvie-a", "varco")
RANKS = (2,)
EPOCHS = 60


def main() -> None:
    folder = fresh_folder("demo")
    rows = []
    for strategy in STRATEGIES:
        for ranks in RANKS:
            out = folder / f"{strategy}-{ranks}"
            print(f"training demo with {strategy} on {ranks} rank{'s' * (ranks > 1)} ...", flush=True)
            result = train("demo", out, "--parts", ranks, "--strategy", strategy, "--model", "sage", "--epochs", EPOCHS)
            rows.append(
                (
                    strategy,
                    ranks,
                    f"{100 * result['test']:.2f} %",
                    seconds(result["epoch_s"]),
                    seconds(result["wait_s"]),
                    size(result["bytes_total"]),
                    out.relative_to(ROOT),
                )
            )
    columns = ["strategy", "ranks", "test accuracy", "epoch", "exposed wait", "total bytes", "run folder"]
    show(f"demo, GraphSAGE 3x128, {EPOCHS} epochs", columns, rows)
    page = folder / "report.html"
    fullgraph("report", *(folder / f"{strategy}-{ranks}" for strategy in STRATEGIES for ranks in RANKS), "--out", page)
    print(f"comparison of the runs: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
