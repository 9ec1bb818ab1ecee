"""The built-in graph on two ranks with four strategies: one table, and one page.

make demo
"""

from common import ROOT, fresh_folder, fullgraph, seconds, show, size, train

STRATEGIES = ("vanilla", "pipegcn", "sylvie-a", "varco")
RANKS, EPOCHS = 2, 60


def main() -> None:
    folder = fresh_folder("demo")
    rows = []
    for strategy in STRATEGIES:
        out = folder / f"{strategy}-{RANKS}"
        print(f"training demo with {strategy} on {RANKS} ranks ...", flush=True)
        result = train("demo", out, "--parts", RANKS, "--strategy", strategy, "--model", "sage", "--epochs", EPOCHS)
        times = (seconds(result["epoch_s"]), seconds(result["wait_s"]))
        total = size(result["bytes_total"])
        rows.append((strategy, RANKS, f"{100 * result['test']:.2f} %", *times, total, out.relative_to(ROOT)))
    columns = ["strategy", "ranks", "test accuracy", "epoch", "exposed wait", "total bytes", "run folder"]
    show(f"demo, GraphSAGE 3x128, {EPOCHS} epochs", columns, rows)
    page = folder / "report.html"
    fullgraph("report", *(folder / f"{strategy}-{RANKS}" for strategy in STRATEGIES), "--out", page)
    print(f"comparison of the runs: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
