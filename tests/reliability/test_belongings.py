"""No user file is removed, overwritten or waited for, and another person's run cannot control a terminal."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys

import pytest

from faults import belongings
from faults.command import Command, finish, one_line, small_graph
from fullgraph.errors import InputError
from fullgraph.storage import FolderLock, write_document, write_whole

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="another user needs root")
TINY = ["--epochs", 3, "--hidden", 8, "--threads", 1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on one rank, and a folder of shards."""
    folder = tmp_path_factory.mktemp("made")
    small_graph(folder)
    finish("train", "g.npz", "--out", "run", *TINY, cwd=folder)
    finish("partition", "g.npz", "--out", "cut", cwd=folder)
    return folder


@pytest.fixture
def here(made, tmp_path):
    shutil.copytree(made, tmp_path / "here")
    return tmp_path / "here"


def mine(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    return lambda: [path.read_text() for path in paths] == ["mine"] * len(paths)


# Names that look like fullgraph's own.


@pytest.mark.parametrize("command", ["train", "refused", "predict", "partition"])
def test_names_that_look_staged_are_the_users(here, command):
    (here / "out").mkdir()
    notes = here / ("out" if command in ("train", "refused", "predict") else ".")
    (notes / "notes").touch()
    names = [".notes.old", ".bashrc.old", ".a.deadbeef.new", ".out.old"]
    kept = mine(*(notes / name for name in names), notes / ".folder.old" / "diary.txt")
    line = {
        "train": ["train", "g.npz", "--out", "out", *TINY],
        "refused": ["train", "g.npz", "--out", "out", "--metric", "roc_auc"],
        "predict": ["predict", "run", "--out", "out"],
        "partition": ["partition", "g.npz", "--out", "out"],
    }[command]
    finish(*line, cwd=here, code=2 if command == "refused" else 0)
    assert kept()
    assert not (notes / "bashrc").exists()


def test_the_temporary_folder_is_not_ours(here, tmp_path):
    """Nothing in it is removed, and a pipe there does not delay a run."""
    kept = mine(tmp_path / "tmp" / "fullgraph-ranks-results-of-march" / "diary.txt")
    os.mkfifo(tmp_path / "tmp" / "fullgraph-ranks-x")
    environ = {"TMPDIR": str(tmp_path / "tmp")}
    with Command("train", "g.npz", "--out", "out", *TINY, cwd=here, env=environ) as command:
        assert command.finish(60).code == 0, command.err
    assert kept()
    assert len(list((tmp_path / "tmp").iterdir())) == 2


# Folders that fullgraph wrote to before.


def test_shards_that_a_user_kept_of_a_finished_run_stay(here):
    for path in (here / "run").iterdir():
        if path.name not in ("shards", ".fullgraph.lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = sorted((here / "run").rglob("*"))
    _, err = finish("train", "g.npz", "--out", "run", *TINY, cwd=here, code=2)
    assert "holds shards" in one_line(err)
    assert sorted((here / "run").rglob("*")) == before
    finish("train", "run/shards", "--out", "run", *TINY, cwd=here)
    assert set(before) <= set((here / "run").rglob("*"))


def test_a_users_file_among_shards_stays(here):
    kept = mine(here / "cut" / "NOTES.txt", here / "cut" / "part-0" / "notes.txt")
    _, err = finish("partition", "g.npz", "--out", "cut", cwd=here, code=2)
    assert "NOTES.txt" in one_line(err)
    assert kept()


def test_a_users_file_in_a_checkpoint_stays(here):
    finish("train", "g.npz", "--out", "out", "--checkpoint-every", 1, *TINY, cwd=here)
    kept = mine(here / "out" / "checkpoints" / "epoch-00000002" / "notes.txt")
    finish("train", "--resume", "out", "--epochs", 6, cwd=here)
    assert kept()
    assert sorted(path.name for path in (here / "out" / "checkpoints").iterdir())[-2:] == [
        "epoch-00000005", "epoch-00000006"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("page.html", ["report", "run", "--out", "page.html"]),
        ("report.html", ["report", "run", "run"]),
        ("run/report.html", ["report", "run"]),
        ("c.csv", ["compare", "run", "--out", "c.csv"]),
        ("c.json", ["compare", "run", "--out", "c.json"]),
        ("cluster.toml", ["probe", "--parts", 1]),
        ("out/classes.npy", ["predict", "run", "--out", "out"]),
        ("run/predictions/predictions.csv", ["predict", "run", "--format", "csv"]),
        ("out/table.md", ["bench", "--graph", belongings.TINY, "--out", "out"]),
        ("manifest.json", ["partition", "g.npz", "--out", "."]),
    ],
)
def test_a_file_that_we_did_not_write_is_refused(here, name, line):
    (here / name).unlink(missing_ok=True)
    kept = mine(here / name)
    before = sorted((here / name).parent.iterdir())
    _, err = finish(*line, cwd=here, code=2)
    assert (here / name).name in one_line(err)
    assert kept()
    assert sorted((here / name).parent.iterdir()) == before


@pytest.mark.parametrize("line", [
    ["report", "run", "--out", "page.html"], ["compare", "run", "--out", "c.csv"], ["probe", "--parts", 1],
    ["compare", "run", "--out", "c.json"], ["predict", "run", "--out", "out"], ["partition", "g.npz", "--out", "cut"],
])  # fmt: skip
def test_what_we_wrote_is_written_again(here, line):
    finish(*line, cwd=here)
    finish(*line, cwd=here)


# Somebody else's run.


def edited(path, **changes):
    tree = json.loads(path.read_text())
    del tree["checksum"]
    path.unlink()
    write_document(path, {**tree, **changes})


@pytest.mark.parametrize("name", ["report.html", "predictions", "metrics.jsonl", "checkpoints"])
def test_a_link_in_a_run_is_not_written_through(here, name):
    kept = mine(here / "precious", here / "valuables" / "classes.npy")
    path = here / "run" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(here / "valuables" if name in ("predictions", "checkpoints") else here / "precious")
    for line in (["report", "run"], ["predict", "run"], ["train", "--resume", "run", "--epochs", 5]):
        with Command(*line, cwd=here) as command:
            if command.finish().code:  # a report may find that what it reads through a link is not the run's
                assert "symbolic link" in one_line(command.err) or line[0] == "report"
            else:
                assert line[0] == "report"
        assert kept()
        assert len(list((here / "valuables").iterdir())) == 1


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl you@evil"


def test_no_line_of_a_page_is_of_somebody_elses_choice(here):
    for name in ("config.json", "result.json"):
        tree = json.loads((here / "run" / name).read_text())
        edited(
            here / "run" / name,
            graph=f"\n{KEY}\n" if name == "config.json" else {**tree["graph"], "name": f"\n{KEY}\n"},
        )
    finish("report", "run", "--out", "page.html", cwd=here)
    text = (here / "page.html").read_text()
    assert KEY in text
    assert KEY not in text.splitlines()


def test_somebody_elses_result_cannot_steer_a_terminal(here):
    edited(
        here / "run" / "result.json", strategy="\x1b[31mred\x1b]0;title\x07", metric="\x1b[2Jgone", model="a\nb\x9b1m"
    )
    for line in (["compare", "run"], ["compare", "run", "--csv"], ["compare", "run", "run", "--json"]):
        out, err = finish(*line, cwd=here, env={"COLUMNS": "200"})
        assert all(c.isprintable() or c == "\n" for c in out + err), ascii(out)
    out, _ = finish("compare", "run", "--csv", cwd=here)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[0]["strategy"] == r"\x1b[31mred\x1b]0;title\x07"
    assert len(rows) == 1


# The lock of a folder.


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "text", "empty", "hard link"])
def test_a_lock_that_is_not_ours_is_refused_and_not_changed(tmp_path, kind):
    lock, precious = tmp_path / ".fullgraph.lock", tmp_path / "precious"
    precious.write_text("mine")
    {
        "link": lambda: lock.symlink_to(precious),
        "dangling": lambda: lock.symlink_to("nowhere"),
        "pipe": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
        "text": lambda: lock.write_text("mine"),
        "empty": lock.touch,
        "hard link": lambda: os.link(precious, lock),
    }[kind]()
    before = os.lstat(lock)
    with pytest.raises(InputError, match=r"\.fullgraph\.lock is (not a fullgraph lock|a symbolic link)"):
        FolderLock(tmp_path)
    after = os.lstat(lock)
    assert (before.st_mode, before.st_ino, before.st_size) == (after.st_mode, after.st_ino, after.st_size)
    assert precious.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


HOLD = """
import fcntl, os, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    handle = os.open(sys.argv[1], os.O_RDONLY)
except PermissionError:
    sys.exit(3)
fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


@NEEDS_ROOT
def test_nobody_else_can_hold_a_folder(tmp_path):
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(0o755)
    (tmp_path / ".fullgraph.lock").write_text('{"pid": 1, "host": "h", "since": "s"}')  # of an older version
    (tmp_path / ".fullgraph.lock").chmod(0o644)
    FolderLock(tmp_path).close()
    done = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path / ".fullgraph.lock")], capture_output=True)
    assert done.returncode == 3, done.stderr


def test_two_that_take_a_folder_while_its_lock_is_removed(tmp_path):
    """A process that opened the file which its holder then removed must not take it for the lock."""
    first = FolderLock(tmp_path)
    first.remove()
    with FolderLock(tmp_path), pytest.raises(InputError, match="in use"):
        FolderLock(tmp_path)
    first.close()


def test_a_text_is_written_over_our_own_alone(tmp_path):
    write_whole(tmp_path / "a", "mark 1", "mark")
    write_whole(tmp_path / "a", "mark 2", "mark")
    assert (tmp_path / "a").read_text() == "mark 2"
    (tmp_path / "a").write_text("mine")
    with pytest.raises(InputError, match="exists and is not of this command"):
        write_whole(tmp_path / "a", "mark 3", "mark")
    assert (tmp_path / "a").read_text() == "mine"


# A sample of the campaign.


@NEEDS_ROOT
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [0, 8, 11, 14, 36])
def test_belongings(number, tmp_path_factory):
    shared = tmp_path_factory.getbasetemp() / "belongings"
    shared.mkdir(exist_ok=True)
    assert belongings.trial(number, shared)
