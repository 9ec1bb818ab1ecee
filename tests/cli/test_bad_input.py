"""Bad input: one line that names the fix, exit status 2, no incomplete file, no traceback."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from fullgraph.cli import main
from fullgraph.data import save_npz
from tests.support import random_graph


def fullgraph(*args, cwd, **env):
    return subprocess.run(
        [sys.executable, "-m", "fullgraph", *map(str, args)],
        cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=110,
    )  # fmt: skip


@pytest.fixture
def refuse(monkeypatch, capfd):
    """Run the command line in this process: importing torch for every line would take minutes."""

    def run(args, cwd, *words):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["fullgraph", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            main()
        _assert_refused(stop.value.code, capfd.readouterr().err, *words)

    return run


def assert_refused(done, *words):
    _assert_refused(done.returncode, done.stderr, *words)


def _assert_refused(code, stderr, *words):
    assert code == 2, stderr
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("fullgraph: error: ")
    for word in words:
        assert word in lines[0], (word, lines[0])


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    n = 30
    masks = np.eye(3, dtype=bool)[rng.integers(0, 3, n)]
    masks[:3] = np.eye(3, dtype=bool)
    return {
        "edge_index": rng.integers(0, n, (2, 90)),
        "x": rng.standard_normal((n, 5)).astype(np.float32),
        "y": rng.integers(0, 3, n),
        **{f"{name}_mask": masks[:, k].copy() for k, name in enumerate(("train", "val", "test"))},
    }


def break_(arrays, what):
    if what == "missing key":
        del arrays["train_mask"]
    elif what == "out of range":
        arrays["edge_index"][1, 4] = 30
    elif what == "negative":
        arrays["edge_index"][0, 4] = -1
    elif what == "NaN":
        arrays["x"][3, 2] = np.nan
    elif what == "infinite":
        arrays["x"][3, 2] = np.inf
    elif what == "lengths":
        arrays["y"] = arrays["y"][:-1]
    elif what == "overlap":
        arrays["val_mask"] |= arrays["train_mask"]
    elif what == "empty mask":
        arrays["test_mask"][:] = False
    elif what == "label below":
        arrays["y"][2] = -2
    elif what == "unlabelled in mask":
        arrays["y"][np.flatnonzero(arrays["train_mask"])[0]] = -1
    elif what == "pickled":
        arrays["y"] = np.array([{"a": 1}] * 30, dtype=object)


BREAKS = ["missing key", "out of range", "negative", "NaN", "infinite", "lengths", "overlap", "empty mask",
          "label below", "unlabelled in mask", "pickled"]  # fmt: skip


@pytest.mark.parametrize("what", BREAKS)
def test_broken_graphs(arrays, what, tmp_path, refuse):
    break_(arrays, what)
    np.savez(tmp_path / "g.npz", **arrays)
    refuse(["train", "g.npz", "--out", "run"], tmp_path, "g.npz" if what == "pickled" else "")
    assert not (tmp_path / "run").exists()


def test_unlabelled_outside_the_masks_is_fine(arrays, tmp_path):
    arrays["test_mask"][5] = arrays["val_mask"][5] = arrays["train_mask"][5] = False
    arrays["y"][5] = -1
    np.savez(tmp_path / "g.npz", **arrays)
    done = fullgraph("train", "g.npz", "--epochs", 2, "--hidden", 4, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["train", "nowhere.npz"], ["nowhere.npz"]),
        (["train", "text.npz"], ["text.npz"]),
        (["train", "demo", "--strategy", "magic"], ["magic", "known: vanilla"]),
        (["train", "demo", "--model", "magic"], ["magic", "gcn, sage, gin, gat"]),
        (["train", "demo", "-o", "magic=1"], ["magic", "codec=full"]),
        (["train", "demo", "-o", "codec=magic"], ["magic", "full, half, bf16"]),
        (["train", "demo", "-o", "codec"], ["KEY=VALUE"]),
        (["train", "demo", "--magic", "1"], ["--magic"]),
        (["train", "demo", "--partitioner", "magic"], ["magic", "metis"]),
        (["train", "demo", "--features", "magic"], ["magic", "row"]),
        (["train", "demo", "--norm", "magic"], ["magic", "layer"]),
        (["train", "demo", "--metric", "roc_auc"], ["roc_auc", "accuracy"]),
        (["train", "demo", "--dropout", "1.5"], ["dropout"]),
        (["train", "demo", "--epochs", "0"], ["epochs"]),
        (["train", "demo", "--split", "3"], ["split 3"]),
        (["train", "demo", "--layers", "2", "--linear-layers", "2"], ["linear_layers"]),
        (["train", "demo", "--model", "gat", "--heads", "3", "--hidden", "16"], ["heads"]),
        (["train", "demo", "--model", "gcnii", "--alpha", "2"], ["alpha", "at most 1"]),
        (["train", "demo", "--heads", "2"], ["--heads is an option of --model gat or rgat or hgt, not of sage"]),
        (["train", "demo", "--heads", "4", "--model", "gcn"], ["--heads", "gat", "not of gcn"]),
        (["train", "demo", "--model", "gcnii", "--input-dropout"], ["--input-dropout", "gcn or sage or gin or gat"]),
        (["train", "demo", "--model", "resgcn", "--linear-layers", "1"], ["--linear-layers", "not of resgcn"]),
        (["train", "demo", "--model", "gat", "--lam", "0.5"], ["--lam is an option of --model gcnii, not of gat"]),
        (["train", "small.npz", "--parts", "500"], ["500"]),
        (["train", "--config", "bad.toml"], ["magic"]),
        (["train", "--config", "missing.toml"], ["missing.toml"]),
        (["train", "sbm:magic=3"], ["magic"]),
        (["train", "pyg:Nothing/Here"], ["Nothing"]),
        (["train", "ogb:ogbn-magic"], ["ogbn-magic"]),
        (["train", "saint:nowhere"], ["nowhere"]),
        (["predict", "nowhere"], ["nowhere"]),
        (["train", "--resume", "nowhere"], ["nowhere"]),
        (["train", "small.npz", "--out", "file/run"], ["file"]),
        (["partition", "small.npz", "--parts", "2", "--out", "file/parts"], ["file"]),
    ],
)
def test_refused(args, words, tmp_path, refuse):
    (tmp_path / "text.npz").write_text("not a zip")
    (tmp_path / "file").write_text("a file, not a folder")
    (tmp_path / "bad.toml").write_text("magic = 1\n")
    save_npz(random_graph(), tmp_path / "small.npz")
    refuse(args, tmp_path, *words)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on two ranks, and the folder of its shards."""
    folder = tmp_path_factory.mktemp("finished")
    save_npz(random_graph(), folder / "g.npz")
    assert fullgraph("partition", "g.npz", "--parts", 2, "--out", "parts", cwd=folder).returncode == 0
    done = fullgraph(
        "train", "parts", "--epochs", 3, "--hidden", 8, "--checkpoint-every", 1, "--out", "run", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_a_partitioned_folder_trains(finished):
    result = json.loads((finished / "run" / "result.json").read_text())
    assert result["ranks"] == 2
    assert result["epochs"] == 3


def test_resume_needs_a_node_for_each_rank(finished, refuse):
    refuse(["train", "--resume", "run", "--parts", 60000], finished, "60000 parts for", "at most as many parts")


def test_a_folder_that_holds_a_run_is_not_overwritten(finished, refuse):
    refuse(["train", "parts", "--out", "run"], finished, "--resume")


def test_parts_must_match_the_folder(finished, refuse):
    refuse(["train", "parts", "--parts", 5, "--out", "other"], finished, "2 parts")


@pytest.mark.parametrize("what", ["schema", "flipped byte", "missing file", "manifest"])
def test_damaged_shards(finished, tmp_path, what, refuse):
    shutil.copytree(finished / "parts", tmp_path / "parts")
    manifest = tmp_path / "parts" / "manifest.json"
    if what == "schema":
        manifest.write_text(manifest.read_text().replace('"schema": 1', '"schema": 99'))
    elif what == "manifest":
        manifest.write_text(manifest.read_text()[:50])
    else:
        victim = next((tmp_path / "parts" / "part-1").glob("x*"))
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.unlink()
        if what == "flipped byte":
            victim.write_bytes(data)
    refuse(["train", "parts", "--out", "run"], tmp_path)


def test_a_full_disk(tmp_path):
    """/dev/full cannot hold a folder, so a tiny file system is mounted if that is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        done = fullgraph("train", "demo", "--epochs", 2, "--parts", 2, "--out", disk / "run", cwd=tmp_path)
        assert_refused(done, "cutting the graph needs", "make room")
        assert not (disk / "run" / "shards").exists()
        assert fullgraph("partition", "demo", "--parts", 2, "--out", "parts", cwd=tmp_path).returncode == 0
        for every in (0, 1):  # full when the model, or a checkpoint, is written: what was trained stays
            out = disk / f"run-{every}"
            done = fullgraph("train", "parts", "--epochs", 2, "--checkpoint-every", every, "--out", out, cwd=tmp_path)
            assert_refused(done, "disk is full")
            left = {path.name for path in out.rglob("*")} - {"checkpoints"}
            assert left == {".fullgraph.lock", "config.json", "metrics.jsonl"}
    finally:
        subprocess.run(["umount", disk], check=True)
