"""Are the defaults good ones? GraphSAGE and GCN by default and by other settings, beside a plain script of PyG's.

    .venv/bin/python benchmarks/defaults.py --data FOLDER [--device cuda] [--jobs 4] [--only cora tolokers] [--report]

Every training is one rank in one process: 3 layers of 128, dropout 0.5, Adam, 200 epochs, scored every 10; the score is
that of the epoch with the best validation score. PyG's script has the same layers, width, dropout, optimizer and
epochs, features as they are, none of them dropped, and no norm. "kept" says that ours drops no input, either. Settings
are compared by validation scores; test scores are shown for the default and PyG alone. Outcomes are lines of a file: a
call that is cut short goes on where it was.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from common import ROOT, show

MODELS = ("sage", "gcn")
NORMS, FEATURES, RATES = ("none", "layer", "batch"), ("none", "row", "standard"), (0.01, 0.003)
SETTINGS = [f"{norm} {features} {lr}" for norm, features, lr in itertools.product(NORMS, FEATURES, RATES)]
SETTINGS += [f"{norm} none {lr} kept" for norm, lr in (("layer", 0.01), ("layer", 0.003), ("none", 0.01))]
PYG, EPOCHS, EVERY, LAYERS, HIDDEN, DROPOUT = "pyg", 200, 10, 3, 128, 0.5
AUC = ("minesweeper", "tolokers")  # scored by ROC-AUC, as their paper does


def train(graph: Any, name: str, model: str, setting: str, seed: int, device: str) -> tuple[float, float]:
    """Validation and test score of one training of ours."""
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
    """The same with PyG, as its examples are written."""
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


def work(options: argparse.Namespace, name: str) -> None:
    """Every training on one graph that is not in the file yet."""
    from fullgraph.data import load

    graph, known = load(str(options.data / f"{name}.npz")), read(options.results)
    for seed, model, setting in cases(options.seeds):
        if (name, model, setting, seed) in known:
            continue
        if setting == PYG:
            val, test = train_pyg(graph, name, model, seed, options.device)
        else:
            val, test = train(graph, name, model, setting, seed, options.device)
        line = {"graph": name, "model": model, "setting": setting, "seed": seed, "val": val, "test": test}
        with options.results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name} {model} {setting} seed {seed}: val {val:.4f}", flush=True)


def cases(seeds: int) -> Iterator[tuple[int, str, str]]:
    """Seed by seed, so that a call that is cut short leaves every setting with as many."""
    return itertools.product(range(seeds), MODELS, [PYG, *SETTINGS])


def read(results: Path) -> dict[tuple[str, str, str, int], tuple[float, float]]:
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return {(x["graph"], x["model"], x["setting"], x["seed"]): (x["val"], x["test"]) for x in lines}


def report(options: argparse.Namespace) -> None:
    known = read(options.results)

    def scores(name: str, model: str, setting: str, which: int) -> list[float]:
        return [100 * known[key][which] for s in range(options.seeds) if (key := (name, model, setting, s)) in known]

    for model in MODELS:
        rows = []
        for setting in SETTINGS:
            off = [
                mean(mine) - mean(theirs)
                for name in options.only
                if (mine := scores(name, model, setting, 0)) and (theirs := scores(name, model, SETTINGS[0], 0))
            ]
            if off:
                rows.append((setting, len(off), f"{mean(off):+.2f}", f"{min(off):+.2f}", f"{max(off):+.2f}"))
        rows.sort(key=lambda row: -float(row[2]))
        title = f"{model}: validation score of a setting (norm, features, rate) less that of {SETTINGS[0]}, points"
        show(title, ["setting", "graphs", "mean", "worst", "best"], rows)
        rows = []
        for name in options.only:
            mine, theirs = scores(name, model, options.default, 1), scores(name, model, PYG, 1)
            if mine and theirs:
                noise = max(stdev(mine) if len(mine) > 1 else 0.0, stdev(theirs) if len(theirs) > 1 else 0.0)
                verdict = "" if mean(mine) >= mean(theirs) - noise else "BELOW"
                rows.append((name, f"{mean(theirs):.2f}", f"{mean(mine):.2f}", f"{mean(mine) - mean(theirs):+.2f}",
                             f"{noise:.2f}", verdict))  # fmt: skip
        title = f"{model}: test score of {options.default} and of PyG's plain script, mean of {options.seeds} seeds"
        show(title, ["graph", "PyG", "ours", "difference", "± of seeds", ""], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz graphs")
    parser.add_argument("--only", nargs="+", metavar="GRAPH", help="all of the folder, if left out")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="graphs at a time, each in a process")
    parser.add_argument("--default", default="layer none 0.01", help="the setting to put beside PyG's script")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "defaults" / "results.jsonl")
    parser.add_argument("--report", action="store_true", help="show what the results file holds and train nothing")
    options = parser.parse_args()
    options.only = options.only or sorted(path.stem for path in options.data.glob("*.npz"))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    if len(options.only) == 1 and not options.report:
        work(options, options.only[0])
    elif not options.report:
        shared = ["--data", options.data, "--device", options.device, "--seeds", options.seeds]

        def one(name: str) -> int:
            command = [sys.executable, __file__, *map(str, shared), "--results", str(options.results), "--only", name]
            return subprocess.run(command, check=False).returncode

        with ThreadPoolExecutor(options.jobs) as pool:
            if any(pool.map(one, options.only)):
                raise SystemExit("a graph's process failed; its last lines are above")
    report(options)


if __name__ == "__main__":
    main()
