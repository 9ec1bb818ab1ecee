"""How layers of PyG's run here: on our kernels, as PyG wrote them in chunks of rows, or whole. Prints docs' table.

PYTHONPATH=src python benchmarks/layer_ways.py
"""

from unittest.mock import patch

import numpy as np
import torch
from layer_nets import ARC_WIDTH, FEATURED, LAYERS, OneFeaturedLayer, OneLayer

import fullgraph as fg
from fullgraph.own_model.chunked.layer import ChunkedCall
from fullgraph.partition import cut_parts, partition
from fullgraph.placement import Partitioned, Shard
from fullgraph.transport import SingleRank

KERNEL = "our kernels"
ROOM = "our kernels while the mapped features of all edges fit into `--message-memory`; else chunks"
CHUNKS = "PyG's own code; in chunks of rows where its messages take more than `--message-memory`"
WHOLE = "PyG's own code, with all messages at once"
NODES, EDGES = 60, 400


def graph() -> fg.Graph:
    rng = np.random.default_rng(0)
    masks = {name: np.arange(NODES) % 3 == k for k, name in enumerate(("train", "val", "test"))}
    edges, x = rng.integers(0, NODES, (2, EDGES)), rng.standard_normal((NODES, 8), dtype=np.float32)
    attr = rng.standard_normal((EDGES, ARC_WIDTH), dtype=np.float32)
    return fg.Graph(edges, x, rng.integers(0, 3, NODES), masks, edge_attr=attr)


def calls(shard: Shard, layer: str, memory: str) -> tuple[int, int]:
    """How often a layer of a step runs PyG's messages, and over how many chunks at most."""
    kind, inputs = (OneFeaturedLayer, (shard.edge_attr,)) if layer in FEATURED else (OneLayer, ())
    model = fg.distribute(kind(8, 3, layer, hidden=16), shard, check=False, message_memory=memory)
    seen, call = [], ChunkedCall.__call__
    with patch.object(ChunkedCall, "__call__", lambda self, *a, **k: (seen.append(self.name), call(self, *a, **k))[1]):
        model(shard.x, shard.edge_index, *inputs).sum().backward()
    return len(seen), max(model.on_rows.chunks.counts.values(), default=0)


def ways() -> dict[str, list[str]]:
    """The layers of layer_nets.py by the way in which they run."""
    one = graph()
    part = cut_parts(one, partition(one, 1, method="random", seed=0), 0)
    shard = Partitioned(precompute=False).place(part, SingleRank(), fg.Wire(), "sum")
    found: dict[str, list[str]] = {KERNEL: [], ROOM: [], CHUNKS: [], WHOLE: []}
    for layer in sorted(LAYERS, key=str.lower):
        torch.manual_seed(0)
        by_pyg, _ = calls(shard, layer, "1TB")
        _, chunks = calls(shard, layer, "2kB")
        way = (ROOM if chunks else KERNEL) if not by_pyg else CHUNKS if chunks else WHOLE
        found[way].append(layer)
    return found


def table() -> str:
    lines = [f"| {way} | {', '.join(f'`{layer}`' for layer in layers)} |" for way, layers in ways().items() if layers]
    return "\n".join(["| runs on | layers |", "|---|---|", *lines])


if __name__ == "__main__":
    print(table())
