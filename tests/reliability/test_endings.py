"""Runs ended from outside, or by a user's code: each end is reported, and none looks like success."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fullgraph as fg
from faults.command import Command, complaints, epochs_done, leftovers, options, ranks_on, send, small_graph, wait_for
from fullgraph.errors import InputError
from fullgraph.preparing import new_folder
from fullgraph.run import Run
from fullgraph.testing import run_threads
from fullgraph.train.checkpoint import Checkpoints
from fullgraph.train.config import TrainConfig
from fullgraph.train.fork_server import PR_GET_CHILD_SUBREAPER, adopting
from tests.support import CASES, random_graph, trainer_of

ENDLESS = ["train", "g.npz", "--epochs", 10**6, "--out", "run", *options("vanilla"), "--checkpoint-every", 0]
KEPT = r"a checkpoint of epoch (\d+) was written; to go on: fullgraph train --resume run"
NET = """
import os, signal, sys
from torch_geometric.nn import GCNConv
from torch import nn

class Net(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.one, self.calls = GCNConv(in_channels, out_channels), 0
        {constructor}

    def forward(self, x, edge_index):
        self.calls += 1
        if self.training and self.calls > 20:
            {forward}
        return self.one(x, edge_index)
"""
PARTITIONER = """
import sys
from dataclasses import dataclass

@dataclass(frozen=True)
class Parts:
    def assign(self, graph, parts, *, seed):
        sys.exit(0)
"""


@pytest.fixture
def here(tmp_path):
    small_graph(tmp_path)
    return tmp_path


def endless(here, **how):
    command = Command(*ENDLESS, cwd=here, **how)
    wait_for(lambda: epochs_done(here / "run") > 3 or command.process.poll() is not None, f"epochs: {command.err}")
    return command


def first_line(err):
    """The first line of the error; below it are the lines of the user's code."""
    assert "fullgraph/src" not in err
    return complaints(err)[0]


def one_line(err):
    lines = complaints(err)
    assert len(lines) == 1, err
    return lines[0]


def checkpoint_in(here, line):
    epoch = int(re.search(KEPT, line)[1])
    assert (here / "run" / "checkpoints" / f"epoch-{epoch:08d}" / "state.json").exists()


# 1. Signals to processes other than the launcher, and repeated signals.


def test_a_closed_terminal_leaves_a_checkpoint(here):
    """SIGHUP reaches the launcher, its ranks and the fork server; nobody can read their output."""
    with endless(here, terminal=True) as command:
        wait_for(lambda: len(ranks_on(here / "run")) >= 2, "ranks")
        command.terminal.close()
        assert command.finish(60).code == 128 + signal.SIGHUP
    assert list((here / "run" / "checkpoints").glob("epoch-*/state.json"))
    assert not ranks_on(here / "run")
    assert leftovers(here / "run") == []


@pytest.mark.cold  # commands that tests fork are in other groups than their ranks
@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGHUP, 1), (signal.SIGHUP, 3), (signal.SIGTERM, 2), (signal.SIGINT, 1)]
)
def test_a_signal_to_the_whole_group_leaves_a_checkpoint(here, number, times):
    """A shell that loses its terminal sends SIGHUP, and the kernel sends it again; `timeout` sends SIGTERM twice."""
    with endless(here, session=True) as command:
        for _ in range(times):
            os.killpg(command.process.pid, number)
            time.sleep(0.7 if number == signal.SIGHUP else 0)
            if command.process.poll() is not None:
                break
        assert command.finish(60).code == 128 + number, command.err
        line = one_line(command.err)
    assert f"interrupted by {number.name}" in line
    checkpoint_in(here, line)
    assert not ranks_on(here / "run")


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_to_one_rank_stops_all_of_them(here, rank):
    with endless(here) as command:
        send(command.ranks()[rank], signal.SIGTERM)
        assert command.finish(60).code == 128 + signal.SIGTERM, command.err
        line = one_line(command.err)
    assert "interrupted by SIGTERM" in line
    checkpoint_in(here, line)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_terminal_sends_to_a_rank_is_the_launchers_alone(here, number):
    with endless(here) as command:
        send(command.ranks()[1], number)
        done = epochs_done(here / "run")
        wait_for(lambda: epochs_done(here / "run") > done + 5 or command.process.poll() is not None, "epochs")
        assert command.process.poll() is None, command.err


def test_a_second_signal_stops_at_once(here):
    with endless(here) as command:
        send(command.ranks()[1], signal.SIGSTOP)  # so that no epoch ends
        command.process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        assert command.process.poll() is None
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(10).code == 128 + signal.SIGTERM
        assert "no checkpoint was added" in one_line(command.err)


def test_a_rank_that_a_real_time_signal_ended_is_one_line(here):
    with endless(here) as command:
        victim = command.ranks()[1]
        send(victim, signal.SIGRTMIN + 5)
        assert command.finish(30).code == 1
        assert f"rank 1 (pid {victim}) was ended by SIGRTMIN+5" in one_line(command.err)


# 2. If the parent process ignores SIGCHLD, the kernel does not report how a process ended.


def test_a_command_whose_parent_ignores_sigchld_knows_how_ranks_end(here):
    with endless(here, prefix=["sh", "-c", 'trap "" CHLD; exec "$@"', "sh"]) as command:
        victim = command.ranks()[1]
        send(victim, signal.SIGKILL)
        assert command.finish(30).code == 1, command.err
        assert f"rank 1 (pid {victim}) was ended by SIGKILL" in one_line(command.err)


SCRIPT = """
import signal
import fullgraph as fg
from fullgraph.errors import RankFailed
from tests.support import random_graph

if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    graph = random_graph(nodes=80, arcs=400)
    run = fg.train(graph, model="gcn", parts=2, epochs=3, threads=1, out="good")
    good = run.result["epochs"]
    try:
        fg.train(graph, model="net.py:Net", parts=2, epochs=60, threads=1, out="bad")
    except RankFailed as error:
        print(good, error, sep=chr(10))
"""


def test_a_process_that_ignores_sigchld_learns_from_the_ranks_own_words(here):
    (here / "net.py").write_text(NET.format(constructor="", forward="os.kill(os.getpid(), signal.SIGKILL)"))
    (here / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=here, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    *_, good, bad = done.stdout.splitlines()
    assert good == "3"
    assert re.search(r"rank \d \(pid \d+\) ended without an exit report.*ignores SIGCHLD", bad)
    assert not (here / "bad" / "result.json").exists()


# 3. A user's code that ends the process.


def own(here, constructor="", forward="pass"):
    (here / "net.py").write_text(NET.format(constructor=constructor or "pass", forward=forward))
    return ["train", "g.npz", "--parts", 2, "--model", "net.py:Net", "--epochs", 60, "--threads", 1, "--out", "run"]


@pytest.mark.parametrize("code", ["sys.exit()", "sys.exit(0)", "raise SystemExit(5)"])
def test_sys_exit_in_forward_is_an_error_that_names_its_line(here, code):
    with Command(*own(here, forward=code), cwd=here) as command:
        assert command.finish().code == 2, command.err
        assert re.search(
            r"net\.py:\d+: SystemExit\(\w*\): code that a run calls must not end the process", first_line(command.err)
        )
    assert not (here / "run" / "result.json").exists()


def test_a_process_that_ends_in_forward_is_a_failure(here):
    with Command(*own(here, forward="os._exit(0)"), cwd=here) as command:
        assert command.finish().code == 1, command.err
        assert re.search(
            r"rank \d \(pid \d+\) ended with status 0 before its work was done.*os\._exit", one_line(command.err)
        )
    assert not (here / "run" / "result.json").exists()


@pytest.mark.parametrize("where", ["constructor", "partitioner"])
def test_sys_exit_before_a_run_is_an_error(here, where):
    arguments = own(here, constructor="sys.exit(0)" if where == "constructor" else "")
    (here / "parts.py").write_text(PARTITIONER)
    if where == "partitioner":
        arguments += ["--partitioner", "parts.py:Parts"]
    with Command(*arguments, cwd=here) as command:
        assert command.finish().code == 2, command.err
        assert re.search(r"(net|parts)\.py:\d+: SystemExit\(0\): code that a run calls", first_line(command.err))
    assert not (here / "run").exists()


def test_sys_exit_of_a_partitioner_does_not_end_a_script(here, monkeypatch):
    monkeypatch.chdir(here)
    (here / "parts.py").write_text(PARTITIONER)
    with pytest.raises(InputError, match=r"parts\.py:\d+: SystemExit\(0\): code that a run calls"):
        fg.train(random_graph(nodes=60, arcs=240), parts=2, partitioner="parts.py:Parts", out="run")


# 4. Checkpoints: a rank that lacks processor time at any moment has no effect.


def saved_slowly(transport, folder):
    spec, config = fg.nn.GraphSAGE(layers=2, hidden=8), TrainConfig(epochs=4, checkpoint_every=1)
    trainer = trainer_of(transport, CASES["undirected"], spec, config)
    checkpoints = Checkpoints(folder, transport, 1)
    trainer.fit([checkpoints])
    checkpoints.finish()
    return sorted(path.name for path in folder.iterdir()) if transport.rank == 0 else []


@pytest.mark.parametrize("victim", [1, 2])
def test_a_rank_that_sleeps_after_its_file_has_its_name_costs_nothing(tmp_path, monkeypatch, victim):
    def slowly(call):
        def wrapped(source, target, **folders):
            call(source, target, **folders)
            if Path(target).name.startswith(f"rank-{victim}."):
                time.sleep(0.5)

        return wrapped

    monkeypatch.setattr(os, "replace", slowly(os.replace))
    monkeypatch.setattr(os, "rename", slowly(os.rename))
    names = ["epoch-00000003", "epoch-00000004"]
    assert run_threads(3, saved_slowly, tmp_path / "checkpoints")[0] == names
    for name in names:
        files = {path.name for path in (tmp_path / "checkpoints" / name).iterdir()}
        assert files == {"shared.safetensors", "state.json", *(f"rank-{rank}.safetensors" for rank in range(3))}


# 5. Threads: the last thread that needs a setting of the whole process restores it.


def adopts():
    flag = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(flag))
    return flag.value


def test_a_thread_that_has_its_ranks_leaves_the_flag_to_one_that_waits_for_its_own():
    before, inside, leave = adopts(), threading.Event(), threading.Event()

    def first():
        with adopting():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(30)
    with adopting():
        leave.set()
        thread.join()
        assert adopts() == 1
    assert adopts() == before


def test_runs_of_two_threads_have_folders_of_their_own():
    """If no folder is named, both begin in the same second."""
    names = []
    meeting = threading.Barrier(2)

    def name():
        meeting.wait(30)
        names.append(new_folder(Run(), None))
        meeting.wait(30)  # the number of a thread that has ended may be given anew

    threads = [threading.Thread(target=name) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names[0] != names[1]
