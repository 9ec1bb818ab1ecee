"""The scripts behind tables of docs/benchmarks.md: their counts, and their tables."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest

from fullgraph.data import Graph
from fullgraph.partition import partition, write_parts

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def few_trained(nodes=60, arcs=150):
    """A random directed graph with three training nodes."""
    rng = np.random.default_rng(5)
    masks = {name: np.zeros(nodes, dtype=bool) for name in ("train", "val", "test")}
    for name, rows in zip(masks, ([3, 17, 40], range(41, 50), range(50, 60)), strict=True):
        masks[name][list(rows)] = True
    x, y = rng.standard_normal((nodes, 4), dtype=np.float32), rng.integers(0, 3, nodes)
    return Graph(rng.integers(0, nodes, (2, arcs)), x, y, masks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["Vanilla", "PipeGCN"])
def test_ranks_count_the_arcs_they_multiply(strategy, tmp_path):
    """Arcs into the rows that the loss reads, hop by hop; the first product of dense features is precomputed."""
    from common import train

    graph = few_trained()
    write_parts(tmp_path / "cut", graph, partition(graph, 2))
    named = ["--strategy", f"{BENCHMARKS / 'counted.py'}:{strategy}"]
    found = {}
    for name, flags in {"live": [], "all": ["--all-rows"]}.items():
        counts = tmp_path / name
        counts.mkdir()
        train(tmp_path / "cut", tmp_path / f"run-{name}", *named, "-o", f"counts={counts}", "--epochs", 1, *flags)
        ranks = [json.loads((counts / f"{rank}.json").read_text()) for rank in range(2)]
        found[name] = [(sum(r[n]["rows"] for r in ranks), sum(r[n]["arcs"] for r in ranks)) for n in range(3)]
    degree, source = np.diff(graph.indptr), graph.indices
    target = np.repeat(np.arange(graph.num_nodes), degree)
    read = graph.train_mask[:, 0].copy()
    expected = []
    for _ in range(3):
        expected.insert(0, (int(read.sum()), int(degree[read].sum())))
        read = read | np.isin(np.arange(graph.num_nodes), source[read[target]])
    assert expected[2][0] == 3
    assert expected[1][1] < expected[0][1] < graph.num_arcs
    assert found["live"] == [(expected[0][0], 0), *expected[1:]]
    assert found["all"] == [(graph.num_nodes, 0), *[(graph.num_nodes, graph.num_arcs)] * 2]


def test_live_rows_go_on_where_they_stopped(tmp_path):
    """An incomplete line is dropped; the others equal the measurements."""
    from campaign import read
    from campaigns.live_rows import Case, Figures, Trial

    trial = Trial(Case("cora", 2, "vanilla"), True, 0, 0, 0, 60, 1)
    figures = Figures(trial.command, 0.5, 0.1, 7, 9, [3, 2, 1], [6, 4, 2])
    path = tmp_path / "results.jsonl"
    line = json.dumps(figures._asdict()) + "\n"
    path.write_text(line + '{"command": "co')
    assert read(path, Figures) == {trial.command: figures}
    assert path.read_text() == line


def test_bytes_until_a_run_scores_as_vanilla(monkeypatch):
    """Until the validation score of vanilla's best evaluation with the same seed, minus half a point."""
    from campaign import Cut, Outcome, Score, Trial
    from campaigns import narrow

    def run(*vals):
        return Outcome("", [Score(1000 * (n + 1), val, val) for n, val in enumerate(vals)])

    cut = Cut("demo", "none")
    first, second = (Trial(cut, "vanilla", seed, "") for seed in (0, 1))
    done = {}
    for trial, exact, late in [(first, run(0.5, 0.9, 0.8), run(0.5, 0.8, 0.896)), (second, run(0.7, 0.6), run(0.6))]:
        for stage in narrow.stages(trial):
            done[stage] = exact
        for stage in narrow.stages(trial._replace(strategy="pipegcn")):
            done[stage] = late
    shown = []
    monkeypatch.setattr(narrow, "show", lambda title, columns, rows, markdown: shown.extend(rows))
    narrow.table(done, ["vanilla", "pipegcn"], markdown=False)
    vanilla, late = shown
    assert vanilla[2:6] == ("1.46 KiB", "1.46 KiB", "", "1.00x")  # 2000 bytes of one seed, 1000 of the other
    assert late[2:6] == (*["never (1 of 2 seeds)"] * 3, "")
    assert narrow.until(run(0.1, 0.2, 0.3), 0.2) == 2000
    assert narrow.until(run(0.1), 0.2) == inf


def test_every_way_to_train_deep_models_can_be_built():
    """Names of the studies, and options of a history, are otherwise checked only when a training begins."""
    from campaigns.deep_accuracy import COMPARED, STUDIES, WAYS, named

    from fullgraph.placement import History

    assert named("gnnpipe at 0.01 for 1000").groupdict() == {"way": "gnnpipe", "rate": "0.01", "epochs": "1000"}
    for name in [*COMPARED, *(way for study in STUDIES.values() for way in study)]:
        assert named(name)["way"] in WAYS, name
    assert all(History(**chunks.history).freeze > 0 for chunks in WAYS.values() if chunks)


@pytest.mark.timeout(300)
def test_layers_are_timed_beside_pyg(tmp_path):
    """One command prints a table: our times, PyG's forms, and in words the cases that do not run."""
    pytest.importorskip("torch_geometric", reason="PyG is an extra")
    from common import run

    flags = ["--device", "cpu", "--sizes", "tiny", "--epochs", 1, "--out", tmp_path]
    said = run([BENCHMARKS / "gpu_layers.py", *flags, "--only", "GATv2,SAGEMax", "--alternatives", "edge,csr"]).output
    found = json.loads((tmp_path / "gpu_layers.json").read_text())
    ways = ("fullgraph", "PyG edge", "PyG csr")
    assert set(found) == {f"tiny/{net}/{way}" for net in ("GATv2", "SAGEMax") for way in ways}
    assert all(len(cost) == 3 and cost[0] > 0 for cost in found.values())
    assert "| tiny | fullgraph | PyG edge | PyG csr |" in said

    said = run(
        [BENCHMARKS / "gpu_layers.py", *flags, "--all-layers", "--only", "MFConv", "--alternatives", "csr"]
    ).output
    assert "PyG csr      fails: " in said  # it counts degrees by scatter
    assert "left out, no time" in run([BENCHMARKS / "gpu_layers.py", *flags, "--seconds", 0]).output


@pytest.mark.timeout(300)
def test_typed_graphs_beside_pyg():
    pytest.importorskip("torch_geometric", reason="PyG is an extra")
    from common import run

    flags = ["--device", "cpu", "--scale", "0.001", "--epochs", 1, "--ranks", "1,2", "--models", "hetero-sage"]
    said = run([BENCHMARKS / "typed.py", *flags], threads=1).output
    rows = [line.split(" | ") for line in said.splitlines() if line.startswith(("| fullgraph", "| PyG"))]
    names = ["fullgraph hetero-sage, 1 rank", "fullgraph hetero-sage, 2 ranks", "PyG HeteroConv"]
    assert [row[0].removeprefix("| ") for row in rows] == names
    assert all(float(row[1].removesuffix(" ms")) > 0 for row in rows)


@pytest.mark.timeout(300)
def test_the_page_says_which_layers_have_kernels():
    pytest.importorskip("torch_geometric", reason="PyG is an extra")
    import layer_ways

    page = (BENCHMARKS.parent / "docs" / "own_models.md").read_text()
    assert layer_ways.table() in page, "print it anew: python benchmarks/layer_ways.py"
    assert layer_ways.WHOLE not in page
