"""Training on tables is bit-identical to training on the same arrays; results have the tables' ids."""

import csv
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fullgraph as fg
from tests.support import random_graph

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
from pyarrow import parquet  # noqa: E402

NODES = 150


@pytest.fixture
def folder(tmp_path):
    """The same graph as an .npz file and as tables: nodes as CSV, edges as Parquet."""
    graph = random_graph(nodes=NODES, arcs=600, weighted=True)
    x = graph.x.astype(np.float32)
    masks = {name: getattr(graph, f"{name}_mask")[:, 0] for name in ("train", "val", "test")}
    names = np.array([f"user {i:03}" for i in np.random.default_rng(0).permutation(NODES)])
    fg.save_npz(
        fg.Graph(graph.edge_index, x, graph.y, masks, edge_weight=graph.edge_weight.astype(np.float32)),
        tmp_path / "g.npz",
    )
    (tmp_path / "g").mkdir()
    split = np.select(list(masks.values()), list(masks), "")
    with (tmp_path / "g" / "nodes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", "split", *(f"x_{k}" for k in range(x.shape[1]))])
        writer.writerows([names[i], graph.y[i], split[i], *map(str, x[i])] for i in range(NODES))
    source, target = names[graph.edge_index]
    weight = graph.edge_weight.astype(np.float32)
    parquet.write_table(
        pa.table({"source": source, "target": target, "weight": weight}), tmp_path / "g" / "edges.parquet"
    )
    return tmp_path, names


def test_tables_train_as_their_arrays_do(folder):
    folder, names = folder
    common = ["--parts", 2, "--epochs", 4, "--features", "standard", "--hidden", 8, "--eval-every", 2, "--model", "gcn"]
    for graph in ("g.npz", "g"):
        words = [sys.executable, "-m", "fullgraph", "train", graph, *common, "--out", f"run-{graph}"]
        done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True, timeout=110)
        assert (done.returncode, done.stderr) == (0, "")
    one, other = (fg.FinishedRun(folder / f"run-{graph}") for graph in ("g.npz", "g"))
    left, right = (load_file(run.folder / "model.safetensors") for run in (one, other))
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert [record.loss for record in one.metrics] == [record.loss for record in other.metrics]
    np.testing.assert_array_equal(one.probabilities, other.probabilities)
    np.testing.assert_array_equal(np.load(other.folder / "predictions" / "ids.npy"), names)
    assert not (one.folder / "predictions" / "ids.npy").exists()
    table = parquet.read_table(other.predict(format="parquet", embeddings=2, out=folder / "out").files[0])
    assert table["id"].to_pylist() == names.tolist()
    np.testing.assert_array_equal(table["class"], other.predictions)
