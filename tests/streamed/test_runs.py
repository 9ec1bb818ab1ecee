"""Runs within a memory budget, as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fullgraph as fg
from tests.support import random_graph, ranks_of

RUN = {"model": fg.nn.GraphSAGE(layers=3, hidden=64, dropout=0.5), "epochs": 3, "eval_every": 1, "all_rows": True}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    fg.save_npz(random_graph(nodes=3000, arcs=12000, features=16), path)
    return path


def command(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "fullgraph", *map(str, words)], capture_output=True, text=True, timeout=240, **options
    )


@pytest.fixture(scope="module")
def budget(graph):
    """A little less than the run takes in memory."""
    done = command("inspect", graph, "--memory", "--hidden", 64, "--host-memory", "1TiB", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert not plan["parts"]
    return f"{plan['whole'] - 1}B"


def test_a_run_within_a_budget_equals_one_in_memory(graph, budget, tmp_path):
    whole = fg.train(str(graph), out=tmp_path / "whole", **RUN)
    found = fg.train(str(graph), out=tmp_path / "parts", host_memory=budget, **RUN)
    memory = json.loads((tmp_path / "parts" / "profile.json").read_text())["ranks"][0]["memory"][0]
    assert memory["parts"] > 1
    assert sum(line["lives"].startswith("disk") for line in memory["lines"])
    for one, other in zip(whole.metrics, found.metrics, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
    assert np.allclose(whole.probabilities, found.probabilities, atol=1e-4)


def test_a_killed_run_leaves_no_scratch(graph, budget, tmp_path):
    scratch, run = tmp_path / "scratch", tmp_path / "run"
    words = ["train", graph, "--hidden", 64, "--epochs", 100000, "--host-memory", budget, "--scratch", scratch]
    process = subprocess.Popen(
        [sys.executable, "-m", "fullgraph", *map(str, words), "--out", str(run)], stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not (
            (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size
        ):
            assert process.poll() is None
            time.sleep(0.1)
        for pid in ranks_of(process.pid).values():
            os.kill(pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "computed in" in out
    assert os.listdir(scratch) == []


def test_the_plan_is_printed(graph, budget):
    done = command("inspect", graph, "--memory", "--hidden", 64, "--host-memory", budget)
    assert done.returncode == 0, done.stderr
    assert "layers are computed in" in done.stdout
    for word in ("features", "precomputed input", "store 1", "edges of the parts", "disk"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--parts", "2"], "--parts 1"),
        (["--norm", "batch"], "--norm layer"),
        (["--strategy", "mixgcn"], "--strategy vanilla"),
        (["--host-memory", "1MiB"], None),
    ],
)
def test_refused_in_one_line(words, fix, graph, tmp_path):
    """What cannot run in parts is refused before the graph is read; a budget that is too small, with one that does."""
    read = tmp_path / "missing.npz" if fix else graph
    done = command("train", read, "--host-memory", "1GiB", *words, "--out", tmp_path / "run")
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if "error:" in line]
    assert len(lines) == 1
    assert (fix or "needs at least") in lines[0]
    assert not (tmp_path / "run").exists()
