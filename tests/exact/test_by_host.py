"""Hosts of several ranks: rows cross once per host, sums have terms of all its ranks; the same losses, bit-identical
resume.
"""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import fullgraph as fg
from fullgraph import nn, recipes
from fullgraph.codec import BFloat16, Full, LowBit, MinVariance
from fullgraph.errors import InputError
from fullgraph.exchange import Adaptive, Bounded, Drift, Pipelined, Smooth, Wire
from fullgraph.lab.bench.hosts import PORT, Hosts
from fullgraph.partition import Assignment, cut_parts
from fullgraph.partition.cover import covered_rows
from fullgraph.partition.layout import halo_rows
from fullgraph.placement import Partitioned
from fullgraph.placement.holding.adjacency import column_squares
from fullgraph.recipes import STRATEGIES
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import evaluate
from fullgraph.transport import Key, Recording, hosts_of
from fullgraph.transport import hosts as transport_hosts
from tests.support import CASES, assert_same, dense_trace, differing, resumed_epochs, train_trace, trainer_of
from tests.support.cases import random_graph
from tests.typed.oracle import CASES as TYPED
from tests.typed.oracle import assert_typed, typed_trace

SUMS = partial(Partitioned, cover=True, by_host=True)
ROWS = partial(Partitioned, by_host=True)
HOSTS = {"2 + 2": (0, 0, 2, 2), "1 + 3": (0, 1, 1, 1), "turns": (0, 1, 0, 1), "3 + 1 + 2": (0, 0, 0, 3, 4, 4)}
SPECS = {
    "gcn": nn.GCN(layers=3, hidden=12, dropout=0.5, input_dropout=True),
    "sage": nn.GraphSAGE(layers=3, hidden=12, dropout=0.5, input_dropout=True),
    "gin": nn.GIN(layers=3, hidden=12, dropout=0.3, input_dropout=True),
    "gat": nn.GAT(layers=3, hidden=12, heads=2, dropout=0.3),
}
STILL = replace(SPECS["sage"], dropout=0.0, input_dropout=False)
RELATIONS = {
    "rgcn": nn.RGCN(layers=2, hidden=12, dropout=0.4),
    "sage": nn.HeteroSAGE(layers=3, hidden=8, dropout=0.3),
    "rgat": nn.RGAT(layers=2, hidden=8, heads=2),
}


@pytest.fixture
def hosts(monkeypatch):
    """Set the host of each simulated rank; they share this process's."""

    def put(of_ranks):
        monkeypatch.setattr("fullgraph.placement.partitioned.placement.hosts_of", lambda *_: of_ranks)
        return len(of_ranks)

    return put


def crossing(transport, case, spec, placement, wire=None):
    part = cut_parts(*case(transport.size), transport.rank)
    view = placement(dtype=torch.float64).place(part, transport, wire or Wire(), spec.aggregation).train.view
    return view, view.crossing(1, drops=False)


@pytest.mark.sweep
@pytest.mark.parametrize("case", ["directed", "weighted", "empty parts", "no halo", "overfull"])
@pytest.mark.parametrize(("model", "placement"), [("gcn", SUMS), ("sage", ROWS), ("gat", ROWS)])
def test_the_backward_pass_is_the_transpose(case, model, placement, hosts):
    """<R x, y> = <x, R^T y>, summed over ranks."""

    def body(transport):
        view, rows = crossing(transport, CASES[case], SPECS[model], placement)
        view.clock.tick()
        draw = torch.Generator().manual_seed(transport.rank)
        x = torch.randn(rows.sources, 3, dtype=torch.float64, generator=draw).requires_grad_()
        y = torch.randn(len(rows.halo_ids), 3, dtype=torch.float64, generator=draw)
        channel = view.layer_channel(1, rows)
        passed, token = channel.begin(x)
        moved = channel.end(token)
        ((moved * y).sum() + (passed * 0).sum()).backward()
        pair = torch.stack([(moved.detach() * y).sum(), (x.detach() * x.grad).sum()])
        return transport.all_reduce(Key("law/pair", 0), pair).wait()

    left, right = run_threads(hosts(HOSTS["3 + 1 + 2"]), body)[0]
    torch.testing.assert_close(left, right)


@pytest.mark.sweep
@pytest.mark.parametrize("placement", [SUMS, ROWS], ids=["sums", "rows"])
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("of_ranks", HOSTS)
@pytest.mark.parametrize("case", CASES)
def test_all_ranks_equal_dense_algebra(case, of_ranks, model, placement, hosts):
    ranks = hosts(HOSTS[of_ranks])
    losses, grads = dense_trace(CASES[case](ranks)[0], SPECS[model])
    assert_same(run_threads(ranks, partial(train_trace, placement=placement), CASES[case], SPECS[model]), losses, grads)


@pytest.mark.parametrize(
    ("case", "of_ranks", "model", "placement"),
    [
        ("directed", "2 + 2", "gcn", SUMS),
        ("weighted", "1 + 3", "sage", SUMS),
        ("no halo", "1 + 3", "gin", SUMS),
        ("empty parts", "turns", "gcn", SUMS),
        ("overfull", "3 + 1 + 2", "sage", SUMS),
        ("undirected", "3 + 1 + 2", "gin", SUMS),
        ("sparse", "turns", "gcn", SUMS),
        ("directed", "1 + 3", "gat", SUMS),
        ("weighted", "3 + 1 + 2", "gcn", ROWS),
    ],
)
def test_ranks_equal_dense_algebra(case, of_ranks, model, placement, hosts):
    ranks = hosts(HOSTS[of_ranks])
    losses, grads = dense_trace(CASES[case](ranks)[0], SPECS[model])
    assert_same(run_threads(ranks, partial(train_trace, placement=placement), CASES[case], SPECS[model]), losses, grads)


@pytest.mark.parametrize("model", RELATIONS)
def test_relations_equal_dense_equations(model, hosts, monkeypatch):
    monkeypatch.setattr("fullgraph.placement.holding.live.WORTH", 1.0)
    spec, case = RELATIONS[model], next(iter(TYPED))
    found, _ = typed_trace(case, spec)
    placement = partial(SUMS, hops=spec.hops)
    traces = run_threads(hosts(HOSTS["1 + 3"]), partial(train_trace, placement=placement), TYPED[case], spec)
    assert_typed(traces, found, tolerance=1e-10)


def in_processes(transport, of_ranks):
    transport_hosts.network = lambda: of_ranks[transport.rank]  # what the ranks tell one another
    return train_trace(transport, CASES["weighted"], SPECS["gcn"], strategy=recipes.vanilla())


def test_processes_equal_dense_algebra():
    of_ranks = HOSTS["2 + 2"]
    traces = run_processes(4, in_processes, of_ranks)
    assert_same(traces, *dense_trace(CASES["weighted"](4)[0], SPECS["gcn"]))


@pytest.mark.parametrize("numbers", [(7, 7, 7), (7, 8, 9), (7, 8)])
def test_one_host_or_one_rank_per_host_change_nothing(numbers, monkeypatch):
    def body(transport):
        return hosts_of(transport, "setup")

    of_thread = iter(numbers)
    monkeypatch.setattr("fullgraph.transport.hosts.network", lambda: next(of_thread))
    assert run_threads(len(numbers), body) == [None] * len(numbers)


def test_hosts_are_named_after_their_first_rank(monkeypatch):
    def network():
        return {"rank 0": 9, "rank 1": 4, "rank 2": 9, "rank 3": 4}[threading.current_thread().name]

    monkeypatch.setattr("fullgraph.transport.hosts.network", network)
    assert run_threads(4, hosts_of, "setup") == [(0, 1, 0, 1)] * 4


@pytest.mark.parametrize("placement", [SUMS, ROWS], ids=["sums", "rows"])
def test_the_weights_of_all_readers_of_a_row_count(placement, hosts):
    """Squared weights by which readers multiply rows, over all rows that cross; codecs choose bits by them."""

    def body(transport):
        view, rows = crossing(transport, CASES["weighted"], SPECS["gcn"], placement)
        mine = torch.stack([view._squares(1, rows).sum(), column_squares(rows.matrices.outer).sum()])
        return transport.all_reduce(Key("squares", 0), mine).wait()

    of_senders, of_readers = run_threads(hosts(HOSTS["1 + 3"]), body)[0]
    torch.testing.assert_close(of_senders, of_readers)


# Late, lossy, live rows.

LATE = {
    "late": Wire(schedule=Pipelined()),
    "late and smoothed": Wire(schedule=Pipelined(2), smooth=Smooth(gamma=0.8, correct=True)),
    "bounded": Wire(schedule=Bounded(3)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("wire", LATE)
@pytest.mark.parametrize("narrow_first", [True, False])
@pytest.mark.parametrize("placement", [SUMS, ROWS], ids=["sums", "rows"])
def test_late_rows_are_as_late_as_without_hosts(wire, placement, narrow_first, hosts):
    """Rows are added up and handed on in the step in which they cross."""
    run = {"wire": LATE[wire], "narrow_first": narrow_first}
    ranks = hosts(HOSTS["1 + 3"])
    want, got = (
        run_threads(ranks, partial(train_trace, placement=kind, **run), CASES["directed"], STILL)
        for kind in (Partitioned, placement)
    )
    assert_same(got, want[0]["losses"], want[0]["grads"])


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_a_share_of_the_rows_is_the_same_with_hosts(model, hosts):
    """A row that was not drawn is absent for every reader, also in attention."""
    spec = replace(SPECS[model], dropout=0.0)
    run = {"wire": Wire(share=0.5), "narrow_first": False}
    ranks = hosts(HOSTS["1 + 3"])
    want, got = (
        run_threads(ranks, partial(train_trace, placement=kind, **run), CASES["directed"], spec)
        for kind in (Partitioned, ROWS)
    )
    assert_same(got, want[0]["losses"], want[0]["grads"])


def test_live_rows_cross_by_host(hosts):
    graph = random_graph(nodes=90, arcs=150, train=np.arange(90) % 30 == 3, directed=True)
    ranks = hosts(HOSTS["2 + 2"])

    def case(parts):
        return graph, Assignment(part=(np.arange(90) % parts).astype(np.int32), parts=parts, method="case", seed=0)

    spec = SPECS["gcn"]
    losses, grads = dense_trace(graph, spec)
    for placement in (SUMS, ROWS):
        live = partial(placement, hops=spec.hops)
        assert_same(run_threads(ranks, partial(train_trace, placement=live), case, spec), losses, grads)


CHANGED = Drift(bound=0.9, longest=2, gradients=True)
WIRES = {
    "exact": Wire(),
    "late, few bits, smoothed": Wire(schedule=Pipelined(2), codec=LowBit(2), smooth=Smooth(gamma=0.7), feedback=True),
    "bits by variance": Wire(codec=MinVariance(period=2), share=0.6, feedback=True),
    "late turns, skipped": Wire(schedule=Pipelined(2), turns=2, drift=CHANGED),
    "bits by degree and loss": Adaptive(tau=1, alpha=0.0, switch=True, feedback=True),
}


@pytest.mark.parametrize("wire", WIRES)
def test_resuming_anywhere_is_bit_identical(wire, hosts):
    config = TrainConfig(epochs=3, eval_every=3, checkpoint_every=1)
    run = CASES["directed"], STILL, config, WIRES[wire], False, False, SUMS
    for (losses, saved), *again in run_threads(hosts(HOSTS["2 + 2"]), resumed_epochs, *run, work=60.0):
        for epoch, (late_losses, late_saved) in enumerate(again):
            assert late_losses == losses[epoch:]
            assert all(differing(*pair) == [] for pair in zip(saved[epoch:], late_saved, strict=True))


# What crosses.


def bytes_between(transport, case, of_ranks, strategy, use):
    """Bytes of a step that this rank gives to the transport for ranks of other hosts, and for ranks of its own host."""
    recording = Recording(transport)
    trainer = trainer_of(recording, case, SPECS["sage"], TrainConfig(epochs=2), strategy=strategy)
    trainer.train_step()
    evaluate(trainer.model, trainer.shard, trainer.task)  # prepares what evaluation sends
    recording.notes = []
    if use == "rows":
        trainer.train_step()
    else:
        evaluate(trainer.model, trainer.shard, trainer.task)
    sent = {False: 0, True: 0}
    for note in recording.notes:
        if note.key.use == use and note.summed is None:
            for peer, nbytes in note.outgoing.items():
                sent[of_ranks[peer] == of_ranks[transport.rank]] += nbytes
    return sent[False], sent[True]


def by_hosts(assignment, of_ranks):
    """The assignment of nodes to hosts."""
    names = sorted(set(of_ranks))
    part = np.array([names.index(host) for host in of_ranks])[assignment.part]
    return Assignment(part=part.astype(np.int32), parts=len(names), method="case", seed=0)


@pytest.mark.sweep
@pytest.mark.parametrize("of_ranks", HOSTS)
@pytest.mark.parametrize("cover", [True, False])
@pytest.mark.parametrize("use", ["rows", "other"])
def test_bytes_between_hosts_are_those_of_one_rank_per_host(of_ranks, cover, use, hosts):
    """12 columns in the second layer, as many as classes in the last, and in training their gradients."""
    ranks = hosts(HOSTS[of_ranks])
    graph, assignment = CASES["directed"](ranks)
    strategy = recipes.vanilla(cover=cover, codec=BFloat16() if use == "rows" else Full())
    found = run_threads(ranks, bytes_between, CASES["directed"], HOSTS[of_ranks], strategy, use)
    between = by_hosts(assignment, HOSTS[of_ranks])
    rows = sum(covered_rows(graph, between)) if cover else halo_rows(graph, between)
    size = 2 * 2 if use == "rows" else 4
    assert sum(across for across, _ in found) == size * (12 + min(12, graph.num_classes)) * rows


def test_whose_rows_cross_by_host():
    assert recipes.vanilla().layout().by_host
    assert not recipes.vanilla(by_host=False).layout().by_host
    for name in ("pipegcn", "sylvie-s", "varco", "bns", "adaqp", "sancus", "cd-r", "free"):
        assert STRATEGIES.make(name).layout().by_host is False
        assert STRATEGIES.make(name, by_host="true").layout().by_host is True
    with pytest.raises(InputError, match="by_host is for halo rows"):
        STRATEGIES.make("free", placement="mixture", by_host="true")


# Hosts with their own network.


@pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts need root")
@pytest.mark.skipif(find_spec("pyroute2") is None, reason="emulated hosts need pyroute2")
@pytest.mark.timeout(300)
def test_a_run_on_two_hosts_equals_one_process(tmp_path):
    """`fullgraph train` on emulated hosts of one rank and of two, which learn of their hosts by themselves."""
    options = ["demo", "--parts", 3, "--epochs", 3, "--dtype", "float64", "--hidden", 16, "--dropout", 0]
    with Hosts(2) as made:
        ranks = []
        for rank, host in enumerate((0, 1, 1)):
            about = {"RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": rank // 2, "LOCAL_WORLD_SIZE": 1 + host}
            environ = {**about, "MASTER_ADDR": made.address(0), "MASTER_PORT": PORT, "OMP_NUM_THREADS": 1}
            command = [sys.executable, "-m", "fullgraph", "train", *options, "--out", tmp_path / "run"]
            texts = {name: str(value) for name, value in environ.items()}
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            ranks.append(made.start(host, command, environ=texts, **streams))
        told = [process.communicate(timeout=250)[0].decode() for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 3, told
    assert "between 2 hosts, a row crosses once" in told[0]
    model = nn.GraphSAGE(hidden=16, dropout=0.0)
    alone = fg.train("demo", parts=1, epochs=3, dtype="float64", model=model, out=tmp_path / "alone")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == pytest.approx([record.loss for record in alone.metrics], abs=1e-10)
