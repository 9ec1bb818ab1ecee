"""The public functions: one call trains on processes; the written files can be read back; torchrun works."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fullgraph as fg
from fullgraph.partition import partition, write_parts
from fullgraph.partition.cover import covered_rows_in
from fullgraph.report import read_metrics
from fullgraph.train.trainer import logits_of
from tests.support import random_graph


@pytest.fixture(scope="module")
def graph():
    return random_graph(nodes=400, arcs=2000, features=10)


@pytest.fixture(scope="module")
def runs(graph, tmp_path_factory):
    """The same training on one rank and on three."""
    folder = tmp_path_factory.mktemp("runs")
    model = fg.nn.GraphSAGE(layers=3, hidden=16, norm="batch")
    return [
        fg.train(
            graph,
            model=model,
            parts=parts,
            epochs=12,
            eval_every=4,
            dtype="float64",
            all_rows=True,
            out=folder / str(parts),
        )
        for parts in (1, 3)
    ]


def test_a_run_does_not_depend_on_its_ranks(runs):
    one, three = (read_metrics(run.folder / "metrics.jsonl") for run in runs)
    assert [r.loss for r in one] == pytest.approx([r.loss for r in three], abs=1e-9)
    assert [r.val for r in one] == [r.val for r in three]
    np.testing.assert_allclose(runs[0].probabilities, runs[1].probabilities, atol=1e-6)
    np.testing.assert_array_equal(runs[0].predictions, runs[1].predictions)


def test_rows_that_the_loss_reads_are_counted(graph, tmp_path):
    """In the last layer the training nodes, in the layer before also their neighbours; on any number of ranks."""
    few = np.zeros(graph.num_nodes, dtype=bool)
    few[np.flatnonzero(graph.train_mask[:, 0])[:5]] = True
    masks = {"train": few, "val": graph.val_mask[:, 0], "test": graph.test_mask[:, 0]}
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    small = fg.Graph(np.stack([graph.indices, targets]), graph.x, graph.y, masks)
    reads = few.copy()
    reads[graph.indices[few[targets]]] = True
    for parts in (1, 3):
        run = fg.train(small, parts=parts, epochs=1, out=tmp_path / str(parts))
        assert run.result["live_rows"]["2"] == 5
        assert run.result["live_rows"]["1"] == reads.sum()


def test_the_record_is_complete(runs, graph):
    result = runs[1].result
    assert result["schema"] == 1
    assert result["graph"] == {
        "name": "case", "nodes": 400, "edges": graph.num_arcs, "features": 10, "classes": graph.num_classes,
    }  # fmt: skip
    assert result["ranks"] == 3
    for name in ("epoch_s", "wait_s", "peak_memory_bytes", "time_to_best_s", "final_loss", "train", "val", "test"):
        assert result[name] > 0, name
    assert set(result["partition"]) == {"method", "edge_cut", "halo_rows", "edge_imbalance", "node_imbalance"}
    # layer 0 is precomputed; layer 1 sends 16 columns, layer 2 the classes: forward and backward, float64
    widths = 16 + graph.num_classes
    rows = sum(covered_rows_in(runs[1].folder / "shards"))
    assert result["bytes_per_epoch"] == 2 * widths * rows * 8
    assert rows < result["partition"]["halo_rows"]
    model = load_file(runs[1].folder / "model.safetensors")
    weights = 8 * sum(v.numel() for k, v in model.items() if "running" not in k)
    assert result["grad_bytes_per_epoch"] == 3 * 2 * weights  # each rank sends its own to both others


def test_lines_of_metrics_are_records_and_mappings(runs):
    first, last = runs[1].metrics[0], runs[1].metrics[-1]
    assert first["loss"] == first.loss
    assert first["val"] is first.val is None
    written = json.loads((runs[1].folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert {name: value for name, value in last.items() if value is not None} == {
        name: value for name, value in written.items() if name != "checksum"
    }
    assert [record["other_bytes"] > 0 for record in runs[1].metrics] == [True] * len(runs[1].metrics)
    with pytest.raises(KeyError, match="bites: an epoch's record has epoch, loss"):
        first["bites"]


def test_the_model_reloads_in_one_process(runs, graph, tmp_path):
    """Weights trained on three ranks, evaluated by hand on the whole graph in this process."""
    folder = tmp_path / "parts"
    write_parts(folder, graph, partition(graph, 1))
    shard = fg.open_shard(folder, aggregation="mean", dtype=torch.float64)
    config = json.loads((runs[1].folder / "config.json").read_text())["model"]
    model = fg.nn.MODELS[config.pop("name")](**config).build(10, graph.num_classes, dtype=torch.float64)
    model.load_state_dict(load_file(runs[1].folder / "model.safetensors"))
    np.testing.assert_allclose(logits_of(model, shard).softmax(1).numpy(), runs[1].probabilities, atol=1e-6)


def test_scores_are_those_of_the_predictions(runs, graph):
    rows = graph.test_mask[:, 0]
    assert runs[1].result["test"] == pytest.approx((runs[1].predictions == graph.y)[rows].mean())


@pytest.mark.parametrize(
    ("options", "labels"),
    [({"inductive": True, "lr_schedule": "cosine"}, {}), ({"metric": "roc_auc", "patience": 1}, {"classes": 2}),
     ({"metric": "auto"}, {"multilabel": True})],
)  # fmt: skip
def test_other_ways_to_train(options, labels, tmp_path):
    graph = random_graph(nodes=200, arcs=900, directed=True, weighted=True, sparse=True, **labels)
    run = fg.train(graph, model=fg.nn.GAT(hidden=8, heads=2), parts=2, epochs=40, eval_every=2, out=tmp_path, **options)
    assert 0 < run.result["test"] <= 1
    assert run.predictions.shape == graph.y.shape
    if "patience" in options:
        assert run.result["epochs"] < 40


@pytest.mark.cold
def test_torchrun_joins_in(graph, tmp_path):
    """Two ranks that torchrun started: rank 0 partitions the graph, and both train."""
    fg.save_npz(graph, tmp_path / "g.npz")
    launched = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fullgraph",
         "train", "g.npz", "--hidden", "8", "--epochs", "4", "--out", "run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["ranks"] == 2
    assert launched.stdout.count("run folder") == 1
