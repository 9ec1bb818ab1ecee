"""Limits of the control groups of this process (Slurm, systemd, containers), through both of the kernel's
interfaces.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc/self")


def free_memory() -> int | None:
    """Bytes that this process may still take in its tightest group; the group's file cache counts as free."""
    free = []
    for folder, limit, used in (
        *((folder, "memory.max", "memory.current") for folder in _folders("")),
        *((folder, "memory.limit_in_bytes", "memory.usage_in_bytes") for folder in _folders("memory")),
    ):
        with suppress(OSError, ValueError):  # no such file, or no limit
            free.append(int((folder / limit).read_text()) - int((folder / used).read_text()) + _file_pages(folder))
    return min(free, default=None)


def most_threads() -> int | None:
    """The number of threads that the tightest of this process's groups may have."""
    found = []
    for folder in (*_folders(""), *_folders("pids")):
        with suppress(OSError, ValueError):
            found.append(int((folder / "pids.max").read_text()))
    return min(found, default=None)


def _file_pages(folder: Path) -> int:
    """Bytes of file cache that a group gives up when asked; v1 counts groups below separately."""
    lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    fields = {line[0]: int(line[1]) for line in lines if len(line) == 2}
    return sum(fields.get(f"total_{kind}", fields.get(kind, 0)) for kind in ("active_file", "inactive_file"))


def _folders(controller: str) -> Iterator[Path]:
    """The folders of this process's group and of all groups around it. controller: its name in v1; empty for v2."""
    with suppress(OSError, ValueError):
        for line in (PROC / "cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                for root, mount in _mounts(controller):
                    within = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path()
                    yield from (mount / part for part in (within, *within.parents))


def _mounts(controller: str) -> Iterator[tuple[str, Path]]:
    """Where group files can be read: the group that is mounted, and the folder."""
    for line in (PROC / "mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        system, _, options = kind.split(" ", 2)
        if (system == "cgroup" and controller in options.split(",")) if controller else system == "cgroup2":
            yield place.split()[3], Path(place.split()[4])
