"""Are the defaults good? GraphSAGE and GCN with the defaults and other settings, compared with a plain PyG script.

    python benchmarks/campaign.py defaults --data FOLDER [--device cuda] [--jobs 4] [--only cora tolokers] [--report]

Every training is one rank in one process: 3 layers of 128, dropout 0.5, Adam, 200 epochs, scored every 10; the score is
that of the epoch with the best validation score. PyG's script has the same layers, width, dropout, optimizer and
epochs, unscaled features without dropout, and no norm. "kept" means that ours does not drop inputs either. Settings are
compared by validation scores; test scores are shown only for the default and PyG. Outcomes are lines of a file: an
interrupted call continues there.
"""

import argparse
import itertools
import time
from functools import cache, partial
from math import inf
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from campaign import Outcome, Score, complete
from common import ROOT, show

MODELS = ("sage", "gcn")
NORMS, FEATURES, RATES = ("none", "layer", "batch"), ("none", "row", "standard"), (0.01, 0.003)
SETTINGS = [f"{norm} {features} {lr}" for norm, features, lr in itertools.product(NORMS, FEATURES, RATES)]
SETTINGS += [f"{norm} none {lr} kept" for norm, lr in (("layer", 0.01), ("layer", 0.003), ("none", 0.01))]
PYG, EPOCHS, EVERY, LAYERS, HIDDEN, DROPOUT = "pyg", 200, 10, 3, 128, 0.5
AUC = ("minesweeper", "tolokers")  # scored by ROC-AUC, as in their paper


class Trial(NamedTuple):
    graph: str
    model: str
    setting: str
    seed: int

    @property
    def command(self) -> str:
        return f"{self.graph} {self.model} {self.setting} seed {self.seed}"


@cache
def graph_of(data: Path, name: str) -> Any:
    from fullgraph.data import load

    return load(str(data / f"{name}.npz"))


def work(trial: Trial, data: Path, device: str) -> Outcome:
    """One training of ours or of PyG's script."""
    graph, start = graph_of(data, trial.graph), time.perf_counter()
    if trial.setting == PYG:
        val, test = train_pyg(graph, trial.graph, trial.model, trial.seed, device)
    else:
        val, test = train(graph, *trial, device)
    return Outcome(trial.command, [Score(0, val, test)], (), device, round(time.perf_counter() - start, 1))


def train(graph: Any, name: str, model: str, setting: str, seed: int, device: str) -> tuple[float, float]:
    """Return the validation and test score of one training with fullgraph."""
    from fullgraph.nn import MODELS as SPECS
    from fullgraph.partition import cut_parts, partition
    from fullgraph.run import Run, build_trainer
    from fullgraph.train.config import TrainConfig
    from fullgraph.transport import SingleRank

    norm, features, lr, *kept = setting.split()
    part = cut_parts(graph, partition(graph, 1, method="contiguous"), 0, features=features)
    spec = SPECS[model](layers=LAYERS, hidden=HIDDEN, dropout=DROPOUT, norm=norm, input_dropout=not kept)
    metric = "roc_auc" if name in AUC else "auto"
    config = TrainConfig(epochs=EPOCHS, eval_every=EVERY, lr=float(lr), seed=seed, device=device, metric=metric)
    trainer = build_trainer(Run(model=spec, train=config), part, SingleRank())
    trainer.fit([])
    scores = trainer.best.scores
    return scores["val"] or 0.0, scores["test"] or 0.0


def train_pyg(graph: Any, name: str, model: str, seed: int, device: str) -> tuple[float, float]:
    """Return the same with PyG, in the style of its examples."""
    import torch
    import torch.nn.functional as F
    from torch_geometric.nn import GCN, GraphSAGE

    from fullgraph.tasks.metrics import accuracy, micro_f1, roc_auc
    from fullgraph.transport import Key, SingleRank

    torch.manual_seed(seed)
    data = graph.to_pyg().to(device)
    several = data.y.dim() == 2
    net = {"sage": GraphSAGE, "gcn": GCN}[model](
        data.x.shape[1], HIDDEN, LAYERS, graph.num_classes, dropout=DROPOUT
    ).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    loss_of = F.binary_cross_entropy_with_logits if several else F.cross_entropy

    def score(out: torch.Tensor, mask: torch.Tensor) -> float:
        metric = micro_f1 if several else roc_auc if name in AUC else accuracy
        return metric(out[mask], data.y[mask], SingleRank(), Key("score", 0))

    best = (0.0, 0.0)
    for epoch in range(1, EPOCHS + 1):
        net.train()
        optimizer.zero_grad()
        loss_of(net(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        if epoch % EVERY == 0:
            net.eval()
            with torch.no_grad():
                out = net(data.x, data.edge_index)
            best = max(best, (score(out, data.val_mask), score(out, data.test_mask)))
    return best


def tables(done: dict[Trial, Outcome], options: argparse.Namespace) -> None:
    def scores(name: str, model: str, setting: str, which: str) -> list[float]:
        asked = (Trial(name, model, setting, seed) for seed in range(options.seeds))
        return [100 * getattr(done[one].best(), which) for one in asked if one in done]

    for model in MODELS:
        rows = []
        for setting in SETTINGS:
            off = [
                mean(mine) - mean(theirs)
                for name in options.only
                if (mine := scores(name, model, setting, "val")) and (theirs := scores(name, model, SETTINGS[0], "val"))
            ]
            if off:
                rows.append((setting, len(off), f"{mean(off):+.2f}", f"{min(off):+.2f}", f"{max(off):+.2f}"))
        rows.sort(key=lambda row: -float(row[2]))
        title = f"{model}: validation score of a setting (norm, features, rate) less that of {SETTINGS[0]}, points"
        show(title, ["setting", "graphs", "mean", "worst", "best"], rows, markdown=options.markdown)
        rows = []
        for name in options.only:
            mine, theirs = scores(name, model, options.default, "test"), scores(name, model, PYG, "test")
            if mine and theirs:
                noise = max(stdev(mine) if len(mine) > 1 else 0.0, stdev(theirs) if len(theirs) > 1 else 0.0)
                verdict = "" if mean(mine) >= mean(theirs) - noise else "BELOW"
                rows.append((name, f"{mean(theirs):.2f}", f"{mean(mine):.2f}", f"{mean(mine) - mean(theirs):+.2f}",
                             f"{noise:.2f}", verdict))  # fmt: skip
        title = f"{model}: test score of {options.default} and of PyG's plain script, mean of {options.seeds} seeds"
        show(title, ["graph", "PyG", "ours", "difference", "± of seeds", ""], rows, markdown=options.markdown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz graphs")
    parser.add_argument("--only", nargs="+", metavar="GRAPH", help="default: all graphs of the folder")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--limit-s", type=float, default=inf, metavar="SECONDS", help="begin no training after so long")
    parser.add_argument("--default", default="layer none 0.01", help="the setting to put beside PyG's script")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "defaults" / "results.jsonl")
    parser.add_argument("--report", action="store_true", help="show what the results file holds and train nothing")
    parser.add_argument("--markdown", action="store_true", help="show tables as Markdown")
    options = parser.parse_args()
    options.only = options.only or sorted(path.stem for path in options.data.glob("*.npz"))
    # Seed by seed, so that a call that is cut short leaves every setting with as many.
    axes = itertools.product(range(options.seeds), options.only, MODELS, [PYG, *SETTINGS])
    trials = [Trial(graph, model, setting, seed) for seed, graph, model, setting in axes]
    train_one = partial(work, data=options.data, device=options.device)
    complete(trials, train_one, options, partial(tables, options=options))
