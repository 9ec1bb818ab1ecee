"""An interrupted run: the other ranks stop and name the dead one, and resuming is bit-identical."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from fullgraph.data import save_npz
from tests.support import random_graph, ranks_of
from tests.typed.oracle import typed_graph

TRAIN = ["--hidden", "8", "--eval-every", "3", "--checkpoint-every", "5", "--norm", "batch"]
PIPE = [*TRAIN[:-1], "layer", "--strategy", "gnnpipe", "--layers", "5", "-o", "freeze=4"]


def start(*args, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "fullgraph", "train", *map(str, args)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process, seconds=100):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


CASES = {
    "vanilla": (random_graph, 0, TRAIN),
    "gnnpipe": (random_graph, 2, PIPE),
    "learned rows": (typed_graph, 1, [*TRAIN, "--model", "rgcn", "--strategy", "pipegcn"]),
}


@pytest.mark.parametrize(("graph", "victim", "options"), CASES.values(), ids=CASES)
def test_kill_one_rank_then_resume(tmp_path, graph, victim, options):
    save_npz(graph(), tmp_path / "g.npz")
    kill_and_resume(tmp_path, 3, victim, options)


@pytest.mark.gpu
@pytest.mark.timeout(280)
@pytest.mark.parametrize("strategy", ["vanilla", "pipegcn", "sylvie-a"])
def test_gpu_kill_one_rank_then_resume(tmp_path, strategy):
    """In fp32, large enough that rows have many arcs and matrices many tiles, killed at a random moment."""
    save_npz(random_graph(nodes=20_000, arcs=1_000_000, features=96), tmp_path / "g.npz")
    options = ["--hidden", "96", "--eval-every", "3", "--checkpoint-every", "5", "--norm", "layer"]
    options += ["--strategy", strategy, "--device", "cuda", "--partitioner", "contiguous"]
    kill_and_resume(tmp_path, 2, random.randrange(2), options, after=random.uniform(0, 1))


def kill_and_resume(tmp_path, parts, victim, options, after=0.0):
    """Kill a rank after the first checkpoint, resume, and compare with an uninterrupted run."""
    cut = start("g.npz", "--parts", parts, "--epochs", 1000000, "--out", "cut", *options, cwd=tmp_path)
    checkpoints = tmp_path / "cut" / "checkpoints"
    try:
        wait_for(lambda: checkpoints.is_dir() and any(checkpoints.glob("epoch-*")), seconds=100)
        time.sleep(after)
        os.kill(ranks_of(cut.pid)[victim], signal.SIGKILL)
        killed_at = time.monotonic()
        code, _, err = finish(cut)
    finally:
        if cut.poll() is None:  # it would train for ever
            cut.kill()
            cut.communicate()
    assert time.monotonic() - killed_at < 30
    assert code == 1
    assert f"rank {victim} " in err
    assert "SIGKILL" in err

    newest = max(int(path.name.removeprefix("epoch-")) for path in checkpoints.glob("epoch-*"))
    code, _, err = finish(start("--resume", "cut", "--epochs", newest + 7, cwd=tmp_path))
    assert code == 0, err
    code, _, err = finish(
        start("g.npz", "--parts", parts, "--epochs", newest + 7, "--out", "whole", *options, cwd=tmp_path)
    )
    assert code == 0, err
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def assert_same_run(left, right):
    results = [json.loads((folder / "result.json").read_text()) for folder in (left, right)]
    for key in ("best_epoch", "train", "val", "test", "final_loss", "epochs", "bytes_per_epoch"):
        assert results[0][key] == results[1][key], key
    losses = [
        [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (left, right)
    ]
    assert losses[0] == losses[1]
    models = [load_file(folder / "model.safetensors") for folder in (left, right)]
    assert models[0].keys() == models[1].keys()
    assert all((models[0][name] == models[1][name]).all() for name in models[0])
    for name in ("classes", "probabilities"):
        files = [(folder / "predictions" / f"{name}.npy").read_bytes() for folder in (left, right)]
        assert files[0] == files[1]


def test_resume_of_a_finished_run_extends_it(tmp_path):
    save_npz(random_graph(nodes=300, arcs=1500), tmp_path / "g.npz")
    for name, epochs in (("whole", 20), ("short", 10)):
        code, _, err = finish(start("g.npz", "--parts", 2, "--epochs", epochs, "--out", name, *TRAIN, cwd=tmp_path))
        assert code == 0, err
    # The short run also scored its last epoch, which the whole one did not: compare the common epochs.
    code, _, err = finish(start("--resume", "short", "--epochs", 20, cwd=tmp_path))
    assert code == 0, err
    left, right = (
        [json.loads(line)["loss"] for line in (tmp_path / n / "metrics.jsonl").read_text().splitlines()]
        for n in ("whole", "short")
    )
    assert left == right


@pytest.mark.parametrize(
    "strategy",
    [["pipegcn", "-o", "lag=2", "-o", "smooth=gf"], ["sylvie-a", "-o", "refresh=4", "-o", "feedback=true"]],
)
def test_resume_of_stale_runs_is_bit_identical(tmp_path, strategy):
    """Versions in flight and moving averages are in the checkpoint."""
    save_npz(random_graph(nodes=300, arcs=1500), tmp_path / "g.npz")
    options = ["g.npz", "--parts", 3, "--strategy", *strategy, "--hidden", "8", "--eval-every", "9"]
    for name, epochs in (("whole", 18), ("cut", 9)):
        run = start(*options, "--checkpoint-every", "9", "--epochs", epochs, "--out", name, cwd=tmp_path)
        code, _, err = finish(run)
        assert code == 0, err
    code, _, err = finish(start("--resume", "cut", "--epochs", 18, cwd=tmp_path))
    assert code == 0, err
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
