"""Does the number format change how good a model is? fp32, tf32 and bf16 on five real graphs, five seeds or more.

    PYTHONPATH=src python benchmarks/gpu_precision.py [--data ../shared/data] [--out FOLDER] [--device cpu]

A GCN (or a GraphSAGE) is trained in this process, one rank, on the whole graph: 2 layers of 64, dropout 0.5, Adam at
0.01, weight decay 5e-4. The test accuracy is that of the epoch with the best validation accuracy. All formats have the
same first weights and the same dropout. The aim is a mean within 0.3 points of fp32's; where five seeds do not tell the
difference to 0.12 points (its standard error, seed by seed), more are tried, for small test sets are noisy.
"""

import argparse
import gc
import statistics
import time
from pathlib import Path

from gpu_common import Bench

from fullgraph import nn
from fullgraph.data import Graph, load
from fullgraph.nn import ModelSpec
from fullgraph.partition import cut_parts, partition
from fullgraph.partition.part import Part
from fullgraph.run import Run, build_trainer
from fullgraph.train.config import TrainConfig
from fullgraph.transport import SingleRank

GRAPHS = ("cora", "pubmed", "amazon_photo", "coauthor_cs", "squirrel")
PRECISIONS = ("fp32", "tf32", "bf16")
LIMIT = 0.3  # points
ERROR = 0.12  # points; the standard error of a difference at which no more seeds are tried
SPECS: dict[str, ModelSpec] = {
    "gcn": nn.GCN(layers=2, hidden=64, dropout=0.5, norm="none", input_dropout=True),
    "sage": nn.GraphSAGE(layers=2, hidden=64, dropout=0.5, norm="none", input_dropout=True),
}


def accuracy(part: Part, spec: ModelSpec, config: TrainConfig) -> float:
    """Per cent of the test nodes, at the epoch with the best validation score."""
    trainer = build_trainer(Run(model=spec, train=config), part, SingleRank())
    trainer.fit([])
    score = trainer.best.scores["test"]
    assert score is not None, "no test nodes"
    return 100 * score


class Table:
    """One section a graph."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.bench = Bench("gpu_precision", options.device, options.out)
        self.worst: dict[str, float] = {}

    def run(self) -> None:
        chosen = [name for name in self.options.graphs.split(",") if name]
        self.bench.run({name: self._section(name) for name in chosen}, [])
        for name, points in sorted(self.worst.items(), key=lambda item: -item[1]):
            print(f"{name:28} {points:.2f} points from fp32 at most", flush=True)
        if self.worst:
            verdict = "within" if max(self.worst.values()) <= LIMIT else "NOT within"
            print(f"all {verdict} {LIMIT} points of fp32", flush=True)

    def _section(self, name: str):  # type: ignore[no-untyped-def]
        def section() -> None:
            graph: Graph = load(str(Path(self.options.data) / f"{name}.npz"))
            part = cut_parts(graph, partition(graph, 1, method="contiguous"), 0)
            for model in self.options.models.split(","):
                self._compare(name, part, model)
            gc.collect()

        section.__doc__ = "test accuracy, mean and standard deviation over seeds"
        return section

    def _compare(self, name: str, part: Part, model: str) -> None:
        """Seeds are added until the standard error of the difference from fp32 is small, whatever the difference."""
        found: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
        start, seeds = time.perf_counter(), self.options.seeds
        while len(found["fp32"]) < seeds or (self._error(found) > ERROR and len(found["fp32"]) < self.options.most):
            for precision, scores in found.items():
                config = TrainConfig(
                    epochs=self.options.epochs, eval_every=5, weight_decay=5e-4, device=self.options.device,
                    precision=precision, seed=len(scores),
                )  # fmt: skip
                scores.append(accuracy(part, SPECS[model], config))
        for precision, scores in found.items():
            mean, off = statistics.mean(scores), self._differences(found, precision)
            points, error = statistics.mean(off), standard_error(off)
            self.bench.note(
                f"{name}/{model}/{precision}",
                {"accuracy": scores, "mean": mean, "std": deviation(scores), "points": points, "error": error},
            )
            self.worst[f"{name} {model}"] = max(self.worst.get(f"{name} {model}", 0.0), abs(points))
            mark = "" if abs(points) <= LIMIT else f"  more than {LIMIT} points"
            print(
                f"{name:16} {model:5} {precision} {mean:6.2f} +- {deviation(scores):.2f} over {len(scores)} seeds, "
                f"to fp32 {points:+.2f} +- {error:.2f}{mark}",
                flush=True,
            )
        print(f"{name:16} {model:5} {time.perf_counter() - start:.1f} s", flush=True)

    @staticmethod
    def _differences(found: dict[str, list[float]], precision: str) -> list[float]:
        """Points from fp32, seed by seed."""
        return [one - other for one, other in zip(found[precision], found["fp32"], strict=True)]

    def _error(self, found: dict[str, list[float]]) -> float:
        return max(standard_error(self._differences(found, precision)) for precision in PRECISIONS)


def deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def standard_error(values: list[float]) -> float:
    return deviation(values) / max(1, len(values)) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[1]
    folders = [folder / "shared" / "data" for folder in (root, root.parent)]
    parser.add_argument("--data", default=str(next((f for f in folders if f.is_dir()), folders[-1])))
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--models", default="gcn", help="gcn, sage or both, separated by commas")
    parser.add_argument("--out", default="", help="a folder for JSON; else $OUT")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seeds", type=int, default=5, help="at least")
    parser.add_argument("--most", type=int, default=15, help="seeds, where the difference is not clear before")
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    if options.device == "cpu":
        print("no GPU: tf32 is fp32 here, and bf16 is slow", flush=True)
    Table(options).run()


if __name__ == "__main__":
    main()
