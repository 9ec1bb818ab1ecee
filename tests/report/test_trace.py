"""trace.json: rows, nesting, and arrows that join a send to its read, late by the strategy's lag."""

import json
import subprocess
import sys
from collections import Counter
from functools import partial

import pytest
import torch

import fullgraph as fg
from fullgraph import nn, recipes
from fullgraph.exchange import Skip
from fullgraph.report import Meter
from fullgraph.report.events import Slice, trace_events
from fullgraph.report.profile import read_profile
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.tracing import Layers, Tracer, layers_of
from tests.support import random_graph
from tests.support.bodies import trainer_of
from tests.support.cases import CASES

EPOCHS = 4
EPS = 2e-3  # microseconds: times are written to a thousandth of one


def body(transport, folder, strategy, spec, **options):
    config = TrainConfig(epochs=EPOCHS + 1, eval_every=2, trace=True, trace_epochs=EPOCHS, trace_skip=0, **options)
    trainer = trainer_of(transport, CASES["undirected"], spec, config, strategy=strategy)
    tracer = Tracer(trainer, folder)
    trainer.fit([tracer])
    tracer.finish()


def traced(folder, strategy, ranks=3, spec=None, run=run_threads, **options):
    spec = spec or nn.GraphSAGE(layers=3, hidden=8)
    run(ranks, partial(body, folder=folder, strategy=strategy, spec=spec, **options))
    return json.loads((folder / "trace.json").read_text())["traceEvents"]


def slices(events, kind=None):
    return [event for event in events if event["ph"] == "X" and kind in (None, event["cat"])]


def check_nesting(events, eps=EPS):
    """On every row, two slices are either disjoint or nested."""
    rows = {}
    for event in slices(events):
        rows.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"], event["name"])
        )
    for row in rows.values():
        open_ = []
        for start, end, name in sorted(row, key=lambda slice_: (slice_[0], -slice_[1])):
            while open_ and open_[-1][1] <= start + eps:
                open_.pop()
            assert not open_ or end <= open_[-1][1] + eps, f"{name} begins in {open_[-1][2]} and ends after it"
            open_.append((start, end, name))


def check_arrows(events):
    """Every arrow begins in a send and ends in a wait for the same message; return their lags."""
    by_place = {}
    for event in slices(events, "send") + slices(events, "wait"):
        by_place.setdefault((event["pid"], event["tid"]), []).append(event)

    def around(arrow, kind):
        found = [
            event
            for event in by_place[arrow["pid"], arrow["tid"]]
            if event["cat"] == kind and event["ts"] - EPS <= arrow["ts"] <= event["ts"] + event["dur"] + EPS
        ]
        return found

    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts
    assert starts.keys() == ends.keys()
    late = Counter()
    for number, start in starts.items():
        end = ends[number]
        sends, waits = around(start, "send"), around(end, "wait")
        joined = [(s, w) for s in sends for w in waits if s["args"]["message"] == w["args"]["message"]]
        assert joined, (start, end)
        send, wait = joined[0]
        assert end["pid"] in send["args"]["ranks"]
        assert end["ts"] >= start["ts"]
        assert wait["args"]["epoch"] - send["args"]["epoch"] == end["args"]["late"]
        late[end["args"]["late"]] += 1
    return late


STRATEGIES = {
    "vanilla": (recipes.vanilla(), {0}),
    "pipegcn": (recipes.pipegcn(), {1}),
    "two steps": (recipes.pipegcn(lag=2), {2}),
    "skip": (recipes.free(schedule=Skip(2)), {0, 1}),
    "sylvie-a": (recipes.sylvie_a(), {1}),
    "mixgcn": (recipes.mixgcn(blocks=2), {0}),
    "gnnpipe": (recipes.gnnpipe(), {0}),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_arrows_join_sends_to_reads(tmp_path, name):
    strategy, expected = STRATEGIES[name]
    events = traced(tmp_path, strategy)
    check_nesting(events)
    assert set(check_arrows(events)) == expected


def test_every_read_of_a_message_sent_in_the_trace_has_its_arrows(tmp_path):
    events = traced(tmp_path, recipes.pipegcn())
    sends = {(e["args"]["message"], peer) for e in slices(events, "send") for peer in e["args"]["ranks"]}
    reads = [e for e in slices(events, "wait") if any((e["args"]["message"], e["pid"]) == send for send in sends)]
    wanted = sum(
        e["pid"] in s["args"]["ranks"] and s["args"]["message"] == e["args"]["message"]
        for e in reads
        for s in slices(events, "send")
    )
    assert sum(check_arrows(events).values()) == wanted > 0


def test_what_a_rank_does_is_all_there(tmp_path):
    events = traced(tmp_path, recipes.sylvie_s())
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [names[rank].split(" on ")[0] for rank in range(3)] == ["rank 0", "rank 1", "rank 2"]
    for rank in range(3):
        kinds = Counter(event["cat"] for event in slices(events) if event["pid"] == rank)
        assert kinds["step"] == kinds["sum"] == kinds["update"] == kinds["forward_backward"] == EPOCHS
        assert kinds["forward"] == kinds["backward"] == 3 * EPOCHS
        assert kinds["pack"] == kinds["unpack"] == kinds["send"] == 2 * 2 * EPOCHS  # two layers send, both ways
        assert kinds["encode"] == kinds["decode"] == 2 * kinds["send"]  # two peers
    layers = {event["name"] for event in slices(events, "backward")}
    assert layers == {f"backward layer {number}" for number in range(3)}


@pytest.mark.parametrize("name", ["pipegcn", "gnnpipe"])
def test_processes_have_rows_for_the_transport(tmp_path, name):
    """A pipeline's hops have separate lanes, which work at the same time as others."""
    strategy, expected = STRATEGIES[name]
    events = traced(tmp_path, strategy, ranks=2, run=run_processes)
    check_nesting(events)
    assert set(check_arrows(events)) == expected
    rows = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert rows >= {(rank, row) for rank in range(2) for row in ("compute", "sender", "receiver")}
    tid = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for kind, thread in (("encode", "sender"), ("decode", "receiver")):
        assert {tid[e["pid"], e["tid"]].split()[0] for e in slices(events, kind)} == {thread}


def test_layers_that_are_computed_again_lie_within_the_backward_pass(tmp_path):
    events = traced(tmp_path, recipes.vanilla(), checkpoint_layers=True)
    check_nesting(events)
    assert len(slices(events, "forward")) > len(slices(events, "backward"))


def test_layers_of_a_users_module_are_told_of():
    """Their second argument is a tensor, which has a method `chunk`."""

    class Conv(torch.nn.Linear):
        def forward(self, x, edges):
            return super().forward(x)

    model, meter = torch.nn.ModuleDict({"one": Conv(2, 2), "two": Conv(2, 2)}), Meter()
    layers = Layers(model, meter)
    edges = torch.zeros(2, 0)
    for _ in range(2):
        meter.open_step()
        model["two"](model["one"](torch.ones(1, 2), edges), edges).sum().backward()
        seen = [(span.kind, span.about) for span in meter.close_step().spans]
        assert seen == [("forward", "one"), ("forward", "two"), ("backward", "two"), ("backward", "one")]
    layers.remove()
    model["one"](torch.ones(1, 2), edges)
    assert meter.tally.spans == []


def test_a_model_of_no_chain_is_taken_apart_by_its_children():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ModuleList([torch.nn.Linear(2, 2)]))
    assert list(layers_of(model)) == ["0", "1 0"]


def test_clocks_of_several_machines_meet_in_their_sums():
    def one(shift):
        return [
            Slice("step", "compute", shift, shift + 4, 0, "", "", -1, ()),
            Slice("sum", "compute", shift + 3, shift + 4, 0, "", "", -1, ()),
        ]

    events = slices(trace_events([one(0.0), one(1000.0)], ["a", "b"])["traceEvents"], "sum")
    assert [event["ts"] for event in events] == [3e6, 3e6]


def test_from_the_command_line_with_torchs_own_profile(tmp_path):
    command = [sys.executable, "-m", "fullgraph", "train", "sbm:nodes=300", "--parts", "2", "--epochs", "5", "--trace",
               "--trace-epochs", "2", "--trace-torch", "--out", str(tmp_path / "run")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["epoch"] for event in slices(events, "step")} == {2, 3}
    check_nesting(events)
    assert set(check_arrows(events)) == {0}
    for rank in range(2):
        profile = json.loads((tmp_path / "run" / "torch_trace" / f"rank-{rank}.json").read_text())
        assert any("mm" in str(event.get("name")) for event in profile["traceEvents"])


@pytest.mark.gpu
def test_on_a_gpu_times_are_those_of_streams(tmp_path):
    options = {"parts": 2, "strategy": "sylvie-a", "device": "cuda", "epochs": 6, "trace": True}
    run = fg.train(random_graph(nodes=2000, arcs=20_000), out=tmp_path / "run", **options)
    events = json.loads((run.folder / "trace.json").read_text())["traceEvents"]
    check_nesting(events, eps=5.0)  # events of a stream are half a microsecond apart, or the same
    assert {event["cat"] for event in slices(events)} >= {"forward", "backward", "pack", "encode", "decode", "wait"}
    for rank in read_profile(run.folder).ranks:
        assert rank.peak_device_bytes > 0
        assert all(bin.step_s >= bin.pack_s + bin.wait_s + bin.sum_s for bin in rank.bins)


def test_torchs_profile_is_no_trace_by_itself(tmp_path):
    from fullgraph.errors import InputError

    with pytest.raises(InputError, match="--trace-torch needs --trace"):
        TrainConfig(trace_torch=True)
