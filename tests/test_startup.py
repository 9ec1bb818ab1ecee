"""A start makes no needless imports, copies or sorts. No test here looks at a clock."""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fullgraph import axes
from fullgraph.data import csr
from fullgraph.data.arrays import over_blocks
from fullgraph.errors import RankFailed
from fullgraph.partition import cut, partition, store
from fullgraph.partition.layout import lay_out
from fullgraph.reference import libraries_in
from fullgraph.train import fork_server
from fullgraph.train.fork_server import ForkServer
from fullgraph.train.optimizer import OPTIMIZERS
from tests.support import random_graph

HEAVY = ("torch", "numpy", "scipy", "numba", "rich", "sympy", "torch._dynamo")


def imported_by(code):
    """Which heavy packages a fresh interpreter has imported after `code`."""
    told = f"\nimport sys\nprint('IMPORTED', *[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + told], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("IMPORTED")[1].split()


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["predict", "--help"], ["bench", "--help"]])
def test_help_imports_nothing_large(arguments):
    code = f"""
import sys
sys.argv = ["fullgraph", *{arguments!r}]
from fullgraph.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    assert imported_by(code) == []


def test_the_package_imports_nothing_large_until_it_is_asked():
    assert imported_by("import fullgraph") == []
    assert "torch" in imported_by("import fullgraph; fullgraph.nn.GraphSAGE")


def test_train_is_the_function_whoever_imports_its_folder():
    code = (
        "import fullgraph.train.config, fullgraph; fullgraph.Run; assert fullgraph.train.__module__ == 'fullgraph.api'"
    )
    imported_by(code)


def test_ranks_are_on_their_way_before_the_launcher_imports_torch():
    code = """
import sys
from fullgraph import cli
class Early(BaseException): pass
def start(device, more):
    raise Early(device, *more)
cli.ForkServer = start
sys.argv = ["fullgraph", "train", "demo", "--device", "cuda", "--model", "torch_geometric.nn:GCN"]
try:
    cli.main()
except Early as early:
    assert early.args == ("cuda", "torch_geometric.nn")
"""
    assert imported_by(code) == []


def test_reading_and_cutting_needs_no_torch():
    code = """
from fullgraph.data import load
from fullgraph.partition import partition
partition(load("sbm:nodes=64"), 2, method="contiguous")
"""
    assert not set(imported_by(code)) & {"torch", "numba", "sympy"}


def test_names_of_the_tables_need_no_torch():
    code = """
from fullgraph.axes import CODECS, METRICS, MODELS, PARTITIONERS, RATES, SCHEDULES, STRATEGIES
assert "gat" in MODELS and len(STRATEGIES) > 10
"""
    assert imported_by(code) == []


def test_every_name_of_the_tables_stands_for_something():
    tables = [axis for axis in vars(axes).values() if isinstance(axis, axes.Axis)]
    assert len(tables) == 14
    for axis in tables:
        for name, kind in axis.items():
            assert axis.names[name] == f"{kind.__module__}:{kind.__qualname__}"


def test_an_optimizer_does_not_import_a_compiler():
    code = """
import torch
from fullgraph.train.optimizer import OPTIMIZERS
for kind in OPTIMIZERS.values():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = kind().build([weight], lr=0.1, weight_decay=0.01)
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    optimizer.load_state_dict(optimizer.state_dict())
"""
    assert not set(imported_by(code)) & {"torch._dynamo", "sympy"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_as_torchs_does(name):
    torchs = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": partial(torch.optim.SGD, momentum=0.9)}
    ends = []
    for kind in (OPTIMIZERS[name]().build, torchs[name]):
        weights = [torch.nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3)), torch.nn.Parameter(torch.ones(3))]
        optimizer = kind(weights, lr=0.1, weight_decay=0.01)
        for step in range(5):
            (torch.tanh(weights[0]) * weights[1] * (step + 1)).sum().backward()
            optimizer.step()
            assert not any(weight.grad_fn for weight in weights)
            optimizer.zero_grad(set_to_none=True)
            assert weights[0].grad is None
        ends.append([weight.detach() for weight in weights])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


# A single part is the graph's own arrays.


@pytest.mark.parametrize("weighted", [False, True])
def test_one_part_copies_neither_arcs_nor_features(weighted):
    graph = random_graph(nodes=50, arcs=300, weighted=weighted)
    assignment = partition(graph, 1)
    layout = lay_out(graph, assignment)
    (_, arcs), *more = cut.arcs_of(graph, layout, 0)
    assert not more
    assert np.shares_memory(arcs["indices"], graph.indices)
    assert np.shares_memory(cut.structure_of(graph, layout, 0)["indptr"], graph.indptr)
    assert not weighted or np.shares_memory(arcs["weight"], graph.edge_weight)
    scaler = store.fit_features(graph, "none")
    blocks = list(store._blocks(graph, assignment, scaler, graph.num_features))
    assert [rank for rank, _ in blocks] == [0]
    assert all(np.shares_memory(block, graph.x) for _, block in blocks)


def test_one_part_lays_out_without_a_look_at_the_arcs():
    graph = random_graph(nodes=50, arcs=300)

    class Blind:
        num_nodes, indptr = graph.num_nodes, graph.indptr

    layout = lay_out(Blind(), partition(graph, 1))
    assert [len(ids) for ids in layout.halo] == [0]
    assert layout.recv_counts.tolist() == [[0]]
    assert layout.cut_arcs.tolist() == [0]


# Arcs in order are not sorted again.


def in_order(edges, weight, by):
    key = {"target": (edges[0], edges[1]), "source": (edges[1], edges[0]), "none": None}[by]
    order = np.random.default_rng(1).permutation(edges.shape[1]) if key is None else np.lexsort(key)
    return edges[:, order], weight[order]


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
@pytest.mark.parametrize("by", ["target", "source", "none"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16, ">i8"])
def test_arcs_in_any_order_give_the_same_rows(monkeypatch, block, by, dtype):
    monkeypatch.setattr(csr, "over_blocks", partial(over_blocks, block=block))
    rng = np.random.default_rng(block)
    edges = rng.integers(0, 20, (2, 60)).astype(dtype)  # with duplicates, loops, and nodes that nothing reaches
    weight = np.arange(60, dtype=np.float32)
    edges, weight = in_order(edges, weight, by)
    found = csr.survey(edges)
    assert (found.low, found.high) == (edges.min(), edges.max())
    assert (found.by_target, found.by_source) == (by == "target", by == "source")
    expected = csr.csr_by_target(edges[0], edges[1], 23, weight)
    for name, one, other in zip(
        ("indptr", "indices", "weight"), csr.csr_by_target(*edges, 23, weight, found), expected, strict=True
    ):
        if name != "weight":
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
    got = csr.csr_by_target(*edges, 23, weight, found)
    matrices = [sp.csr_array((w.astype(np.float64), i, p), shape=(23, 23)).toarray() for p, i, w in (got, expected)]
    np.testing.assert_array_equal(*matrices)
    bare = csr.csr_by_target(*edges, 23, None, found)
    np.testing.assert_array_equal(bare[1], expected[1])
    assert bare[2] is None


def test_arcs_in_order_meet_no_sort(monkeypatch):
    monkeypatch.setattr(csr.sp, "coo_array", None)
    edges = np.array([[0, 3, 1, 1], [0, 0, 2, 2]])
    indptr, indices, _ = csr.csr_by_target(*edges, 4, None, csr.survey(edges))
    assert (indptr.tolist(), indices.tolist()) == ([0, 2, 2, 4, 4], [0, 3, 1, 1])
    monkeypatch.setattr(csr.sp, "csr_array", None)
    csr.csr_by_target(*edges, 4, None, csr.survey(edges))


# Ranks come from a process that imports for them.

WORKER = """
import json, os, signal, sys
IMPORTED_IN = os.getpid()
def warm_up(device):
    global DEVICE
    DEVICE = device
def main(classes):
    if sys.argv[1] == "wait":
        os.write(int(os.environ["TOLD"]), b"here")
        signal.pause()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    told = [os.getppid(), IMPORTED_IN, DEVICE, sys.argv, os.environ["RANK"], signal.SIGTERM in mask]
    told.append(getattr(sys.modules.get("large_library"), "imported_in", None))
    os.write(int(os.environ["TOLD"]), json.dumps(told).encode())
    os._exit(int(sys.argv[1]))
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "fake_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(fork_server, "WORKER", "fake_worker")


def borne(source, rank, *arguments):
    read, write = os.pipe()
    try:
        return source.spawn(f"fullgraph-{rank}", arguments, {"RANK": str(rank)}, ("TOLD", write)), read
    finally:
        os.close(write)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a rank is started by itself")
def test_ranks_share_an_import_and_are_children_of_the_launcher(worker):
    with ForkServer("cuda") as source:
        ranks = [borne(source, rank, str(40 + rank)) for rank in range(3)]
    for number, (process, read) in enumerate(ranks):
        told = b""
        while part := os.read(read, 4096):
            told += part
        os.close(read)
        process.wait()
        parent, imported_in, device, argv, rank, held_back, _ = json.loads(told)
        assert (parent, device, rank, held_back) == (os.getpid(), "cuda", str(number), True)
        assert imported_in != process.pid
        assert argv == ["fake_worker", str(40 + number)]
        assert process.returncode == 40 + number


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a rank is started by itself")
def test_a_rank_that_is_killed_says_so(worker):
    with ForkServer() as source:
        process, read = borne(source, 0, "wait")
    assert os.read(read, 4) == b"here"
    process.kill()
    process.wait()
    os.close(read)
    assert process.returncode == -signal.SIGKILL


def test_a_nursery_that_nobody_needed_leaves_nothing(worker):
    with ForkServer() as source:
        pass
    assert source._process.returncode == -signal.SIGKILL


def test_an_import_that_fails_is_one_line(worker, tmp_path, capfd):
    (tmp_path / "fake_worker.py").write_text("raise SystemExit(7)")
    with ForkServer() as source, pytest.raises(RankFailed, match="ended with status 7"):
        borne(source, 0, "0")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a rank is started by itself")
def test_an_import_that_never_ends_is_not_waited_for(worker, tmp_path, monkeypatch):
    (tmp_path / "fake_worker.py").write_text("while True: pass")
    monkeypatch.setattr(fork_server, "IMPORT_S", 1.0)
    with ForkServer() as source, pytest.raises(RankFailed, match="took over 1 s"):
        borne(source, 0, "0")
    assert source._process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a rank is started by itself")
def test_a_library_of_the_users_file_is_imported_once_before_the_fork(worker, tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text("import torch_geometric.nn as gnn")
    (tmp_path / "other.py").write_text("import torch")
    named = {"model": f"{tmp_path}/net.py:Net", "callbacks": [f"{tmp_path}/other.py:Call", "missing.py:Thing"]}
    assert libraries_in(named) == ["torch_geometric.nn"]
    assert libraries_in({"model": "torch_geometric.nn:GCN"}) == ["torch_geometric.nn"]
    assert libraries_in({"model": f"{tmp_path}/other.py:Net", "out": "torch_geometric_runs"}) == []
    (tmp_path / "large_library.py").write_text("import os\nimported_in = os.getpid()")
    with ForkServer(more=["large_library", "no_such_library"]) as source:
        process, read = borne(source, 0, "0")
    told = json.loads(os.read(read, 4096))
    os.close(read)
    process.wait()
    assert told[-1] == source._process.pid
