"""Edited files of finished runs: config, metrics, result, model, checkpoints, shards; and commands that read them."""

import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np

from faults.command import difference, small_graph
from faults.inputs.case import Case, Ended
from faults.inputs.edits import (
    edit_bytes,
    edit_json,
    edit_tensors,
    same_json,
    same_tensors,
    spaced,
    split_tensors,
    torture_json,
)  # fmt: skip

Again = Callable[[list[str], Path], Ended]

SMALL = ["--hidden", "4", "--layers", "2", "--eval-every", "2", "--checkpoint-every", "1", "--threads", "1"]
RUNS = {
    "one": ["--parts", "1"],
    "two": ["--parts", "2", "--strategy", "pipegcn", "-o", "lag=2", "-o", "smooth=gf"],
    "pipe": ["--parts", "2", "--strategy", "gnnpipe", "-o", "freeze=2", "-o", "cut=1"],
    "bits": ["--parts", "2", "--strategy", "sylvie-a", "-o", "adaptive=true", "-o", "tau=1", "-o", "feedback=true"],
}
SEEDS = (("", "1"), ("other ", "2"))
EPOCHS, MORE = 4, 6
COMMANDS = {
    "resume": ["train", "--resume", "run", "--epochs", str(MORE)],
    "again": ["train", "--resume", "run"],
    "predict": ["predict", "run", "--out", "predicted"],
    "compare": ["compare", "run", "sibling"],
    "target": ["compare", "run", "sibling", "--target", "0.2"],
    "inspect": ["inspect", "run/shards"],
    "train": ["train", "run/shards", "--epochs", "2", *SMALL, "--out", "new"],
}
NEWEST, OLDER = f"checkpoints/epoch-{EPOCHS:08d}", f"checkpoints/epoch-{EPOCHS - 1:08d}"
# Files that a command reads, by the beginning of their names.
SHARDS = ("shards/manifest.json", "shards/part-")
READS = {
    "resume": ("config.json", NEWEST, *SHARDS),
    "again": ("config.json", NEWEST, *SHARDS),
    "predict": ("config.json", "model.safetensors", *SHARDS),
    "compare": ("result.json",),
    "target": ("result.json", "metrics.jsonl"),
    "inspect": ("shards/manifest.json",),
    "train": SHARDS,
}
VICTIMS = ("config.json", "metrics.jsonl", "result.json", "model.safetensors", NEWEST, NEWEST, NEWEST, OLDER, "shards")


def bases(shared: Path, again: Again) -> Path:
    """Return finished runs and the output of every command on them; the first trial creates them."""
    final = shared / f"inputs-{zlib.crc32(repr((RUNS, COMMANDS, EPOCHS)).encode()):08x}"
    if final.exists():
        return final
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        small_graph(here)
        for name, options in [
            (f"{kind}{name}", [*RUNS[name], "--seed", seed]) for kind, seed in SEEDS for name in RUNS
        ]:
            folder = here / name
            folder.mkdir()
            small_graph(folder)
            train = ["train", "g.npz", "--epochs", str(EPOCHS), *SMALL, *options, "--out", "run"]
            ended = again(train, folder)
            assert ended.code == 0, ended.err
        for name in RUNS:
            for command, arguments in COMMANDS.items():
                folder = here / f"{name} {command}"
                _lay_out(here, name, folder)
                ended = again(arguments, folder)
                assert ended.code == 0, ended.err
                (folder / "out.txt").write_text(ended.out)
        with suppress(OSError):  # another trial created it first
            os.rename(here, final)
            here.mkdir()
    return final


def _lay_out(base: Path, name: str, here: Path) -> None:
    shutil.copytree(base / name / "run", here / "run")
    shutil.copytree(base / f"other {name}" / "run", here / "sibling")


def case(random: Random, here: Path, shared: Path, again: Again) -> Case:
    base = bases(shared, again)
    name = random.choice(["one", "one", "two", "two", "pipe", "bits"])
    shutil.rmtree(here)
    _lay_out(base, name, here)
    command = random.choice(list(COMMANDS))
    victim = _victim(random, command)
    paths = sorted(p for p in (here / "run").rglob("*") if p.is_file() and victim in str(p.relative_to(here / "run")))
    path = random.choice(paths)
    inside = str(path.relative_to(here / "run"))
    edits = [_bytes, _bytes, _structure, _structure, _repaired, _torture, _swap, _special, _folder, _space]
    edit = random.choice(edits)
    told = edit(path, random, base / f"other {name}" / "run", command)
    reads = inside.startswith(READS[command])
    must = ""
    written = inside in ("metrics.jsonl", "result.json", "model.safetensors") and command in ("resume", "again")
    blocked = written and path.exists() and not path.is_file()  # fullgraph never replaces a folder, a pipe or a device
    if told.same or not (reads or blocked or path.is_symlink()):
        must = "right"
    elif (reads or blocked) and not told.consistent and not told.harmless:
        must = "refused" if not inside.startswith(NEWEST) else ""

    def right(ended: Ended) -> None:
        if told.consistent and reads:
            return
        if not told.moved:
            assert told.harmless or bool(ended.notes) == reads, f"notes: {ended.notes}"
        same_outcome(command, ended, base / f"{name} {command}")

    return Case(f"{name} run, {inside}, {edit.__name__[1:]}: {told.text}", COMMANDS[command], right, must)


def _victim(random: Random, command: str) -> str:
    """Choose a file, mostly one that the command reads."""
    return random.choice(READS[command]) if random.random() < 0.8 else random.choice(VICTIMS)


def same_outcome(command: str, ended: Ended, good: Path) -> None:
    """Check that the command's output equals its output on the original files."""
    if command in ("resume", "again", "train"):
        run = "new" if command == "train" else "run"
        differs = difference(good / run, ended.here / run)
        assert not differs, f"other {differs.names}"
    elif command == "predict":
        for name in ("classes", "probabilities"):
            tables = [np.load(folder / "predicted" / f"{name}.npy") for folder in (good, ended.here)]
            assert np.array_equal(*tables), f"other {name}"
    else:
        assert ended.out == (good / "out.txt").read_text(), f"other output: {ended.out}"


class Edit:
    """An edit of a file."""

    def __init__(
        self, text: str, *, same: bool = False, harmless: bool = False, consistent: bool = False, moved: bool = False
    ) -> None:
        self.text = text
        self.same = same  # the command must accept it
        self.harmless = same or harmless  # the content is unchanged
        self.consistent = consistent  # the content differs, and the checksum fits
        self.moved = moved  # a whole checkpoint is gone or renamed: another one may be the newest now


def _write(path: Path, data: bytes, text: str) -> Edit:
    """Write an edited file, and check whether its content differs."""
    before = path.read_bytes()
    path.write_bytes(data)
    if path.suffix == ".json":
        return Edit(text, harmless=same_json(before, data))
    if path.suffix == ".safetensors":
        return Edit(text, harmless=same_tensors(before, data))
    if path.suffix == ".jsonl":
        return Edit(text, harmless=_same_lines(before, data))
    return Edit(text, harmless=before == data)


def _same_lines(before: bytes, after: bytes) -> bool:
    one, other = (data.split(b"\n") for data in (before, after))
    if (len(one), one[-1]) != (len(other), other[-1]):
        return False
    return all(same_json(a, b) for a, b in zip(one[:-1], other[:-1], strict=True))


def _bytes(path: Path, random: Random, other: Path, command: str) -> Edit:
    return _write(path, *edit_bytes(path.read_bytes(), random))


def _structure(path: Path, random: Random, other: Path, command: str) -> Edit:
    """Edit the structure of JSON and tensor files without updating checksums; move lines of metrics."""
    if path.suffix == ".safetensors":
        return _write(path, *edit_tensors(path.read_bytes(), random))
    if path.suffix == ".json":
        text, told = edit_json(path.read_text(), random, repair=False)
        return _write(path, text.encode("utf-8", "surrogatepass"), told)
    if path.suffix == ".jsonl":
        return _lines(path, random)
    return _bytes(path, random, other, command)


def _lines(path: Path, random: Random) -> Edit:
    lines = path.read_text().splitlines(keepends=True)
    place = random.randrange(len(lines))
    kind = random.choice(["drop", "double", "move", "join", "edit", "blank", "cut"])
    if kind == "drop":
        del lines[place]
    elif kind == "double":
        lines.insert(place, lines[place])
    elif kind == "move":
        random.shuffle(lines)
    elif kind == "join":
        lines[place] = lines[place].rstrip("\n")
    elif kind == "blank":
        lines.insert(place, random.choice(["\n", " \n", "\r\n", "\x0b\n"]))
    elif kind == "cut":
        lines[-1] = lines[-1][: random.randrange(len(lines[-1]))]
    else:
        text, kind = edit_json(lines[place], random, repair=False)
        lines[place] = text.replace("\n", " ") + "\n"
    return _write(path, "".join(lines).encode("utf-8", "surrogatepass"), f"{kind} line {place}")


def _repaired(path: Path, random: Random, other: Path, command: str) -> Edit:
    """Edit a file and update its checksum: a wrong type must still be one line."""
    if path.suffix == ".json":
        text, told = edit_json(path.read_text(), random, repair=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return Edit(told, consistent=True)
    if path.suffix == ".safetensors":
        return _repaired_tensors(path, random)
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        place = random.randrange(len(lines))
        text, told = edit_json(lines[place], random, repair=True)
        lines[place] = text.replace("\n", " ")
        path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass"))
        return Edit(told, consistent=True)
    return _bytes(path, random, other, command)


def _repaired_tensors(path: Path, random: Random) -> Edit:
    import torch
    from safetensors.torch import load

    from fullgraph.storage import write_tensors

    data = path.read_bytes()
    about = split_tensors(data)[0].get("__metadata__", {})
    about.pop("crc32", None)
    tensors = load(data)
    kind = random.choice(["drop", "add", "shape", "dtype", "nan", "about", "rename", "all"])
    name = random.choice(list(tensors)) if tensors else ""
    if kind == "drop" and name:
        del tensors[name]
    elif kind == "shape" and name:
        old = tensors[name]
        tensors[name] = random.choice([old.reshape(-1), old[None], torch.zeros(0), torch.zeros(3, 3)])
    elif kind == "dtype" and name:
        tensors[name] = tensors[name].to(random.choice([torch.int8, torch.float64, torch.bool, torch.float16]))
    elif kind == "nan" and name and tensors[name].is_floating_point():
        tensors[name] = torch.full_like(tensors[name], random.choice([float("nan"), float("inf"), 1e30, -1.0]))
    elif kind == "rename" and name:
        new = random.choice([f"{name}.x", "optimizer.a.b", "optimizer.99.step", "model.", "best.", "history", "x.y.z"])
        tensors[new] = tensors.pop(name)
    elif kind == "about":
        about[random.choice(["epoch", "rank", "ranks", "run", "x"])] = random.choice(["0", "1", "x", "", "\x1b[0m"])
    elif kind == "all":
        tensors = {}
    else:
        tensors[random.choice(["x", "model.x", "optimizer.0.x", "optimizer.x", "best.x"])] = torch.ones(2)
    write_tensors(path, tensors, about)
    return Edit(f"{kind} {name}, checksum repaired", consistent=True)


def _torture(path: Path, random: Random, other: Path, command: str) -> Edit:
    if path.suffix != ".json":
        return _structure(path, random, other, command)
    text, told = torture_json(path.read_text(), random)
    return _write(path, text.encode("utf-8", "surrogatepass"), told)


def _space(path: Path, random: Random, other: Path, command: str) -> Edit:
    """Change white space and the order of keys: the content stays the same."""
    if path.suffix == ".json":
        path.write_text(spaced(path.read_text(), random))
        return Edit("white space", same=True)
    if path.suffix == ".jsonl":
        lines = [spaced(line, random).replace("\n", " ") for line in path.read_text().splitlines()]
        path.write_text("".join(line + "\n" for line in lines))
        return Edit("white space", same=True)
    return Edit("as it was", same=True)


def _swap(path: Path, random: Random, other: Path, command: str) -> Edit:
    """Swap a file for one of another epoch, rank or run, or from elsewhere in the same folder."""
    run = next(parent for parent in path.parents if parent.name == "run")
    inside = path.relative_to(run)
    sources = [p for p in run.rglob(f"*{path.suffix}") if p.is_file() and p != path]
    if (other / inside).exists() and (inside.parts[0] in ("checkpoints", "shards") or path.name == "model.safetensors"):
        sources += [other / inside] * max(1, len(sources))
    source = random.choice(sources or [other / inside])
    told = f"swapped for {source.relative_to(source.parents[1])}"
    if path.name in ("config.json", "result.json", "metrics.jsonl") and source == other / inside:
        return _structure(path, random, other, command)  # a whole file of another run, in its own place, is that run's
    if path.name == "manifest.json" and source == other / inside:
        if random.random() < 0.5:
            shutil.rmtree(path.parent)
        shutil.copytree(source.parent, path.parent, dirs_exist_ok=True)
        return Edit("shards of another run", consistent=command in ("inspect", "train"))
    return _write(path, source.read_bytes(), told)


def _special(path: Path, random: Random, other: Path, command: str) -> Edit:
    """Replace a file by something that is not a plain file, or remove it."""
    kind = random.choice(["missing", "folder", "fifo", "loop", "dangling", "zero", "sparse", "unreadable name", "link"])
    if kind == "link":
        path.rename(path.with_name("aside"))
        path.symlink_to("aside")
        return Edit(kind, harmless=True)  # links in place of a run's own files may be refused
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind in ("loop", "dangling", "zero"):
        path.symlink_to({"loop": path.name, "dangling": "nowhere", "zero": "/dev/zero"}[kind])
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(random.choice([1 << 33, 1 << 40]))
    elif kind == "unreadable name":
        (path.parent / os.fsdecode(b"\xff\xfe")).write_bytes(b"")
    return Edit(kind)


def _folder(path: Path, random: Random, other: Path, command: str) -> Edit:
    """Rename, double or remove the folder of a checkpoint's file; for other files, remove the file."""
    folder = path.parent
    if folder.parent.name != "checkpoints":
        path.unlink()
        return Edit("missing")
    kind = random.choice(["remove", "rename", "double", "strange", "empty", "file"])
    strange = random.choice(["epoch-", "epoch-x", "epoch-5", "epoch-00000000", "epoch--0000001", "epoch-" + "9" * 30,
                             "epoch-٣", "epoch-1e3", "epoch-00000005.old", "epoch-\x1b[31m"])  # fmt: skip
    if kind == "remove":
        shutil.rmtree(folder)
        return Edit(kind, moved=True)
    if kind == "rename":
        folder.rename(folder.with_name(f"epoch-{random.choice([1, 5, 99, 10**8 - 1]):08d}"))
    elif kind == "double":
        shutil.copytree(folder, folder.with_name("epoch-00000005"))
    elif kind == "strange":
        shutil.copytree(folder, folder.with_name(strange))
        return Edit(f"{kind} {strange!r}", same=True)
    elif kind == "empty":
        for inner in folder.iterdir():
            inner.unlink()
    else:
        shutil.rmtree(folder)
        folder.write_text("not a folder")
    return Edit(kind, moved=kind in ("rename", "double"))
