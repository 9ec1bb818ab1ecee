"""Check memory, disk, descriptors, ports and threads before they are used; say so if they do not suffice."""

import fcntl
import os
import resource
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from fullgraph import cgroup
from fullgraph.device import built_for
from fullgraph.errors import InputError, one_line
from fullgraph.words import size

RANK_ADDRESSES = {"cpu": 512 << 20, "gpu": 2 << 30}  # bytes beside a rank's code, by what torch is built for
LARGER = "use a larger machine, or more --parts over several machines"


def require_memory(nbytes: float, what: str, fix: str = LARGER) -> None:
    free = free_memory()
    if nbytes > free:
        raise InputError(f"{what} needs {size(nbytes)} of memory, and {size(free)} are free; {fix}")


def free_memory() -> int:
    """Memory that this process may still take, by the machine, its control group and its own limit."""
    free = [1 << 62]
    with suppress(OSError, ValueError, StopIteration):
        free.append(_field(Path("/proc/meminfo"), "MemAvailable:") * 1024)
    group = cgroup.free_memory()
    free += [free_addresses(), *([] if group is None else [group])]
    return max(0, min(free))


def free_addresses() -> int:
    """Addresses that this process may still map: its limit, `ulimit -v`, minus what it has mapped."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY:
        with suppress(OSError, ValueError, StopIteration):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            return soft - pages * resource.getpagesize()
    return 1 << 62


def require_addresses() -> None:
    """Require addresses for a rank's threads and compiled loops: without them, C++ ends the process with its own
    message.

    A torch build for GPUs looks for a GPU in the first backward pass, and maps the driver for it.
    """
    need, free = RANK_ADDRESSES["gpu" if built_for() else "cpu"], free_addresses()
    if free < need:
        told = f"a rank needs {size(need)} of addresses beside its code, and {size(max(0, free))} are left"
        raise InputError(f"{told}; raise `ulimit -v`")


def _field(path: Path, name: str) -> int:
    """The number behind a name in one of the kernel's tables."""
    fields = (line.split() for line in path.read_text().splitlines())
    return next(int(field[1]) for field in fields if field and field[0] == name)


def require_disk(folder: Path, nbytes: float, what: str) -> None:
    """Require `nbytes` on the disk of `folder`, which need not exist yet."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if nbytes > free:
        raise InputError(f"{what} needs {size(nbytes)} on the disk of {folder}, and {size(free)} are free; make room")


def require_ranks(ranks: int, threads: int) -> None:
    """Require descriptors, ports and threads for `ranks` on this machine, each with `threads` threads."""
    groups = 6  # a rank's communicators: the first, halos, sums, and a pipeline's hops
    files = 64 + groups * (ranks + 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < files <= hard or (soft < files and hard == resource.RLIM_INFINITY):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            soft = files
    if soft < files and soft != resource.RLIM_INFINITY:
        raise InputError(f"{ranks} ranks need {files} open files each, and {soft} are allowed; raise `ulimit -n`")
    ports = groups * ranks * (ranks + 1) // 2 if ranks > 1 else 0
    with suppress(OSError, ValueError, StopIteration):
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        if ports > high - low:
            raise InputError(
                f"{ranks} ranks on one machine need {ports} ports, and it has {high - low}; use fewer --parts"
            )
    require_addresses()  # this process has mapped as much as a rank will
    require_threads(threads)
    wanted = ranks * (max(threads, 1) + 8 + groups)
    own = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() != 0 and 0 < own < wanted:
        raise InputError(f"{ranks} ranks start {wanted} threads, and {own} are allowed; raise `ulimit -u`")
    group = cgroup.most_threads()
    if group is not None and group < wanted:
        told = f"{ranks} ranks start {wanted} threads, and this job's control group allows {group} (pids.max)"
        raise InputError(f"{told}; ask for more, or use fewer --parts")
    if ranks > 1:
        need_locks(Path(tempfile.gettempdir()))


def need_locks(folder: Path) -> None:
    """Require file locks in the folder: ranks meet through a file there, and without locks C++ would end them all."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            told = f"the temporary folder {folder} has no locks on files ({one_line(error, 80)})"
            raise InputError(f"{told}, and ranks meet through one; set TMPDIR to a folder on a local disk") from None


def require_threads(threads: int) -> None:
    """Refuse more threads per process than this machine can use."""
    cores = os.cpu_count() or 1
    if threads > 4 * cores:
        raise InputError(
            f"threads={threads}: this machine has {cores} cores; give at most {4 * cores}, or leave it out"
        )
