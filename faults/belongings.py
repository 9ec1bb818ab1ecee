"""A user's own files under every name that fullgraph uses or could use: no command changes one or hangs on one.

Each trial is a command in a folder of such files, with a shared temporary folder of such files of two users, as root
or as another user. It needs root and `setpriv`.
"""

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from faults.command import SMALL, Command, leftovers, small_graph, wait_for
from faults.trials import Campaign

OTHER = 65534
AS_OTHER = (
    "setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",  # allows reading Python anywhere, and no writing
)  # fmt: skip
TOKEN = "0123456789abcdef" * 2
TINY = "sbm:nodes=60,edges=200,features=4"
OF_A_RUN = (
    "config.json", "metrics.jsonl", "result.json", "model.safetensors", "checkpoints", "predictions", "shards",
    "tensorboard", "report.html", "profile.json", "trace.json", "torch_trace",
)  # fmt: skip
OF_COMMANDS = (
    "classes.npy", "probabilities.npy", "values.npy", "embeddings.npy", "pairs.npy", "scores.npy", "ids.npy",
    "predictions.csv", "embeddings.csv", "predictions.parquet", "cells.jsonl", "failed.jsonl", "cells.json", "table.md",
    "bench.html", "page.html", "c.csv", "c.json", "cluster.toml", "rates.json", "manifest.json", "assignment.npy",
    "part-0/x.npy", "NOTES.txt",
)  # fmt: skip
LIKE_STAGED = (
    ".notes.old", ".bashrc.old", ".run.old", ".report.html.old", ".shards.old", ".page.html.0123abcd.new",
    ".config.json.deadbeef.new", ".epoch-00000001.deadbeef.new", ".fullgraph", "new", "old", "gone", "scratch",
    "fullgraph-ranks-x", "fullgraph-ranks-results", "fullgraph-plan-1", "fullgraph-doctor-1", f".fullgraph-{TOKEN}",
    f".fullgraph-{TOKEN[::-1]}", ".fullgraph-ranks", ".fullgraph.lock.old",
)  # fmt: skip
KINDS = ("file", "empty", "folder", "empty folder", "marked", "marked by link", "marked by pipe", "link", "pipe")

Known = dict[Path, tuple[object, ...]]


def put(path: Path, kind: str, user: int) -> None:
    """Create an object of the user at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        return
    if kind in ("file", "empty"):
        path.write_text("mine\n" if kind == "file" else "")
    elif kind == "link":
        path.symlink_to(Path(path.anchor) / "etc" / "hostname" if path.name == "new" else "precious.txt")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
        if kind != "empty folder":
            (path / "diary.txt").write_text("mine\n")
        if kind == "marked":
            (path / ".fullgraph").write_text("a file of mine\n")
        if kind == "marked by link":
            (path / ".fullgraph").symlink_to("diary.txt")
        if kind == "marked by pipe":
            os.mkfifo(path / ".fullgraph")
    for inner in (path, *path.rglob("*")) if not path.is_symlink() and path.is_dir() else (path,):
        os.lchown(inner, user, user)


def seen(paths: list[Path]) -> Known:
    """Record the type, owner and content of every path and everything below it."""
    found: Known = {}
    for top in paths:
        for path in (top, *top.rglob("*")) if top.is_dir() and not top.is_symlink() else (top,):
            about = os.lstat(path)
            held = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
            held = os.readlink(path).encode() if stat.S_ISLNK(about.st_mode) else held
            # A command may replace an empty folder that it was given by its own folder.
            inode = 0 if stat.S_ISDIR(about.st_mode) else about.st_ino
            found[path] = (inode, about.st_mode, about.st_uid, about.st_nlink * path.is_file(), held)
    return found


def scatter(folder: Path, names: tuple[str, ...], share: float, users: tuple[int, ...], random: Random) -> list[Path]:
    """Create the user's own objects in a folder, under a share of these names."""
    put(folder / "precious.txt", "file", users[0])
    placed = [folder / "precious.txt"]
    for name in names:
        if random.random() < share and not os.path.lexists(folder / name):
            kind = "file" if "/" in name else random.choice(KINDS)
            put(folder / name, kind, random.choice(users))
            placed.append(folder / name)
    return placed


def _half_removed(here: Path) -> list[Path]:
    """Keep the shards and the lock of a finished run, and remove the rest, as a user may."""
    for path in (here / "run").iterdir():
        if path.name not in ("shards", ".fullgraph.lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return [here / "run" / "shards"]


TRAIN = ("--epochs", "3", *SMALL)
COMMANDS: dict[str, tuple[tuple[object, ...], Callable[[Path], list[Path]] | None]] = {
    "train": (("train", "g.npz", "--parts", 2, "--out", "out", *TRAIN), None),
    "train beside": (("train", "g.npz", "--parts", 2, "--out", ".", *TRAIN), None),
    "train on shards": (("train", "cut", "--out", "out", *TRAIN), None),
    "train on its own shards": (("train", "run/shards", "--out", "run", *TRAIN), _half_removed),
    "train anew on old shards": (("train", "g.npz", "--parts", 2, "--out", "run", *TRAIN), _half_removed),
    "refused train": (("train", "g.npz", "--parts", 2, "--out", "out", "--metric", "roc_auc", *TRAIN), None),
    "resume": (("train", "--resume", "run", "--epochs", 8), None),
    "refused resume": (("train", "--resume", "run", "--epochs", 1), None),
    "killed train": (("train", "g.npz", "--parts", 2, "--out", "out", "--epochs", 10**6, *SMALL), None),
    "predict": (("predict", "run"), None),
    "predict --out": (("predict", "run", "--out", "out", "--embeddings", 1), None),
    "predict --out .": (("predict", "run", "--out", ".", "--format", "csv"), None),
    "predict another graph": (("predict", "run", "--graph", "g.npz", "--out", "out"), None),
    "partition": (("partition", "g.npz", "--out", "out"), None),
    "partition again": (("partition", "g.npz", "--out", "cut"), None),
    "partition beside": (("partition", "g.npz", "--out", "page.html"), None),
    "report": (("report", "run"), None),
    "report --out": (("report", "run", "--out", "page.html"), None),
    "report of two": (("report", "run", "other"), None),
    "compare --out": (("compare", "run", "other", "--out", "c.csv"), None),
    "compare --out json": (("compare", "run", "--out", "c.json"), None),
    "compare": (("compare", "run", "other", "--csv"), None),
    "plan": (("plan", TINY, "--page", "page.html", "--strategy", "vanilla"), None),
    "probe": (("probe", "--parts", 2), None),
    "bench": (("bench", "--graph", TINY, "--strategy", "vanilla", "--epochs", 1, "--rounds", 1, "--out", "out"), None),
    "bench beside": (("bench", "--graph", TINY, "--strategy", "vanilla", "--epochs", 1, "--out", "."), None),
    "inspect": (("inspect", "cut"), None),
    "doctor": (("doctor",), None),
    "strategies": (("strategies",), None),
}


def prepared(shared: Path) -> Path:
    """Return a finished run, a second one and a folder of shards, which are created once."""
    final = shared / "belongings"
    if not final.exists():
        with tempfile.TemporaryDirectory(dir=shared) as scratch:
            here = Path(scratch) / "here"
            here.mkdir()
            small_graph(here)
            every = ("--epochs", 6, "--hidden", 8, "--checkpoint-every", 2, "--threads", 1)
            for line in (
                ("train", "g.npz", "--parts", 2, "--out", "run", *every),
                ("train", "g.npz", "--out", "other", *every),
                ("partition", "g.npz", "--out", "cut"),
            ):
                with Command(*line, cwd=here) as command:
                    assert command.finish().code == 0, command.err
            if not final.exists():
                os.rename(here, final)
    return final


def trial(number: int, shared: Path) -> str:
    random = Random(number)
    name = list(COMMANDS)[number % len(COMMANDS)]
    arguments, before = COMMANDS[name]
    user = OTHER if number // len(COMMANDS) % 3 == 2 else 0  # each command runs twice as root and once as another user
    base = prepared(shared)
    shared.chmod(0o755)
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        top = Path(folder)
        top.chmod(0o755)
        here, tmp, home = top / "here", top / "tmp", shared / f"home-{user}"
        shutil.copytree(base, here)
        tmp.mkdir()
        tmp.chmod(0o1777)
        home.mkdir(exist_ok=True)
        os.chown(home, user, user)
        subprocess.run(["chown", "-R", f"{user}:{user}", str(here)], check=True)
        kept = before(here) if before else []
        everything = (*OF_A_RUN, *OF_COMMANDS, *LIKE_STAGED)
        share = random.choice([0.15, 0.5, 1.0])
        kept += scatter(tmp, (*everything, ".fullgraph.lock"), 1.0, (0, OTHER), random)
        kept += scatter(here, (*LIKE_STAGED, *OF_COMMANDS), share, (user,), random)
        if random.random() < 0.3:
            kept += scatter(here, (*OF_A_RUN, ".fullgraph.lock"), share, (user,), random)
        if random.random() < 0.7:
            wanted = (*everything, ".fullgraph.lock") if random.random() < 0.3 else LIKE_STAGED
            kept += scatter(here / "out", wanted, share, (user,), random)
            os.chown(here / "out", user, user)
        for inside in ("run", "run/checkpoints", "run/predictions", "cut"):
            if (here / inside).is_dir() and random.random() < 0.6:
                kept += scatter(here / inside, (*LIKE_STAGED, "predictions.csv", "NOTES.txt"), share, (user,), random)
        if (here / "run" / "checkpoints").is_dir():
            note = here / "run" / "checkpoints" / random.choice(["epoch-00000004", "epoch-00000006"]) / "notes.txt"
            if note.parent.is_dir() and random.random() < 0.5:
                put(note, "file", user)
                kept.append(note)
        known = seen(kept)
        environ = {"TMPDIR": str(tmp), "HOME": str(home), "XDG_CACHE_HOME": str(home)}
        with Command(*arguments, cwd=here, env=environ, prefix=AS_OTHER if user else ()) as command:
            if name == "killed train":
                wait_for(lambda: command.ranks() or command.process.poll() is not None, "no rank was started")
                time.sleep(random.uniform(0, 3))
                command.process.send_signal(signal.SIGKILL)
            code = command.finish(240).code
            assert code in (0, 1, 2, -signal.SIGKILL), f"{name}: status {code}: {command.err}"
            assert "Traceback" not in command.err, f"{name}: {command.err}"
            assert code != 1 or name in ("doctor", "bench", "bench beside"), f"{name}: {command.err}"
            said = command.err
        if code == -signal.SIGKILL:
            _swept(here, tmp, environ, user, kept)
        now = seen([path for path in kept if os.path.lexists(path)])
        changed = [str(path.relative_to(top)) for path in known if now.get(path) != known[path]]
        assert not changed, f"{name}: changed or removed: {', '.join(changed[:5])}\n{said}"
        return {0: "done", 1: "done", 2: "refused"}.get(code, "killed") + (" as another user" if user else "")


def _swept(here: Path, tmp: Path, environ: dict[str, str], user: int, kept: list[Path]) -> None:
    """Check that the next run in the same folders removes what a dead run left behind."""
    resumed = (here / "out" / "config.json").exists() and here / "out" / "config.json" not in kept
    again = ("train", "--resume", "out", "--epochs", 2) if resumed else COMMANDS["train"][0]
    time.sleep(1)  # the ranks die with their launcher
    with Command(*again, cwd=here, env=environ, prefix=AS_OTHER if user else ()) as command:
        code = command.finish(240).code
        assert code in (0, 2), command.err
    mine = {path.name for path in kept}
    left = [name for name in leftovers(here / "out") if Path(name).name not in mine] if (here / "out").is_dir() else []
    left = [] if code == 2 else [*left, *(path.name for path in tmp.glob(".fullgraph-*") if path.name not in mine)]
    assert not left, f"left behind by a run that was killed: {left}"


CAMPAIGN = Campaign(trial, 300, "a user's own file is never changed, removed or waited for")
