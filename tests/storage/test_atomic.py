"""Files and folders exist completely or not at all; only a dead writer's files are swept away."""

import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys

import pytest

from fullgraph.errors import InputError
from fullgraph.storage import atomic, discard, sweep, whole_file, whole_folder, workspace, write_whole


class Recorder:
    """The order of the calls that make a file durable, each with its names."""

    def __init__(self, monkeypatch):
        self.calls, self.names = [], {}
        for name in ("fsync", "rename", "replace"):
            monkeypatch.setattr(os, name, self.wrap(name, getattr(os, name)))
        opened = os.open
        monkeypatch.setattr(os, "open", lambda path, *a, **k: self.note(opened(path, *a, **k), path))
        swap = atomic._swap_at_once
        monkeypatch.setattr(atomic, "_swap_at_once", lambda a, b: self.calls.append(("swap", b.name)) or swap(a, b))

    def note(self, handle, path):
        self.names[handle] = os.path.basename(path)
        return handle

    def wrap(self, name, call):
        def recorded(*args, **folders):
            what = self.names.get(args[0], "?") if name == "fsync" else os.path.basename(args[1])
            if not folders:  # otherwise a workspace moves what it removes
                self.calls.append((name, what))
            return call(*args, **folders)

        return recorded


def anything(path):
    return ""


def test_a_file_is_synced_then_named_then_its_folder_synced(tmp_path, monkeypatch):
    recorder = Recorder(monkeypatch)
    write_whole(tmp_path / "a.json", "{}")
    assert recorder.calls == [("fsync", "new"), ("replace", "a.json"), ("fsync", tmp_path.name)]
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_device_is_never_replaced(tmp_path):
    """A link in a run's folder may point at one, and root may rename a file over it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(InputError, match="is a device, pipe or socket"):
            write_whole(tmp_path / name, "text")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_text_may_hold_what_no_encoding_has(tmp_path):
    """For example, the name of a folder in bytes that are not UTF-8."""
    write_whole(tmp_path / "page.html", "a \udcc3 b")
    assert (tmp_path / "page.html").read_text() == "a \\udcc3 b"


@pytest.mark.parametrize("there", [False, True])
def test_every_file_of_a_folder_is_synced_before_its_name(tmp_path, monkeypatch, there):
    if there:
        (tmp_path / "f" / "old").mkdir(parents=True)
    recorder = Recorder(monkeypatch)
    with whole_folder(tmp_path / "f", anything) as building:
        (building / "part-0").mkdir()
        (building / "part-0" / "x.npy").write_text("x")
        (building / "b").write_text("b")
    names = [what for call, what in recorder.calls if call == "fsync"]
    assert set(names[:3]) == {"x.npy", "b", "part-0"}
    assert names[3:] == ["new", tmp_path.name]
    assert recorder.calls[4] == (("swap" if there else "replace"), "f")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == ["b", "part-0"]


def _umask():
    old = os.umask(0)
    os.umask(old)
    return old


@pytest.mark.parametrize("make", [whole_file, lambda path: whole_folder(path, anything)])
def test_a_failure_leaves_what_was_there(tmp_path, make):
    write_whole(tmp_path / "old", "old") if make is whole_file else (tmp_path / "old").mkdir()
    with pytest.raises(KeyboardInterrupt), make(tmp_path / "old"):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


KILLED = """
import os, signal, sys
from pathlib import Path
from fullgraph.storage import whole_file, whole_folder
make = {"file": whole_file, "folder": lambda path: whole_folder(path, lambda _: "")}[sys.argv[1]]
with make(Path(sys.argv[2])) as staged:
    print("staged", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_only_what_a_dead_writer_left_is_swept(tmp_path, kind):
    command = [sys.executable, "-c", KILLED, kind, str(tmp_path / "thing")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "staged\n"
        sweep(tmp_path)
        assert len(list(tmp_path.iterdir())) == 1, "a living writer's work was swept"
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        sweep(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_names_that_only_look_staged_are_left_alone(tmp_path):
    token = "0123456789abcdef" * 2
    names = [".bashrc", ".notes.old", ".a.12345678.new", "fullgraph-ranks-x", f".fullgraph-{token}"]
    for name in names:
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("state", ["before", "between", "after"])
def test_a_swap_in_two_steps_survives_a_kill_between_them(tmp_path, state, monkeypatch):
    """If the system cannot swap names in one step, the next sweep completes or undoes an interrupted swap."""
    monkeypatch.setattr(atomic, "_swap_at_once", lambda one, other: False)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "old").touch()
    renames = 0
    rename = os.rename

    def killed(source, target, **how):
        nonlocal renames
        renames += 1
        if renames == {"before": 1, "between": 2, "after": 99}[state]:
            os._exit(9)
        rename(source, target, **how)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.rename = killed
            with whole_folder(tmp_path / "f", anything) as building:
                (building / "new").touch()
            code = 0
        finally:  # the child must never continue as the test's own process
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if state == "after" else 9)
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["new" if state == "after" else "old"]


def test_what_is_removed_leaves_its_name_at_once(tmp_path, monkeypatch):
    (tmp_path / "epoch-1").mkdir()
    (tmp_path / "epoch-1" / "state.json").touch()
    monkeypatch.setattr(os, "unlink", lambda *a, **k: os._exit(9))
    if os.fork() == 0:
        discard(tmp_path / "epoch-1", anything)
        os._exit(0)
    _, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == 9
    assert not (tmp_path / "epoch-1").exists()
    monkeypatch.undo()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_deep_folder_is_removed_with_few_descriptors(tmp_path):
    """Removal holds one folder open at a time: rmtree holds one per level, and left workspaces behind."""
    deep = tmp_path / "epoch-1"
    deep.joinpath(*"abcdefghijklmnop").mkdir(parents=True)
    (deep / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "kept").touch()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(1000) if not os.path.exists(f"/proc/self/fd/{number}")]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[3] + 1, limits[1]))  # four numbers are free
    try:
        assert discard(deep, anything)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_what_holds_something_else_is_not_removed(tmp_path):
    (tmp_path / "epoch-1").mkdir()
    (tmp_path / "epoch-1" / "notes.txt").touch()
    found = lambda path: ", ".join(file.name for file in path.iterdir())  # noqa: E731
    assert not discard(tmp_path / "epoch-1", found)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "notes.txt").touch()
    with pytest.raises(InputError, match=r"f holds notes.txt"), whole_folder(tmp_path / "f", found):
        pass
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "epoch-1", "epoch-1/notes.txt", "f", "f/notes.txt"
    ]  # fmt: skip


KILLS = ["mkdir", "open", "flock", "pwrite", "listdir", "unlink", "rmdir"]


@pytest.mark.parametrize("call", KILLS)
def test_a_kill_at_any_call_leaves_what_the_next_sweep_removes(tmp_path, call, monkeypatch):
    for when in range(8):
        if os.fork() == 0:
            calls = 0
            module = fcntl if call == "flock" else os
            real = getattr(module, call)

            def counted(*a, real=real, when=when, **k):
                nonlocal calls
                calls += 1
                out = real(*a, **k)
                if calls == when + 1:
                    os._exit(9)  # just after it took effect
                return out

            setattr(module, call, counted)
            write_whole(tmp_path / "a", "a")
            os._exit(0)
        os.wait()
        sweep(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} <= {"a"}, (call, when)


def test_ranks_share_a_workspace_and_its_owner_removes_it(tmp_path):
    token = "0123456789abcdef" * 2
    with workspace(tmp_path, token) as work:
        with workspace(tmp_path, token, owner=False) as same:
            assert same == work
            (same / "rank-1").touch()
        sweep(tmp_path)
        assert (work / "rank-1").exists()
    assert list(tmp_path.iterdir()) == []
