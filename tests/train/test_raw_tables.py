"""Training from the shell on other programs' files: part files, lists, texts as labels, no split and no features."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

import fullgraph as fg

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
from pyarrow import parquet  # noqa: E402

NODES, ARCS = 150, 900
TEXTS = np.array(["dog", "cat, big", "owl"])


def shell(folder, *words):
    done = subprocess.run([sys.executable, "-m", "fullgraph", *map(str, words)], cwd=folder, capture_output=True,
                          text=True, timeout=110)  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def folder(tmp_path):
    """Nodes in three part files with a list of features each and a text as label, edges in two."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, NODES)
    x = (rng.standard_normal((NODES, 6)) + 2 * y[:, None]).astype(np.float32)
    label = TEXTS[y].tolist()
    label[7] = None
    nodes = pa.table({"id": [f"n{i}" for i in range(NODES)], "label": label, "x": pa.array(list(x))})
    source, target = rng.integers(0, NODES, (2, ARCS))
    edges = pa.table({"source": [f"n{i}" for i in source], "target": [f"n{i}" for i in target]})
    for name, table, count in (("nodes", nodes, 3), ("edges", edges, 2)):
        (tmp_path / "g" / f"{name}.parquet").mkdir(parents=True)
        for number in range(count):
            step = -(-len(table) // count)
            part = table.slice(number * step, step)
            parquet.write_table(part, tmp_path / "g" / f"{name}.parquet" / f"part-{number:05}-c000.snappy.parquet")
        (tmp_path / "g" / f"{name}.parquet" / "_SUCCESS").touch()
    return tmp_path


def test_texts_come_back_as_texts(folder):
    refused = shell(folder, "train", "g")
    assert refused.returncode == 2
    assert "(--split random:60/20/20 draws them)" in refused.stderr
    words = ["--split", "random:60/20/20", "--parts", 2, "--epochs", 30, "--dropout", 0, "--hidden", 16]
    done = shell(folder, "train", "g", *words, "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["split"] == "random:60/20/20"
    run = fg.FinishedRun(folder / "run")
    assert set(run.predictions.tolist()) <= set(TEXTS.tolist())
    labels = np.load(folder / "run" / "predictions" / "labels.npy").tolist()
    assert labels == ["cat, big", "dog", "owl"]
    assert run.predictions.tolist() == np.array(labels)[run.probabilities.argmax(1)].tolist()
    assert run.result["test"] > 0.8

    assert shell(folder, "predict", "run", "--format", "csv", "--out", "told").returncode == 0
    with (folder / "told" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "class", "p_cat, big", "p_dog", "p_owl"]
    assert [row["class"] for row in rows] == run.predictions.tolist()
    assert [row["id"] for row in rows] == [f"n{i}" for i in range(NODES)]

    found = run.predict(folder / "g", parts=1, out=folder / "again")
    assert found.classes.tolist() == run.predictions.tolist()
    assert found.labels.tolist() == labels
    # The same result, bit for bit, from the run's own config; and from shards that were partitioned with the split.
    assert shell(folder, "train", "--config", "run/config.json", "--out", "twin").returncode == 0
    np.testing.assert_array_equal(fg.FinishedRun(folder / "twin").probabilities, run.probabilities)
    assert shell(folder, "partition", "g", "--split", "random:60/20/20", "--out", "parts").returncode == 0
    assert shell(folder, "train", "parts", *words[4:], "--out", "cut").returncode == 0
    np.testing.assert_array_equal(fg.FinishedRun(folder / "cut").probabilities, run.probabilities)
    assert "run `fullgraph partition` again with --split" in shell(folder, "train", "parts", *words).stderr


def test_texts_in_other_graphs(tmp_path):
    rng = np.random.default_rng(0)
    y = TEXTS[rng.integers(0, 3, NODES)]
    graph = fg.Graph(rng.integers(0, NODES, (2, ARCS)), rng.random((NODES, 4)), y)
    fg.save_npz(graph, tmp_path / "g.npz")
    again = fg.load(tmp_path / "g.npz")
    assert again.class_names == graph.class_names == ("cat, big", "dog", "owl")
    np.testing.assert_array_equal(again.y, graph.y)
    assert fg.Graph.from_pyg(graph.to_pyg()).class_names == graph.class_names
    run = fg.train(again, split="random:40/30/30", epochs=2, report=False, out=tmp_path / "run")
    assert set(run.predictions.tolist()) <= set(TEXTS.tolist())
    part = again.subgraph(np.arange(NODES) < 90)
    assert run.predict(part, out=tmp_path / "part").classes.dtype.kind == "U"


def test_splits_that_cannot_be_are_one_line(folder):
    for words, told in (
        (["--split", "random:70/30"], "write random:TRAIN/VAL/TEST, three shares that make 100"),
        (["--split", "half"], "write random:TRAIN/VAL/TEST"),
        (["--split", "-1"], "split=-1"),
        (
            ["--split", "random:60/20/20", "--task", "link"],
            "draws nodes; for links, set the shares with -t val",
        ),
    ):
        done = shell(folder, "train", "g", *words, "--out", "run")
        assert done.returncode == 2, words
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (folder / "run").exists()


def test_without_features_a_model_learns_a_row_a_node(tmp_path):
    rng = np.random.default_rng(2)
    y = np.arange(NODES) // 50
    pairs = [(u, v) for u, v in rng.integers(0, NODES, (6000, 2)) if u != v and (y[u] == y[v] or rng.random() < 0.05)]
    edges = np.array([*pairs, *((v, u) for u, v in pairs)]).T
    np.savez(tmp_path / "bare.npz", edge_index=edges, y=y)
    words = ["--split", "random:40/30/30", "--epochs", 30, "--parts", 2, "--out", "run"]
    done = shell(tmp_path, "train", "bare.npz", *words)
    assert done.returncode == 0
    assert "no features: each of its 150 nodes gets its own column" in done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"] > 0.9
    assert "no features: each of its 150 nodes" in shell(tmp_path, "inspect", "bare.npz").stderr
