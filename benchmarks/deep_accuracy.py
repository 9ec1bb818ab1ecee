"""What chunks, snapshots and dropped gradients cost in test score: GNNPipe and its hybrid against exact training.

    .venv/bin/python benchmarks/deep_accuracy.py --data FOLDER [--device cuda --jobs 6] [--only pubmed] [--ablation]

16- and 32-layer GCNII and ResGCN+ as 8 ranks would train them: 8 stages (gnnpipe) or 4 ways by 2 stages (hybrid), on
8 METIS parts with 4 chunks each. One process computes what all of them would, to 1e-10 (tests/exact/test_pipeline.py).
Exact training is what graph parallelism computes.
The same settings, epochs and seeds for all, test score at the best validation epoch. 5 ways to train, 4 graphs, 2
models and 2 depths by 5 seeds: 400 trainings. --ablation: 9 ways, 720.
"""

import argparse
import time
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from campaign import Outcome, add_options, complete, spread, trace_of
from common import show

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
# The number of ways, and options of `gnnpipe`. None: no chunks.
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
COMPARED = ("exact", "gnnpipe", "hybrid", "gnnpipe exact", "hybrid exact")
ABLATION = ("exact", "none", "T1", "T2", "T3", "T1 T2", "T1 T3", "T2 T3", "gnnpipe")


class Trial(NamedTuple):
    graph: str
    model: str
    layers: int
    strategy: str
    seed: int
    epochs: int

    @property
    def command(self) -> str:
        return " ".join(map(str, self))


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
    from fullgraph.placement import History, Partitioned, Placement
    from fullgraph.recipes import Given
    from fullgraph.run import Run, build_trainer
    from fullgraph.testing.layerwise import Layerwise
    from fullgraph.train.config import TrainConfig
    from fullgraph.transport import Alone

    torch.set_num_threads(1)
    start = time.perf_counter()
    graph, options = load(data, trial.graph), STAGES[trial.strategy]
    spec = MODELS[trial.model](layers=trial.layers, hidden=64, dropout=0.5)
    placement: Placement = Partitioned(narrow_first=False)
    if options is not None:
        ways = options.get("ways", 1)
        part, piece = pieces(data, cuts, trial.graph)
        chunk = part % (RANKS // ways) * PIECES + piece  # the same slot on all ways is one chunk
        history = History(**{key: options[key] for key in History._fields if key in options})
        others = {key: value for key, value in options.items() if key not in (*History._fields, "ways")}
        slots = torch.from_numpy(chunk).long()
        placement = Layerwise(narrow_first=False, history=history, chunk_of=lambda ids: slots[ids], **others)
    whole = cut_parts(graph, partition(graph, 1), 0, features="row")
    lr = LR.get((trial.graph, trial.model), RATES[trial.model])
    decay = GRAPHS[trial.graph].get("weight_decay", 0.0)
    config = TrainConfig(
        epochs=trial.epochs, lr=lr, weight_decay=decay, eval_every=2, seed=trial.seed, device=device, precompute=False
    )  # fmt: skip
    run = Run(model=spec, strategy=Given(placement=placement), train=config)
    trainer = build_trainer(run, whole, Alone())
    trainer.fit([])
    records = [{"bytes": 0, "val": record.val, "test": record.test} for record in trainer.records]
    return Outcome(trial.command, trace_of(records), (), device, round(time.perf_counter() - start, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "deep_accuracy", graphs=GRAPHS)
    parser.add_argument("--models", nargs="+", choices=RATES, metavar="MODEL", default=list(RATES))
    parser.add_argument("--layers", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--strategies", nargs="+", choices=STAGES, metavar="STRATEGY", default=COMPARED)
    parser.add_argument("--ablation", action="store_true", help="T1, T2, T3 in all combinations")
    options = parser.parse_args()
    if not options.report:
        for graph in options.only:
            pieces(options.data, options.cuts, graph)
    if options.cut_only:
        return
    wanted = ABLATION if options.ablation else dict.fromkeys(["exact", *options.strategies])
    trials = [
        Trial(graph, model, layers, strategy, seed, options.epochs or GRAPHS[graph]["epochs"])
        for seed in range(options.seeds)
        for layers in sorted(options.layers, reverse=True)  # the longest first
        for strategy in wanted
        for graph in options.only
        for model in options.models
    ]
    work = partial(train, data=options.data, cuts=options.cuts, device=options.device)
    complete(trials, work, options, partial(table, markdown=options.markdown))


def table(done: dict[Trial, Outcome], *, markdown: bool) -> None:
    rows = []
    for case in dict.fromkeys(trial._replace(seed=0) for trial in sorted(done)):
        own = [trial for trial in done if trial._replace(seed=0) == case]
        pairs = [(done[trial], done.get(trial._replace(strategy="exact"))) for trial in own]
        both = [(mixed.best(), exact.best()) for mixed, exact in pairs if exact]
        if both:
            away = [mixed.test - exact.test for mixed, exact in both]
            rows.append(
                (
                    f"{case.graph} {case.model} {case.layers}",
                    case.strategy,
                    spread([mixed.val for mixed, _ in both]),
                    spread([mixed.test for mixed, _ in both]),
                    "" if case.strategy == "exact" else spread(away, sign="+"),
                    len(both),
                    "BELOW" if 100 * mean(away) < -TOLERANCE else "",
                )
            )
    title = "Test score at the best validation epoch, in points of 100, 8 ranks' worth; ±: 95 % confidence interval; "
    title += f"BELOW: more than {TOLERANCE} points under exact training"
    columns = ["graph, model, layers", "", "val", "test", "against exact", "seeds", ""]
    show(title, columns, rows, markdown=markdown)


if __name__ == "__main__":
    main()
