"""Whether a process on this machine makes progress, according to the kernel."""

import os
import socket
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

PROC = Path("/proc")


class Progress:
    """Looks at processes from time to time. Without /proc, no process seems to make progress."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}

    def made(self, pid: int) -> bool:
        """Whether the process used a core since the last look, is ready to run, or waits for a disk."""
        threads = list(_threads(pid))
        ticks, before = sum(ticks for _, ticks in threads), self._ticks.get(pid)
        self._ticks[pid] = ticks
        return any(state in "RD" for state, _ in threads) or (before is not None and ticks > before)


def go_before_the_launcher() -> None:
    """If memory runs out, make the kernel end this process and not the launcher, which reports the failure."""
    with suppress(OSError):
        (PROC / "self" / "oom_score_adj").write_text("500")


@cache
def machine() -> int:
    """A number that is equal for all processes under one kernel that can see one another."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        text = socket.gethostname()
    return zlib.crc32(text.encode())


@cache
def network() -> int:
    """A number that is equal for all processes of one machine that share its network; others may be cut off
    separately.
    """
    with suppress(OSError):
        return zlib.crc32(os.readlink("/proc/self/ns/net").encode(), machine())
    return machine()


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def born(pid: int) -> int:
    """The start of a process in the kernel's ticks; it tells a process from a later one with the same number. 0:
    unknown.
    """
    with suppress(OSError, ValueError, IndexError):
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    return 0


def _threads(pid: int) -> Iterator[tuple[str, int]]:
    """The state and ticks of every thread."""
    with suppress(OSError):
        for path in (PROC / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                yield fields[0], int(fields[11]) + int(fields[12])
