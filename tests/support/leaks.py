"""Find what code left behind: threads, process groups, environment variables, child processes."""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

OURS = "fullgraph"
KERNEL_POOL = "fullgraph-kernel"  # the thread pools of ops/ live as long as the process
# pytest names the running test; OpenMP runtimes note that they are loaded, and torch the folder of its compiler cache.
VOLATILE = ("PYTEST_", "KMP_", "__KMP_", "TORCHINDUCTOR_")
# Started once by multiprocessing and kept until the interpreter ends.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True)
class Snapshot:
    """The current state; `leaks(before)` lists what a later state has in addition."""

    threads: frozenset[threading.Thread] = field(default_factory=lambda: frozenset(threading.enumerate()))
    groups: bool = field(default_factory=lambda: _groups_are_up())
    environ: Mapping[str, str] = field(default_factory=lambda: _environ())
    children: Mapping[int, str] = field(default_factory=lambda: _children())


def leaks(before: Snapshot, *, patience_s: float = 2.0) -> list[str]:
    """One line for each thing that exists now and did not before; waits briefly for things that are just ending."""
    deadline = time.monotonic() + patience_s
    while found := _difference(before, Snapshot()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return found


def restore_environ(before: Snapshot) -> None:
    """Restore the environment, so that one leak is one failure."""
    now = _environ()
    for name in now.keys() - before.environ.keys():
        del os.environ[name]
    os.environ.update(before.environ)


def _difference(before: Snapshot, now: Snapshot) -> list[str]:
    found = [f"thread {t.name!r} still runs" for t in now.threads - before.threads if _counts(t)]
    if now.groups and not before.groups:
        found.append("a torch.distributed process group is still initialised")
    for name in sorted(now.environ.keys() | before.environ.keys()):
        old, new = before.environ.get(name), now.environ.get(name)
        if old != new:
            found.append(f"environment variable {name} changed from {old!r} to {new!r}")
    found += [
        f"child process {pid} still runs: {text}" for pid, text in now.children.items() if pid not in before.children
    ]
    return found


def _counts(thread: threading.Thread) -> bool:
    if thread.name.startswith(KERNEL_POOL) or not thread.is_alive():
        return False
    return not thread.daemon or thread.name.startswith(OURS)


def _groups_are_up() -> bool:
    # Looked up, not imported: only transport/ may import it, and a module that nobody imported cannot be initialised.
    module = sys.modules.get("torch.distributed")
    return module is not None and bool(module.is_available()) and bool(module.is_initialized())


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(VOLATILE)}


def _children() -> dict[int, str]:
    """This process's live children, by pid with their command lines; zombies are not counted."""
    if not os.path.isdir("/proc"):
        return {child.pid: child.name for child in multiprocessing.active_children() if child.pid is not None}
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:  # twice a test: pathlib would take three times as long
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
            if int(parent) != os.getpid() or state == b"Z":
                continue
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it ended while we read
            continue
        if not any(helper in command for helper in HELPERS):
            found[int(pid)] = command[:200]
    return found
