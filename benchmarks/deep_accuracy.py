"""What chunks, snapshots and dropped gradients cost in test score: GNNPipe and its hybrid against exact training.

    .venv/bin/python benchmarks/deep_accuracy.py --data FOLDER [--device cuda --jobs 6] [--only pubmed]
    .venv/bin/python benchmarks/deep_accuracy.py --data FOLDER --study techniques|settings|switches [--models resgcn]

16- and 32-layer GCNII and ResGCN+ as 8 ranks would train them: 8 stages (gnnpipe) or 4 ways by 2 stages (hybrid), on
8 METIS parts with 4 chunks each. One process computes what all of them would, to 1e-10 (tests/exact/test_pipeline.py).
Exact training is what graph parallelism computes.
The same settings, epochs and seeds for all, test score at the best validation epoch. 5 ways to train, 4 graphs, 2
models and 2 depths by 5 seeds: 400 trainings. --study: other ways to train, to find out what costs the score: each of
the paper's techniques; chunks, snapshot ages and learning rates; and where the authors' code differs from the paper.
"""

import argparse
import re
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from campaign import Outcome, add_options, complete, spread, trace_of
from common import show

RANKS, TOLERANCE = 8, 0.5
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
# A way to train; after it perhaps another learning rate or number of epochs: "exact at 0.01", "exact for 1000".
NAME = re.compile(r"(?P<way>.+?)(?: at (?P<rate>[\d.]+))?(?: for (?P<epochs>\d+))?")


class Chunks(NamedTuple):
    """A pipeline's chunks. What is not said is as in the paper."""

    ways: int = 1
    of_part: int = 4  # of which the ways that share a slot make one
    shuffle: bool = True
    exact_from: float = 1.0
    history: Mapping[str, Any] = MappingProxyType({})  # `History`'s own options


LAST = {"gradients": "last"}
WAYS: dict[str, Chunks | None] = {
    "exact": None,
    "gnnpipe": Chunks(),
    "hybrid": Chunks(ways=4),
    "gnnpipe exact": Chunks(exact_from=0.8),
    "hybrid exact": Chunks(ways=4, exact_from=0.8),
    "none": Chunks(shuffle=False, history={"freeze": 1, **LAST}),
    "T1": Chunks(history={"freeze": 1, **LAST}),
    "T2": Chunks(shuffle=False, history=LAST),
    "T3": Chunks(shuffle=False, history={"freeze": 1}),
    "T1 T2": Chunks(history=LAST),
    "T1 T3": Chunks(history={"freeze": 1}),
    "T2 T3": Chunks(shuffle=False),
    "8 chunks": Chunks(of_part=1),
    "128 chunks": Chunks(of_part=16),
    "freeze 5": Chunks(history={"freeze": 5}),
    "freeze 50": Chunks(history={"freeze": 50}),
    "gradients none": Chunks(history={"gradients": "none"}),
    "late snapshots": Chunks(history={"late": True}),
    "dropped history": Chunks(history={"dropped": True}),
}
COMPARED = ("exact", "gnnpipe", "hybrid", "gnnpipe exact", "hybrid exact")
STUDIES = {
    "techniques": ("exact", "none", "T1", "T2", "T3", "T1 T2", "T1 T3", "T2 T3", "gnnpipe"),
    "settings": ("exact", "exact at 0.01", "exact at 0.001", "exact for 1000", "gnnpipe", "gnnpipe at 0.01",
                 "gnnpipe at 0.001", "gnnpipe for 1000", "8 chunks", "128 chunks", "freeze 5", "freeze 50"),
    "switches": ("exact", "gnnpipe", "late snapshots", "dropped history", "gradients none", "T1 T2"),
}  # fmt: skip


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


def named(strategy: str) -> re.Match[str]:
    """The parts of a way's name."""
    match = NAME.fullmatch(strategy)
    assert match, strategy
    return match


@cache
def load(data: Path, graph: str) -> Any:
    from fullgraph.data import load

    return load(str(data / f"{graph}.npz"))


def pieces(data: Path, cuts: Path, graph: str, count: int) -> tuple[Any, Any]:
    """The part of every node, and its piece of the part, as a run on 8 ranks cuts them; kept in a file."""
    path = cuts / f"{graph}-{count}.npz"
    if not path.exists():
        from fullgraph.partition import cut_parts, partition, pieces_of

        assignment = partition(load(data, graph), RANKS)
        piece = np.zeros_like(assignment.part)
        for part in cut_parts(load(data, graph), assignment):
            n = len(part.ids)
            inner = part.indices < n
            rows = np.repeat(np.arange(n), np.diff(part.indptr))[inner.numpy()]
            indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
            piece[part.ids.numpy()] = pieces_of(indptr, part.indices[inner].numpy(), count)
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
    from fullgraph.train.config import TrainConfig
    from fullgraph.transport import SingleRank
    from tests.support.layerwise import Layerwise

    torch.set_num_threads(1)
    start = time.perf_counter()
    name = named(trial.strategy)
    graph, chunks = load(data, trial.graph), WAYS[name["way"]]
    spec = MODELS[trial.model](layers=trial.layers, hidden=64, dropout=0.5)
    placement: Placement = Partitioned(sends="input")
    if chunks is not None:
        part, piece = pieces(data, cuts, trial.graph, chunks.of_part)
        slots = torch.from_numpy(part % (RANKS // chunks.ways) * chunks.of_part + piece).long()
        placement = Layerwise(
            sends="input", chunk_of=lambda ids: slots[ids], shuffle=chunks.shuffle, exact_from=chunks.exact_from,
            history=History(**chunks.history),
        )  # fmt: skip
    whole = cut_parts(graph, partition(graph, 1), 0, features="row")
    lr = float(name["rate"]) if name["rate"] else LR.get((trial.graph, trial.model), RATES[trial.model])
    decay = GRAPHS[trial.graph].get("weight_decay", 0.0)
    config = TrainConfig(
        epochs=trial.epochs, lr=lr, weight_decay=decay, eval_every=2, seed=trial.seed, device=device, precompute=False
    )  # fmt: skip
    run = Run(model=spec, strategy=Given(placement=placement), train=config)
    trainer = build_trainer(run, whole, SingleRank())
    trainer.fit([])
    records = [{"bytes": 0, "val": record.val, "test": record.test} for record in trainer.records]
    return Outcome(trial.command, trace_of(records), (), device, round(time.perf_counter() - start, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "deep_accuracy", graphs=GRAPHS)
    parser.add_argument("--models", nargs="+", choices=RATES, metavar="MODEL", default=list(RATES))
    parser.add_argument("--layers", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--strategies", nargs="+", choices=WAYS, metavar="STRATEGY", default=COMPARED)
    parser.add_argument("--study", choices=STUDIES, help="these ways to train in place of --strategies")
    options = parser.parse_args()
    wanted = STUDIES[options.study] if options.study else dict.fromkeys(["exact", *options.strategies])
    counts = {chunks.of_part for name in wanted if (chunks := WAYS[named(name)["way"]])}
    if not options.report:
        for graph in options.only:
            for count in sorted(counts):
                pieces(options.data, options.cuts, graph, count)
    if options.cut_only:
        return
    trials = [
        Trial(graph, model, layers, strategy, seed, int(named(strategy)["epochs"] or epochs(graph, options)))
        for seed in range(options.seeds)
        for layers in sorted(options.layers, reverse=True)  # the longest first
        for strategy in wanted
        for graph in options.only
        for model in options.models
    ]
    work = partial(train, data=options.data, cuts=options.cuts, device=options.device)
    complete(trials, work, options, partial(table, study=options.study, markdown=options.markdown))


def epochs(graph: str, options: argparse.Namespace) -> int:
    asked: int | None = options.epochs
    return asked or GRAPHS[graph]["epochs"]


def table(done: dict[Trial, Outcome], *, study: str | None, markdown: bool) -> None:
    exact_runs = {(*trial[:3], trial.seed): run for trial, run in done.items() if trial.strategy == "exact"}
    rows = []
    for case in dict.fromkeys(trial._replace(seed=0) for trial in sorted(done, key=lambda trial: trial[:3])):
        own = [trial for trial in done if trial._replace(seed=0) == case]
        pairs = [(done[trial], exact_runs.get((*trial[:3], trial.seed))) for trial in own]
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
    title = f"Study of {study}. " if study else ""
    title += "Test score at the best validation epoch, in points of 100, 8 ranks' worth; ±: 95 % confidence interval; "
    title += f"BELOW: more than {TOLERANCE} points under exact training"
    columns = ["graph, model, layers", "", "val", "test", "against exact", "seeds", ""]
    show(title, columns, rows, markdown=markdown)


if __name__ == "__main__":
    main()
