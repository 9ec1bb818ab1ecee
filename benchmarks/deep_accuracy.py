"""What chunks, snapshots and dropped gradients cost in test score: GNNPipe and its hybrid against exact training.

    .venv/bin/python benchmarks/deep_accuracy.py --data FOLDER [--jobs 2] [--device cuda] [--only pubmed] [--ablation]

16- and 32-layer GCNII and ResGCN+ as 8 ranks would train them: 8 stages (gnnpipe) or 4 ways by 2 stages (hybrid), on
8 METIS parts with 4 chunks each. One process computes what all of them would, to 1e-10 (tests/exact/test_pipeline.py).
Exact training is what graph parallelism computes.
The same settings, epochs and seeds for all, test score at the best validation epoch.
"""

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from campaign import spread
from common import ROOT, show

RANKS, PIECES, TOLERANCE = 8, 4, 0.5
# Epochs, weight decay. Where chunks learn more slowly than all nodes at once, 300 epochs are too few for them.
GRAPHS: dict[str, dict[str, Any]] = {
    "pubmed": {"epochs": 300, "weight_decay": 5e-4},
    "amazon_photo": {"epochs": 500},
    "coauthor_physics": {"epochs": 300},
    "squirrel": {"epochs": 500},
}
# Of 0.03 (tried for GCNII on amazon_photo alone), 0.01, 0.003 and 0.001, by the validation score of exact training.
RATES = {"gcnii": 0.01, "resgcn": 0.003}
LR = {("amazon_photo", "gcnii"): 0.03}
STAGES: dict[str, dict[str, Any] | None] = {
    "exact": None,
    "gnnpipe": {},
    "hybrid": {"ways": 4},
    "gnnpipe exact": {"exact_from": 0.8},
    "hybrid exact": {"ways": 4, "exact_from": 0.8},
    "T1": {"freeze": 1, "gradients": "last"},
    "T2": {"shuffle": False, "gradients": "last"},
    "T3": {"shuffle": False, "freeze": 1},
    "T1 T2": {"gradients": "last"},
    "T1 T3": {"freeze": 1},
    "T2 T3": {"shuffle": False},
    "none": {"shuffle": False, "freeze": 1, "gradients": "last"},
}
ABLATION = ("exact", "none", "T1", "T2", "T3", "T1 T2", "T1 T3", "T2 T3", "gnnpipe")


class Trial(NamedTuple):
    graph: str
    model: str
    layers: int
    strategy: str
    seed: int
    epochs: int

    @property
    def name(self) -> str:
        return " ".join(map(str, self))


class Outcome(NamedTuple):
    val: float
    test: float
    epoch: int


@cache
def load(data: Path, graph: str) -> Any:
    from fullgraph.data import load

    return load(str(data / f"{graph}.npz"))


def pieces(data: Path, cuts: Path, graph: str) -> tuple[Any, Any]:
    """The part of every node, and its piece of it, as a run on 8 ranks cuts them; kept in a file."""
    path = cuts / f"{graph}.npz"
    if not path.exists():
        from fullgraph.partition import cut_parts, partition, pieces_of

        assignment = partition(load(data, graph), RANKS)
        piece = np.zeros_like(assignment.part)
        for part in cut_parts(load(data, graph), assignment):
            n = len(part.ids)
            inner = part.indices < n
            rows = np.repeat(np.arange(n), np.diff(part.indptr))[inner.numpy()]
            indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
            piece[part.ids.numpy()] = pieces_of(indptr, part.indices[inner].numpy(), PIECES)
        cuts.mkdir(parents=True, exist_ok=True)
        np.savez(path, part=assignment.part, piece=piece)
    with np.load(path) as held:
        return held["part"], held["piece"]


def train(trial: Trial, data: Path, cuts: Path, device: str) -> Outcome:
    import torch

    from fullgraph.nn import MODELS
    from fullgraph.partition import cut_parts, partition
    from fullgraph.placement import Partitioned, Placement
    from fullgraph.recipes import Given
    from fullgraph.run import Run, build_trainer
    from fullgraph.testing.layerwise import Layerwise
    from fullgraph.train.config import TrainConfig
    from fullgraph.transport import Alone

    torch.set_num_threads(1)
    graph, options = load(data, trial.graph), STAGES[trial.strategy]
    spec = MODELS[trial.model](layers=trial.layers, hidden=64, dropout=0.5)
    placement: Placement = Partitioned(narrow_first=False)
    if options is not None:
        ways = options.get("ways", 1)
        part, piece = pieces(data, cuts, trial.graph)
        chunk = part % (RANKS // ways) * PIECES + piece  # the same slot on all ways is one chunk
        own = {key: value for key, value in options.items() if key != "ways"}
        placement = Layerwise(narrow_first=False, **own, chunk_of=lambda ids: torch.from_numpy(chunk).long()[ids])
    whole = cut_parts(graph, partition(graph, 1), 0, features="row")
    lr = LR.get((trial.graph, trial.model), RATES[trial.model])
    decay = GRAPHS[trial.graph].get("weight_decay", 0.0)
    config = TrainConfig(
        epochs=trial.epochs, lr=lr, weight_decay=decay, eval_every=2, seed=trial.seed, device=device, precompute=False
    )  # fmt: skip
    run = Run(model=spec, strategy=Given(placement=placement), train=config)
    trainer = build_trainer(run, whole, Alone())
    trainer.fit([])
    return Outcome(trainer.best.scores["val"], trainer.best.scores["test"], trainer.best.epoch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = ROOT / "runs" / "deep_accuracy"
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz graphs")
    parser.add_argument("--only", nargs="+", choices=GRAPHS, metavar="GRAPH", default=list(GRAPHS))
    parser.add_argument("--models", nargs="+", choices=RATES, metavar="MODEL", default=list(RATES))
    parser.add_argument("--layers", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--strategies", nargs="+", choices=STAGES, default=["exact", "gnnpipe", "hybrid"])
    parser.add_argument("--ablation", action="store_true", help="T1, T2, T3 in all combinations")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="in place of each graph's own")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--cuts", type=Path, default=runs / "cuts", help="folder of cut graphs; missing ones are cut")
    parser.add_argument("--results", type=Path, default=runs / "results.jsonl", help="file of outcomes, which grows")
    parser.add_argument("--cut-only", action="store_true", help="cut the graphs and stop (to train elsewhere)")
    parser.add_argument("--report", action="store_true", help="show what the results file holds and train nothing")
    options = parser.parse_args()
    if options.cut_only:
        for graph in options.only:
            pieces(options.data, options.cuts, graph)
        return
    wanted = ABLATION if options.ablation else dict.fromkeys(["exact", *options.strategies])
    trials = [
        Trial(graph, model, layers, strategy, seed, options.epochs or GRAPHS[graph]["epochs"])
        for seed in range(options.seeds)
        for layers in sorted(options.layers, reverse=True)
        for strategy in wanted
        for graph in options.only
        for model in options.models
    ]
    known = read(options.results)
    if not options.report:
        known |= run([trial for trial in trials if trial.name not in known], options)
    table(trials, known, options)


def run(trials: Sequence[Trial], options: argparse.Namespace) -> dict[str, Outcome]:
    """Train, longest first, a line of the results file for each."""
    os.environ |= {"OMP_NUM_THREADS": "1"}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Outcome] = {}
    with options.results.open("a") as file, ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        work = partial(train, data=options.data, cuts=options.cuts, device=options.device)
        futures = {pool.submit(work, trial): trial for trial in trials}
        for future in as_completed(futures):
            name, outcome = futures[future].name, future.result()
            done[name] = outcome
            file.write(json.dumps({"name": name, **outcome._asdict()}) + "\n")
            file.flush()
            print(f"{len(done)}/{len(trials)} {name}: val {outcome.val:.4f} test {outcome.test:.4f}", flush=True)
    return done


def read(path: Path) -> dict[str, Outcome]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {line.pop("name"): Outcome(**line) for line in lines}


def table(trials: Sequence[Trial], known: dict[str, Outcome], options: argparse.Namespace) -> None:
    rows = []
    for case in dict.fromkeys(trial._replace(seed=0) for trial in sorted(trials)):
        seeds = [case._replace(seed=seed) for seed in range(options.seeds)]
        pairs = [(known.get(t.name), known.get(t._replace(strategy="exact").name)) for t in seeds]
        both = [(own, exact) for own, exact in pairs if own and exact]
        if both:
            away = [own.test - exact.test for own, exact in both]
            rows.append(
                (
                    f"{case.graph} {case.model} {case.layers}",
                    case.strategy,
                    spread([own.val for own, _ in both]),
                    spread([own.test for own, _ in both]),
                    "" if case.strategy == "exact" else spread(away, sign="+"),
                    len(both),
                    "BELOW" if 100 * mean(away) < -TOLERANCE else "",
                )
            )
    title = f"Accuracy in points of 100, 8 ranks' worth; BELOW: more than {TOLERANCE} points under exact training"
    show(title, ["graph, model, layers", "", "val", "test", "against exact", "seeds", ""], rows)


if __name__ == "__main__":
    main()
