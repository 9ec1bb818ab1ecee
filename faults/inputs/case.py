"""One mutated input: the command that reads it, how it ended, and whether it kept the promise."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from faults.command import complaints

LIMIT_S = 300.0  # of the clock, which a busy machine may take as well as a hang
THREAD = 128 << 20  # address space that a thread per core may claim: its stack, and its share of the heap
MEMORY = (2 << 30) + (os.cpu_count() or 1) * THREAD  # bytes in addition to those of the idle program
ERROR, NOTE = "fullgraph: error: ", "fullgraph: note: "
# A run that trained keeps its folder, even if its numbers become infinite later: its checkpoints have value.
TRAINED = re.compile(r"the loss became|weights are not finite")
OURS = re.compile(r"\.fullgraph(\.lock|-[0-9a-f]{32})")  # locks and workspaces may change

Files = dict[str, str]  # path inside the case's folder -> hash of its content


@dataclass
class Ended:
    """How a command ended."""

    here: Path
    code: int
    out: str
    err: str
    peak: int = 0  # peak memory in bytes, minus the memory held before
    outside: list[str] = field(default_factory=list)  # changes to files outside its folder

    @property
    def notes(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith(NOTE)]


def anything(ended: Ended) -> None:
    """Accept any result: only the user could know the right one."""


@dataclass
class Case:
    """A command, and the check of its result."""

    what: str  # how the input was created
    arguments: list[str]
    right: Callable[[Ended], None] = anything  # called at exit 0; raises AssertionError if the result is wrong
    must: str = ""  # "refused" or "right" if only one of them keeps the promise
    environ: Mapping[str, str] = field(default_factory=dict)
    shell: str = ""  # a script that runs the command, "$0" "$@", in special surroundings
    real: bool = False  # in separate processes
    status: tuple[int, ...] = (0, 2)
    named: list[str] = field(default_factory=list)  # texts in a file of options
    limit_s: float = LIMIT_S

    @property
    def points_out(self) -> bool:
        """Whether the user names a place outside the folder, in which files may then be written."""
        return any(word.split(":")[-1].startswith(("/", "..", "~")) for word in (*self.arguments, *self.named))

    def __str__(self) -> str:
        variables = "".join(f"{name}={value!r} " for name, value in self.environ.items())
        return f"{self.what}: {variables}{self.shell} fullgraph {self.arguments!r}"


def files_in(folder: Path) -> Files:
    """Return every file, folder and link in a folder, except names that may change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if OURS.fullmatch(path.name):
            continue
        if path.is_symlink() or not path.is_file():
            text = "folder" if path.is_dir() else "special"
        elif path.stat().st_size > 1 << 27:
            text = str(path.stat().st_size)
        else:
            text = hashlib.sha1(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = text
    return found


def judge(case: Case, ended: Ended, before: Files) -> str:
    """Return refused, right, or right after falling back; raise AssertionError if the promise is broken."""
    assert ended.code in case.status, f"exit status {ended.code}: {ended.err[-900:]}"
    assert "Traceback" not in ended.err, ended.err[-900:]
    assert case.points_out or not ended.outside, f"outside its folder: {ended.outside[:5]}"
    assert ended.peak < MEMORY, f"took {ended.peak >> 20} MiB"
    lines = ended.err.splitlines()
    if ended.code:
        lines = complaints(ended.err)
        assert len(lines) == 1, f"{len(lines)} lines: {ended.err[-900:]}"
        assert lines[0].startswith(ERROR), ended.err[-900:]
        assert len(lines[0]) > len(ERROR) + 8, ended.err
        assert case.must != "right", f"refused: {lines[0]}"
        trained = bool(TRAINED.search(lines[0])) or ended.code == 1
        _assert_nothing_lost(before, files_in(ended.here), trained=trained)
        return "refused"
    assert case.must != "refused", f"accepted: {ended.out[-300:]}"
    assert all(line.startswith(NOTE) for line in lines), ended.err[-900:]
    case.right(ended)
    return "fell back" if lines else "right"


def _assert_nothing_lost(before: Files, after: Files, *, trained: bool) -> None:
    gone = [name for name in before if name not in after]
    assert not gone, f"refused, and {gone[:5]} gone"
    changed = [name for name in before if after[name] != before[name]]
    assert trained or not changed, f"refused, and {changed[:5]} changed"
    new = [name for name in after if name not in before]
    assert trained or not new, f"refused, and {new[:5]} left behind"
