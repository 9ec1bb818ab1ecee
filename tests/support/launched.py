"""The processes of a training command: its launcher's children, and which of them are ranks."""

import os
from pathlib import Path

RANK = "fullgraph-"  # how the name of a rank's process begins


def children_of(parent: int) -> list[int]:
    """Living children of a process."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        state, mother = _stat(pid)
        if mother == parent and state != "Z":
            found.append(pid)
    return found


def ranks_of(launcher: int) -> dict[int, int]:
    """The processes of a launcher's ranks, by rank."""
    names = {pid: _name(pid) for pid in children_of(launcher)}
    return {int(name.removeprefix(RANK)): pid for pid, name in names.items() if name.startswith(RANK)}


def _stat(pid: int) -> tuple[str, int]:
    try:
        state, mother, *_ = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return "Z", 0  # it has just ended
    return state, int(mother)


def _name(pid: int) -> str:
    """The name of a process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
