"""The effect of neighbours in the demo graph: without edges, and with the edges inside random parts only.

.venv/bin/python benchmarks/campaign.py neighbours        # a few minutes on 2 cores

GraphSAGE on a graph without edges is an MLP. "On the whole graph" evaluates weights that were trained without the edges
between parts on the graph with all edges.
"""

import argparse
from pathlib import Path
from statistics import mean

import numpy as np
from common import fresh_folder, show
from safetensors.torch import load_file

import fullgraph as fg
from fullgraph.partition import partition, write_parts
from fullgraph.tasks import node_task
from fullgraph.train.trainer import evaluate

MODEL = fg.nn.GraphSAGE(layers=3, hidden=64, norm="none", input_dropout=True)


def keep_arcs(graph: fg.Graph, keep: np.ndarray, name: str) -> fg.Graph:
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    return fg.Graph(graph.edge_index[:, keep], graph.x, graph.y, masks, name=name)


def whole_score(shards: Path, run: fg.Run, graph: fg.Graph) -> float:
    shard = fg.open_shard(shards, aggregation=MODEL.aggregation)
    model = MODEL.build(graph.num_features, graph.num_classes)
    model.load_state_dict(load_file(run.folder / "model.safetensors"))
    return evaluate(model, shard, node_task(multilabel=False, classes=graph.num_classes))["test"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    folder = fresh_folder("neighbours")
    graph = fg.load("demo")
    write_parts(folder / "whole", graph, partition(graph, 1))
    source, target = graph.edge_index
    part = partition(graph, 4, method="random", seed=0).part
    graphs = {
        "all arcs": graph,
        "no arcs (an MLP)": keep_arcs(graph, np.zeros(graph.num_arcs, dtype=bool), "mlp"),
        "arcs inside random parts, 4 of them": keep_arcs(graph, part[source] == part[target], "cut"),
    }
    rows = []
    for number, (name, seen) in enumerate(graphs.items()):
        own, whole = [], []
        for seed in range(options.seeds):
            out = folder / f"{number}-{seed}"
            run = fg.train(seen, model=MODEL, parts=1, epochs=options.epochs, seed=seed, checkpoint_every=0, out=out)
            own.append(100 * run.result["test"])
            whole.append(100 * whole_score(folder / "whole", run, graph))
        rows.append((name, f"{mean(own):.1f}", f"{mean(whole):.1f}"))
    show(f"demo, {options.seeds} seeds, test accuracy in %", ["trained on", "on the same", "on the whole graph"], rows)
