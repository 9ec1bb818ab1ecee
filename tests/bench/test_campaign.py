"""A campaign measures every cell once, survives an interruption and a failure, and shows all cells."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import fullgraph as fg
from fullgraph.cli import main
from fullgraph.errors import Damaged, RankFailed
from fullgraph.lab.bench import Matrix, Settings, hosts, read_cells
from fullgraph.lab.bench import campaign as module
from fullgraph.lab.bench.campaign import carry_out
from fullgraph.lab.bench.cell import Book, Cell
from fullgraph.lab.bench.rank import share_of
from fullgraph.lab.bench.tables import markdown, page, print_cells
from fullgraph.partition import partition
from fullgraph.partition.cover import covered_rows
from fullgraph.testing import run_threads
from fullgraph.transport import Key, Recording
from tests.support import ranks_of

GRAPH, MODEL = "sbm:nodes=2000,edges=20000,features=16", "sage:layers=2,hidden=16"
LINE = ["bench", "--graph", GRAPH, "--model", MODEL, "--strategy", "vanilla", "--strategy", "sylvie-a bits=2"]
LINE += [
    "--strategy",
    "gnnpipe-hybrid ways=3",
    "--epochs",
    "2",
    "--rounds",
    "2",
    "--score",
    "30",
    "--peers",
    "--all-rows",
]
DOCS = Path(__file__).resolve().parents[2] / "docs"


def call(monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["fullgraph", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two strategies that work, one that cannot, and two peers; the folder and the command's exit status."""
    folder = tmp_path_factory.mktemp("bench") / "out"
    with pytest.MonkeyPatch.context() as patch:
        return folder, call(patch, *LINE, "--out", folder)


def test_cells_have_their_figures(measured):
    folder, _ = measured
    cells = {cell.strategy: cell for cell in read_cells(folder)}
    assert set(cells) == {"vanilla", "sylvie-a bits=2", "PyG CSR", "PyG edge_index"}
    exact, late = cells["vanilla"], cells["sylvie-a bits=2"]
    for cell in (exact, late):
        assert (cell.graph, cell.model, cell.ranks, cell.rate) == (GRAPH, MODEL, 2, "loopback")
        assert len(cell.round_s) == cell.rounds == 2
        assert min(cell.round_s) <= cell.epoch_s <= max(cell.round_s)
        assert cell.messages_s > 0
        assert 0 <= cell.wait_s <= cell.epoch_s
        assert cell.wait_s == pytest.approx(max(cell.rank_wait_s), rel=0.5)
        assert 0 < cell.sum_wait_s <= cell.wait_s
        assert 0 < cell.compute_s < cell.epoch_s * 20
        assert max(cell.rank_thread_s) <= cell.processor_s * 1.5
        assert cell.peak_memory_bytes > 10**7
        assert (cell.wire_bytes, cell.wire_packets) == (None, None)
        assert (cell.nodes, cell.arcs, cell.features, cell.classes) == (2000, 40000, 16, 10)
        assert (sum(cell.rank_rows), sum(cell.rank_arcs), len(cell.rank_halo)) == (2000, 40000, 2)
        assert (cell.metric, cell.score_epochs) == ("accuracy", 30)
        assert 0 < cell.val <= 1
        assert cell.val_s > 0
    assert exact.compute_s == late.compute_s  # of one job
    # Two layers: the first is known ahead; vanilla sends mapped rows and sums of the last, sylvie its input, in 2 bits.
    graph = fg.load(GRAPH)
    sent = sum(covered_rows(graph, partition(graph, 2, "metis", seed=0)))
    assert sent < sum(exact.rank_halo)
    assert exact.bytes == sent * 10 * 4 * 2
    assert late.bytes == sum(late.rank_halo) * (16 * 2 // 8 + 4) * 2


def test_every_host_has_cores_of_its_own():
    assert [share_of([0, 1, 2, 3, 8], host, 2) for host in range(2)] == [[0, 1], [2, 3, 8]]
    assert [share_of([4, 5], host, 2) for host in range(2)] == [[4], [5]]
    assert [share_of([4, 5], host, 3) for host in range(3)] == [[4], [4], [5]]


def test_a_score_is_that_of_the_same_training(measured, tmp_path):
    cell = next(cell for cell in read_cells(measured[0]) if cell.strategy == "vanilla")
    how = {"epochs": 30, "eval_every": 1, "all_rows": True, "report": False, "checkpoint_every": 0}
    model = fg.nn.GraphSAGE(layers=2, hidden=16)
    run = fg.train(GRAPH, model=model, strategy="vanilla", parts=2, out=tmp_path / "run", **how)
    assert (cell.val, cell.best_epoch) == (run.result["val"], run.result["best_epoch"])
    assert cell.val > 0.7


def test_peers_are_measured_on_the_same_graph(measured):
    pytest.importorskip("torch_geometric", reason="the extra pyg")
    peers = [cell for cell in read_cells(measured[0]) if cell.is_peer]
    assert {(cell.nodes, cell.arcs, cell.ranks, cell.wait_s, cell.bytes) for cell in peers} == {(2000, 40000, 1, 0, 0)}
    assert all(cell.epoch_s > 0 and "torch_geometric" in cell.versions for cell in peers)


def test_what_fails_is_named_and_the_campaign_goes_on(measured):
    folder, code = measured
    assert code == 1
    (line,) = [json.loads(line) for line in (folder / "failed.jsonl").read_text().splitlines()]
    assert (line["strategy"], line["ranks"], line["rate"]) == ("gnnpipe-hybrid ways=3", 2, "loopback")
    assert "ways=3 does not divide 2 ranks" in line["error"]


def test_a_second_call_measures_nothing(measured, monkeypatch, capfd):
    folder, _ = measured
    before = (folder / "cells.jsonl").read_bytes()
    monkeypatch.setattr(module, "launch", None)
    monkeypatch.setattr(module, "measure_peer", None)
    bad = LINE.index("gnnpipe-hybrid ways=3")
    line = [*LINE[: bad - 1], *LINE[bad + 1 :]]
    assert call(monkeypatch, *line, "--out", folder) == 0
    assert (folder / "cells.jsonl").read_bytes() == before
    assert not (folder / "failed.jsonl").exists()
    shown = capfd.readouterr().out.splitlines()
    assert max(map(len, shown[:-1])) <= 80  # the last one names the folder
    assert any("vanilla" in line and "loopback" in line for line in shown)


def test_tables_and_page_hold_every_cell(measured):
    folder, _ = measured
    cells, failed = read_cells(folder), {"gnnpipe, there": "too | few <ranks>"}
    document = json.loads((folder / "cells.json").read_text())
    assert [cell["strategy"] for cell in document["cells"]] == [cell.strategy for cell in cells]
    table, html = markdown(cells, failed), page(cells, failed)
    for cell in cells:
        assert f"| {cell.strategy} |" in table
        assert f"<title>{cell.rate if not cell.is_peer else cell.strategy}" in html
    assert "pyg-lib" in table
    assert "too \\| few" in table
    assert "too | few &lt;ranks&gt;" in html
    assert html.count("<script") == 1  # that of charts
    assert "Exposed wait on 2 ranks" in html
    assert (folder / "table.md").read_text().count("\n|") == len(cells) + 2
    assert all(name in (folder / "bench.html").read_text() for name in ("vanilla", "sylvie-a bits=2", "PyG CSR"))


def test_long_names_fit_80_columns(measured, capsys):
    cells = [
        replace(cell, strategy="free " + "schedule=pipelined " * 9, rate="2.125gbit")
        for cell in read_cells(measured[0])
    ]
    print_cells(cells)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_half_line_is_dropped_and_damage_is_refused(measured, tmp_path):
    text = (measured[0] / "cells.jsonl").read_text()
    path = tmp_path / "cells.jsonl"
    path.write_text(text[:-100])
    assert len(read_cells(path)) == len(text.splitlines()) - 1
    book = Book(tmp_path)  # the next line begins on a line of its own
    book.add(next(iter(book.cells.values())))
    assert len(path.read_text().splitlines()) == len(text.splitlines())
    assert len(read_cells(tmp_path)) == len(text.splitlines()) - 1
    path.write_text(text.replace('"ranks": 2', '"ranks": 3', 1))
    with pytest.raises(Damaged, match="line 1"):
        read_cells(path)


def test_one_bad_strategy_does_not_cost_the_others(measured, tmp_path, monkeypatch):
    """A job that dies is tried again with each of its strategies alone."""
    like = next(cell for cell in read_cells(measured[0]) if cell.strategy == "vanilla")
    jobs = []

    def job(self, group, strategies, shards):
        jobs.append(list(strategies))
        if "pipegcn" in strategies:
            raise RankFailed("rank 1 was ended by SIGKILL")
        return [replace(like, strategy=name, score_epochs=0, all_rows=False) for name in strategies]

    monkeypatch.setattr(module._Campaign, "_job", job)
    matrix = Matrix(graph=(GRAPH,), model=(MODEL,), strategy=("vanilla", "none", "pipegcn", "sylvie-s"))
    book = carry_out(matrix, Settings(), tmp_path)
    assert jobs == [
        ["none", "vanilla", "pipegcn", "sylvie-s"],
        ["none", "vanilla"],
        ["none", "pipegcn"],
        ["none", "sylvie-s"],
    ]
    assert [cell.strategy for cell in read_cells(tmp_path)] == ["none", "vanilla", "sylvie-s"]
    assert list(book.failed.values()) == ["rank 1 was ended by SIGKILL"]


def test_a_job_has_at_most_six_strategies(measured, tmp_path, monkeypatch):
    like = next(cell for cell in read_cells(measured[0]) if cell.strategy == "vanilla")
    jobs = []

    def job(self, group, strategies, shards):
        jobs.append(list(strategies))
        return [replace(like, strategy=name, score_epochs=0, all_rows=False) for name in strategies]

    monkeypatch.setattr(module._Campaign, "_job", job)
    names = ("vanilla", "pipegcn", "pipegcn-f", "pipegcn-g", "pipegcn-gf", "sylvie-s", "sylvie-a")
    carry_out(Matrix(graph=(GRAPH,), model=(MODEL,), strategy=names), Settings(), tmp_path)
    assert jobs == [["none", *names[:5]], ["none", *names[5:]]]
    assert len(read_cells(tmp_path)) == 7  # none was not asked for


@pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts need root")
def test_links_are_measured_and_removed(tmp_path):
    pytest.importorskip("pyroute2")
    wide = "sage:layers=3,hidden=64"
    matrix = Matrix(graph=(GRAPH,), model=(wide,), strategy=("vanilla", "pipegcn"), rate=("20mbit",))
    carry_out(matrix, Settings(epochs=2, rounds=1), tmp_path)
    exact, late = read_cells(tmp_path)
    for cell in (exact, late):
        headers = 66 * cell.wire_packets
        assert cell.wire_bytes - headers == pytest.approx(cell.bytes + cell.weight_bytes, rel=0.05)
        assert cell.messages_s > (cell.bytes / 2 - 131072) * 8 / 20e6  # no link is faster, but for its burst
        assert cell.threads == 1
    assert exact.epoch_s > exact.messages_s / 2
    assert links_of(os.getpid()) == []
    assert {path.name for path in tmp_path.iterdir()} == {
        ".fullgraph.lock", "bench.html", "cells.json", "cells.jsonl", "table.md"
    }  # fmt: skip


@pytest.mark.cold
@pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts need root")
def test_a_campaign_that_is_asked_to_stop_leaves_nothing(tmp_path):
    pytest.importorskip("pyroute2")
    line = [sys.executable, "-m", "fullgraph", "bench", "--graph", GRAPH, "--rate", "20mbit", "--epochs", "100000"]
    streams = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([*line, "--out", tmp_path], **streams) as run:
        deadline = time.monotonic() + 60
        while len(ranks := ranks_of(run.pid)) < 2:
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        _, words = run.communicate(timeout=30)
    assert run.returncode == 128 + signal.SIGTERM
    assert "interrupted by SIGTERM: 0 cells in" in words
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks.values())
    assert links_of(run.pid) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts need root")
def test_links_of_a_killed_campaign_are_removed_by_the_next():
    pytest.importorskip("pyroute2")
    code = "import os; from fullgraph.lab.bench.hosts import Hosts; Hosts(2).__enter__(); os.kill(os.getpid(), 9)"
    with subprocess.Popen([sys.executable, "-c", code]) as killed:
        killed.wait(60)
    assert len(links_of(killed.pid)) == 2 + 2 + 1  # namespaces, their links, the bridge
    with hosts.Hosts(1):
        assert links_of(killed.pid) == []


def links_of(pid):
    names = [*os.listdir("/var/run/netns"), *os.listdir("/sys/class/net")]
    return [name for name in names if name.startswith(f"fg{pid}x")]


def test_a_recording_notes_sizes_and_forks_in_order():
    class Halved:
        def nbytes(self, peer, rows):
            return rows.numel() // 2

        def encode(self, peer, rows):
            return rows[: rows.numel() // 2]

        def decode(self, peer, wire):
            return wire

    def body(transport):
        recording, peer = Recording(transport), 1 - transport.rank
        fork = recording.fork()
        rows = torch.arange(8, dtype=torch.uint8)
        recording.begin(Key("unseen", 0), {peer: rows}, {peer: 8}).wait()
        recording.notes = []
        got = recording.begin(Key("a", 0), {peer: rows}, {peer: 4}, Halved()).wait()
        total = recording.all_reduce(Key("b", 0), torch.ones(3, dtype=torch.float64)).wait()
        fork.begin(Key("c", 0), {peer: rows}, {peer: 8}).wait()
        notes, recording.notes = recording.notes, None
        return got[peer], total, [(n.key.channel, n.fork, n.outgoing, n.incoming, n.nbytes) for n in notes]

    for rank, (got, total, notes) in enumerate(run_threads(2, body)):
        peer = 1 - rank
        assert got.tolist() == [0, 1, 2, 3]
        assert total.tolist() == [2.0] * 3
        assert notes == [("a", 0, {peer: 4}, {peer: 4}, 4), ("b", 0, {}, {}, 24), ("c", 1, {peer: 8}, {peer: 8}, 8)]


def test_a_host_that_does_not_exist_cannot_be_entered():
    with pytest.raises(FileNotFoundError):
        hosts.enter("fg0x0h0")


def test_the_page_of_files_has_every_field_of_a_cell():
    section = (DOCS / "files.md").read_text().split("\n## A campaign's folder\n")[1].split("\n## ")[0]
    told = re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)
    assert sorted(told) == sorted([field.name for field in fields(Cell)] + ["checksum"])
