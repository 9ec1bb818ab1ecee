"""The promises of a run in case of failure: each test failed before its promise was kept (docs/reliability.md)."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import time

import numpy as np
import pytest

from faults import ports
from faults.command import (
    Command,
    difference,
    epochs_done,
    finish,
    leftovers,
    one_line,
    options,
    ranks_on,
    send,
    small_graph,
    wait_for,
)
from tests.support import children_of

ENDLESS = ["train", "g.npz", "--epochs", 10**6, "--out", "run"]


@pytest.fixture
def here(tmp_path):
    small_graph(tmp_path)
    return tmp_path


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".fullgraph.lock"
    }


# 1. Nobody can connect.


def test_nothing_listens_beyond_loopback_and_nothing_there_is_a_store(here):
    """torch's rendezvous store, which unpickles whatever it receives, cannot be reached anywhere."""
    with Command(*ENDLESS, *options("pipegcn"), cwd=here) as command:
        wait_for(lambda: epochs_done(here / "run") > 2, f"epochs: {command.err}")
        found = ports.listeners([command.process.pid, *children_of(command.process.pid)])
        assert found
        assert [address for address, _ in found if address not in ports.LOOPBACK] == []
        assert [port for _, port in found if _answers_as_a_store(port)] == []


def _answers_as_a_store(port):
    """Whether a torch store listens: it answers the question whether a key exists (validation number, CHECK, 1 key)."""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as wire:
        wire.settimeout(0.5)
        name = b"init/"
        wire.sendall(b"\x00" + struct.pack("<I", 0x3C85F7CE) + b"\x06" + struct.pack("<QQ", 1, len(name)) + name)
        try:
            return len(wire.recv(8)) > 0
        except (TimeoutError, ConnectionError):
            return False


# 2. The user's own files survive every mistake.


@pytest.mark.parametrize("name", ["predictions", "checkpoints", "metrics.jsonl", "result.json", "tensorboard"])
def test_a_run_that_is_refused_leaves_the_users_files(here, name):
    finish("partition", "g.npz", "--parts", 2, "--out", "shards", cwd=here)
    path = here / name
    path.write_text("mine") if path.suffix else (path.mkdir(), (path / "mine.txt").write_text("mine"))
    before = contents(here)
    _, err = finish("train", "shards", "--out", ".", "--metric", "roc_auc", cwd=here, code=2)
    assert name in one_line(err)
    assert contents(here) == before


def test_shards_beside_a_run_that_fails_stay(here):
    finish("partition", "g.npz", "--parts", 2, "--out", "shards", cwd=here)
    before = contents(here)
    _, err = finish("train", "shards", "--out", ".", "--metric", "roc_auc", cwd=here, code=2)
    assert "roc_auc" in one_line(err)
    assert contents(here) == before


def test_a_resume_that_fails_removes_nothing(here):
    finish("train", "g.npz", "--epochs", 3, "--checkpoint-every", 0, "--out", "run", cwd=here)
    victim = here / "run" / "shards" / "part-0" / "y.npy"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    before = contents(here)
    finish("train", "--resume", "run", "--epochs", 5, cwd=here, code=2)
    assert contents(here) == before


@pytest.mark.parametrize("sink", ["/dev/full", "closed pipe"])
def test_words_that_nobody_can_read_do_not_end_a_run(here, sink):
    read, write = os.pipe()
    os.close(read)
    stdout = os.open("/dev/full", os.O_WRONLY) if sink == "/dev/full" else write
    command = ["-m", "fullgraph", "train", "g.npz", "--parts", "2", "--epochs", "12", "--out", "run"]
    subprocess.run([os.sys.executable, *command], cwd=here, stdout=stdout, stderr=subprocess.DEVNULL, timeout=100)
    for handle in {stdout, write}:
        os.close(handle)
    assert json.loads((here / "run" / "result.json").read_text())["epochs"] == 12


# 3. No hang: a stopped rank is named within the timeout, in any phase.


@pytest.mark.parametrize("phase", ["training", "checkpointing"])
def test_a_stopped_rank_is_named_in_time(here, phase):
    every = ["--checkpoint-every", 1] if phase == "checkpointing" else []
    with Command(*ENDLESS, *options("vanilla"), "--timeout", 5, *every, cwd=here) as command:
        wait_for(lambda: epochs_done(here / "run") > 2, f"epochs: {command.err}")
        if phase == "checkpointing":
            staged = here / "run" / "checkpoints"
            wait_for(lambda: list(staged.glob(".fullgraph-*")), "a checkpoint on its way")
        victim = command.ranks()[1]
        send(victim, signal.SIGSTOP)
        command.finish(20)
        assert command.code == 1
        assert re.search(rf"rank 1 on \S+ \(pid {victim}\) gives no sign of life", one_line(command.err))


def test_ranks_that_never_come_are_waited_for_no_longer_than_the_timeout(here):
    job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    start = time.monotonic()
    _, err = finish("train", "g.npz", "--timeout", 3, "--out", "run", cwd=here, code=1, env=job)
    assert time.monotonic() - start < 25
    assert re.search(r"rank 0 on \S+ did not meet the other ranks at 127.0.0.1 within 3 s", one_line(err))


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# 4. One run per folder.


def test_a_folder_has_one_run_at_a_time(here):
    with Command(*ENDLESS, cwd=here) as first:
        wait_for(lambda: epochs_done(here / "run") > 0, f"epochs: {first.err}")
        for arguments in (["train", "g.npz", "--out", "run"], ["train", "--resume", "run"]):
            _, err = finish(*arguments, cwd=here, code=2)
            assert f"in use by process {first.process.pid} on" in one_line(err)


# 5. Ranks die with their launcher.


def test_ranks_die_with_their_launcher(here):
    with Command(*ENDLESS, *options("vanilla"), cwd=here) as command:
        wait_for(lambda: epochs_done(here / "run") > 0, f"epochs: {command.err}")
        ranks = command.ranks()
        assert len(ranks) == 2
        send(command.process.pid, signal.SIGKILL)
        command.finish()
        wait_for(lambda: not ranks_on(here / "run"), f"ranks live on: {ranks}", 5)
    finish("train", "--resume", "run", "--epochs", epochs_done(here / "run") + 2, cwd=here)
    assert leftovers(here / "run") == []


# 6. Edited files are refused, and a damaged checkpoint falls back to the one before.


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 12 epochs on two ranks, with checkpoints of epochs 8 and 12."""
    folder = tmp_path_factory.mktemp("finished")
    small_graph(folder)
    finish("train", "g.npz", "--epochs", 12, "--out", "run", *options("pipegcn"), cwd=folder)
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    subprocess.run(["cp", "-r", finished / "run", finished / "g.npz", tmp_path], check=True)
    return tmp_path


@pytest.mark.parametrize("name", ["shared.safetensors", "rank-1.safetensors", "state.json"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(copied, finished, name, tmp_path):
    victim = copied / "run" / "checkpoints" / "epoch-00000012" / name
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 16
    victim.write_bytes(data)
    _, err = finish("train", "--resume", "run", "--epochs", 16, cwd=copied)
    assert re.search(r"fullgraph: note: \S*epoch-00000012/\S+ ", err), err
    finish("train", "g.npz", "--epochs", 16, "--out", "whole", *options("pipegcn"), cwd=copied)
    assert not difference(copied / "whole", copied / "run")


def test_no_whole_checkpoint_is_an_error_that_removes_nothing(copied):
    for path in (copied / "run" / "checkpoints").glob("*/shared.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    before = contents(copied)
    _, err = finish("train", "--resume", "run", "--epochs", 16, cwd=copied, code=2)
    assert "no checkpoint in run/checkpoints is whole" in err
    before.pop("run/config.json"), (after := contents(copied)).pop("run/config.json")
    assert after == before


def test_an_edited_model_is_refused(copied):
    path = copied / "run" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    _, err = finish("predict", "run", "--out", "p", cwd=copied, code=2)
    assert "model.safetensors is damaged" in one_line(err)


@pytest.mark.parametrize("change", ["doubled", "edited", "missing"])
def test_metrics_are_checked_where_they_are_read_and_never_trained_from(copied, change):
    path = copied / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    good = "".join(lines)
    lines[5:6] = {"doubled": [lines[5]] * 2, "edited": [lines[5].replace(": 1", ": 2", 1)], "missing": []}[change]
    path.write_text("".join(lines))
    _, err = finish("compare", "run", "--target", 0.5, cwd=copied, code=2)
    assert re.search(r"metrics.jsonl (line \d|has \d+ whole lines)", one_line(err))
    finish("train", "--resume", "run", cwd=copied)
    assert path.read_text() == good
    assert json.loads((copied / "run" / "result.json").read_text())["epochs"] == 12


# 8. A loss that is not finite stops the run.


def test_a_loss_that_is_not_finite_stops_the_run(here):
    with np.load(here / "g.npz") as archive:
        arrays = dict(archive)
    np.savez(here / "large.npz", **{**arrays, "x": arrays["x"] * 1e38})
    _, err = finish("train", "large.npz", "--epochs", 20, "--out", "run", cwd=here, code=2)
    assert re.search(r"the loss became (nan|inf) in epoch \d+: features reach .* --features standard", one_line(err))
    assert not (here / "run").exists()


def test_statistics_that_are_not_finite_stop_the_run(here):
    """Batch norm divides by an infinite variance: the loss stays finite, but no prediction would."""
    with np.load(here / "g.npz") as archive:
        arrays = dict(archive)
    arrays["x"][0, 0] = 1e38
    np.savez(here / "large.npz", **arrays)
    once = ["--epochs", 1, "--norm", "batch", "--checkpoint-every", 0]
    _, err = finish("train", "large.npz", *once, "--out", "run", cwd=here, code=2)
    assert re.search(r"weights are not finite after epoch 1: features reach 1e\+38", one_line(err))
    assert not (here / "run" / "result.json").exists()


def test_the_last_good_checkpoint_stays(here):
    slow = ["--optimizer", "sgd", "--lr", "30", "--checkpoint-every", 1, "--norm", "none", "--dropout", "0"]
    _, err = finish("train", "g.npz", "--epochs", 200, "--out", "run", *slow, cwd=here, code=2)
    assert re.search(r"(the loss became|weights are not finite after) .*the learning rate 30 is high", one_line(err))
    assert list((here / "run" / "checkpoints").glob("epoch-*"))
    for path in (here / "run").rglob("*.json*"):
        assert not re.search(r"\b(NaN|Infinity)\b", path.read_text()), path


# 10. Signals say what they left, files have one mode, and a name cannot steer a terminal.


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_writes_a_checkpoint_and_says_so(here, number, code):
    with Command(*ENDLESS, *options("sylvie-a"), "--checkpoint-every", 0, cwd=here) as command:
        wait_for(lambda: epochs_done(here / "run") > 3, f"epochs: {command.err}")
        command.process.send_signal(number)
        assert command.finish(30).code == code, command.err
        line = one_line(command.err)
    epoch = int(re.search(r"a checkpoint of epoch (\d+) was written; to go on: fullgraph train --resume run", line)[1])
    finish("train", "--resume", "run", "--epochs", epoch + 3, cwd=here)
    arguments = ["train", "g.npz", "--out", "whole", *options("sylvie-a"), "--checkpoint-every", 0]
    finish(*arguments, "--epochs", epoch + 3, cwd=here)
    assert not difference(here / "whole", here / "run")


def test_on_signal_stop_writes_none(here):
    with Command(*ENDLESS, "--checkpoint-every", 0, "--on-signal", "stop", cwd=here) as command:
        wait_for(lambda: epochs_done(here / "run") > 0, f"epochs: {command.err}")
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(30).code == 143
        assert "no checkpoint was added" in one_line(command.err)
    assert not list((here / "run").glob("checkpoints/*"))


def test_max_restarts_resumes_by_itself(here):
    arguments = ["train", "g.npz", "--epochs", 60, *options("pipegcn"), "--checkpoint-every", 1, "--eval-every", 1]
    with Command(*arguments, "--out", "run", "--max-restarts", 3, cwd=here) as command:
        for kill in range(2):
            ranks = {}
            wait_for(lambda k=kill: epochs_done(here / "run") > 3 + 10 * k and len(command.ranks()) == 2, "epochs")
            ranks = command.ranks()
            send(ranks[kill], signal.SIGKILL)
            wait_for(lambda r=ranks: not set(r.values()) & set(command.ranks().values()), "a restart")
        assert command.finish().code == 0, command.err
        notes = re.findall(
            r"note: rank \d \(pid \d+\) was ended by SIGKILL; .*resuming.* (\d) restarts left", command.err
        )
        assert notes == ["3", "2"], command.err
    finish(*arguments, "--out", "whole", cwd=here)
    assert not difference(here / "whole", here / "run")


def test_all_files_of_a_run_have_the_same_mode(finished):
    """Except the lock, which only its owner may open: whoever can open a file can hold its lock."""
    files = {path for path in (finished / "run").rglob("*") if path.is_file()}
    modes = {path.stat().st_mode & 0o777 for path in files - {finished / "run" / ".fullgraph.lock"}}
    assert (finished / "run" / ".fullgraph.lock").stat().st_mode & 0o777 == 0o600
    assert len(modes) == 1, modes


def test_names_cannot_steer_a_terminal(here):
    with np.load(here / "g.npz") as archive:
        arrays = dict(archive)
    del arrays["edge_index"]
    np.savez(here / "bad.npz", **arrays, **{"\x1b[31mred": np.ones(1)})
    _, err = finish("train", "bad.npz", cwd=here, code=2)
    assert "\x1b" not in err
    assert "\\x1b[31mred" in one_line(err)


@pytest.mark.cold
def test_compare_takes_folders_with_any_name(finished, tmp_path):
    odd = tmp_path / "a[" / "b]"
    odd.parent.mkdir()
    subprocess.run(["cp", "-r", finished / "run", odd], check=True)
    out, _ = finish("compare", odd, cwd=tmp_path, env={"COLUMNS": "300"})
    assert "pipegcn" in out
    assert "a[/b]" in out


def test_a_run_says_what_its_checkpoints_cost(finished):
    result = json.loads((finished / "run" / "result.json").read_text())
    assert 0 < result["checkpoint_s"] < 5


def test_two_lines_are_not_needed_for_a_wrong_interface(here):
    _, err = finish(
        "train", "g.npz", "--parts", 2, "--out", "run", cwd=here, code=2, env={"GLOO_SOCKET_IFNAME": "nowhere0"}
    )
    assert "GLOO_SOCKET_IFNAME" in one_line(err)
    assert not (here / "run").exists()


def test_few_descriptors_are_one_line(here):
    limited = ["sh", "-c", 'ulimit -n 24 && exec "$@"', "sh"]
    _, err = finish("train", "g.npz", "--parts", 2, "--out", "run", cwd=here, code=2, prefix=limited)
    assert "ulimit -n" in one_line(err)


def test_few_addresses_are_one_line(here):
    limited = ["sh", "-c", 'ulimit -v 1100000 && exec "$@"', "sh"]
    _, err = finish("train", "g.npz", "--parts", 2, "--out", "run", cwd=here, code=2, prefix=limited)
    assert "ulimit -v" in one_line(err)


def test_a_wrong_environment_is_one_line(here):
    for name in ("WORLD_SIZE", "RANK"):
        _, err = finish("train", "g.npz", "--out", "run", cwd=here, code=2, env={"WORLD_SIZE": "2", name: "abc"})
        assert f"{name}=abc" in one_line(err)
