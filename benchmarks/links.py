"""Link prediction compared with PyG: test ROC-AUC of `--task link` with its defaults, on pairs of RandomLinkSplit.

    .venv/bin/python benchmarks/links.py --data FOLDER [--only cora citeseer pubmed] [--seeds 3]

PyG's side is its usual script (examples/link_pred.py): GCN 128-64, dot product, Adam 0.01, feature rows that sum to
one, new negatives in every epoch, 200 epochs, the test score at the best validation score of every fifth epoch. Like
that script, it computes test pairs over training and validation edges. Ours reads the same three `Data`; its rows come
only from the training edges.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from common import show
from torch import Tensor

import fullgraph as fg

GRAPHS = ("cora", "citeseer", "pubmed", "demo")
CONTENDERS = ("PyG", "fullgraph", "fullgraph --model sage")
EPOCHS, EVERY = 200, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of cora.npz, citeseer.npz, pubmed.npz")
    parser.add_argument("--only", nargs="+", choices=GRAPHS, default=list(GRAPHS[:3]))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", type=int, default=1)
    options = parser.parse_args()
    rows = []
    for name in options.only:
        found: dict[str, list[float]] = {contender: [] for contender in options.contenders}
        for seed in range(options.seeds):
            splits = split_of(name, options.data, seed)
            for contender in options.contenders:
                score = plain(splits, seed) if contender == "PyG" else ours(splits, contender, seed, options.parts)
                print(f"{name} seed {seed} {contender}: {score:.4f}", flush=True)
                found[contender].append(score)
        rows.append(
            [name, *(f"{mean(scores):.3f} ± {stdev(scores) if scores[1:] else 0:.3f}" for scores in found.values())]
        )
    show("Test ROC-AUC of links, mean over seeds", ["graph", *options.contenders], rows)


def split_of(name: str, folder: Path, seed: int) -> tuple[Any, Any, Any]:
    """Return RandomLinkSplit's three `Data` of a graph, with features scaled as in PyG's examples."""
    import torch_geometric
    import torch_geometric.transforms as T

    data = fg.load(name if name == "demo" else folder / f"{name}.npz").to_pyg()
    torch_geometric.seed_everything(seed)
    data = data if name == "demo" else T.NormalizeFeatures()(data)
    return T.RandomLinkSplit(num_val=0.05, num_test=0.1, is_undirected=True, add_negative_train_samples=False)(data)


def ours(splits: tuple[Any, Any, Any], contender: str, seed: int, parts: int) -> float:
    model = None if contender == "fullgraph" else "sage"
    with tempfile.TemporaryDirectory() as out:
        run = fg.train(splits, task="link", model=model, parts=parts, seed=seed, report=False, out=Path(out) / "run")
        return float(run.result["test"])


def plain(splits: tuple[Any, Any, Any], seed: int) -> float:
    """Train with a script as PyG users write it."""
    from sklearn.metrics import roc_auc_score
    from torch_geometric.nn import GCNConv
    from torch_geometric.utils import negative_sampling

    class Net(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv1, self.conv2 = GCNConv(width, 128), GCNConv(128, 64)

        def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

        def decode(self, z: Tensor, pairs: Tensor) -> Tensor:
            return (z[pairs[0]] * z[pairs[1]]).sum(dim=-1)

    torch.manual_seed(seed)
    train, val, test = splits
    model = Net(train.num_features)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    best = kept = 0.0
    for epoch in range(1, EPOCHS + 1):
        model.train()
        optimizer.zero_grad()
        z = model.encode(train.x, train.edge_index)
        others = negative_sampling(train.edge_index, train.num_nodes, train.edge_label_index.size(1), method="sparse")
        pairs = torch.cat([train.edge_label_index, others], dim=-1)
        y = torch.cat([train.edge_label, train.edge_label.new_zeros(others.size(1))])
        torch.nn.functional.binary_cross_entropy_with_logits(model.decode(z, pairs), y).backward()
        optimizer.step()
        if epoch % EVERY == 0:
            model.eval()
            with torch.no_grad():
                scores = [
                    float(roc_auc_score(np.asarray(data.edge_label), model.decode(
                        model.encode(data.x, data.edge_index), data.edge_label_index)))
                    for data in (val, test)
                ]  # fmt: skip
            if scores[0] > best:
                best, kept = scores
    return kept


if __name__ == "__main__":
    main()
