"""The machine: cores, memory, disk, limits, shared memory, network interfaces."""

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fullgraph.environ import MEETING
from fullgraph.lab.doctor.finding import BAD, OK, OPTION, Finding
from fullgraph.proc import num_cores
from fullgraph.resources import free_memory
from fullgraph.words import size

GIB = 1 << 30
LEAST_FILES, GOOD_FILES = 128, 1024  # enough for a few ranks; for many
LEAST_SHM = 64 << 20  # what NCCL takes for a few GPUs


def cores() -> Iterator[Finding]:
    yield Finding("cores", OK, f"{num_cores()}, shared by the ranks of this machine")


def memory() -> Iterator[Finding]:
    free = free_memory()
    state = OK if free > 2 * GIB else BAD if free < GIB // 2 else OPTION
    fix = "" if state == OK else "close other programs, or raise the limit of the container: a rank takes about 0.3 GiB"
    yield Finding("memory", state, f"{size(free)} free", fix)


def disk() -> Iterator[Finding]:
    """Runs are written below the current folder; ranks meet in the temporary folder."""
    for name, place, least in (("disk", Path.cwd(), GIB), ("temporary files", Path(tempfile.gettempdir()), GIB // 64)):
        free, writable = shutil.disk_usage(place).free, os.access(place, os.W_OK)
        good = free >= least and writable
        told = f"{size(free)} free in {place}" + ("" if writable else ", which cannot be written to")
        fix = "" if good else "make room, or " + ("run elsewhere" if name == "disk" else "set TMPDIR to another folder")
        yield Finding(name, OK if good else BAD if not writable or free < least // 16 else OPTION, told, fix)


def files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = hard if hard != resource.RLIM_INFINITY else 1 << 20  # a run raises its own limit up to this
    state = OK if allowed >= GOOD_FILES else OPTION if allowed >= LEAST_FILES else BAD
    fix = "" if state == OK else f"raise `ulimit -n` to {GOOD_FILES} or more; a rank opens 6 files for every other rank"
    yield Finding("open files", state, f"{soft} allowed, and up to {hard}" if hard > 0 else f"{soft} allowed", fix)


def processes() -> Iterator[Finding]:
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    good = os.geteuid() == 0 or soft == resource.RLIM_INFINITY or soft >= 1024
    text = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} processes and threads allowed"
    yield Finding("processes", OK if good else OPTION, text, "" if good else "raise `ulimit -u` to 1024 or more")


def shared_memory() -> Iterator[Finding]:
    """Ranks of one machine share data that all of them read; NCCL needs /dev/shm."""
    try:
        os.close(os.memfd_create("fullgraph-doctor"))
        yield Finding("shared memory", OK, "ranks of a machine hold a mixture's structure once")
    except (AttributeError, OSError):
        fix = "use Linux for mixgcn and gnnpipe on large graphs"
        yield Finding("shared memory", OPTION, "none without names: every rank holds its own copy", fix)
    shm = Path("/dev/shm")
    if shm.is_dir():
        whole = shutil.disk_usage(shm).total
        good = whole >= LEAST_SHM
        fix = "" if good else "start the container with --shm-size=1g (only --backend nccl needs it)"
        yield Finding("/dev/shm", OK if good else OPTION, size(whole), fix)


def interfaces() -> Iterator[Finding]:
    """Ranks of one machine communicate over loopback, machines over the interface in GLOO_SOCKET_IFNAME."""
    names = [name for _, name in socket.if_nameindex()]
    if not _loopback():
        fix = "`ip link set lo up`; ranks of one machine meet there"
        yield Finding("loopback", BAD, "127.0.0.1 does not answer", fix)
    else:
        yield Finding("loopback", OK, "127.0.0.1 answers")
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    if chosen and any(name not in names for name in chosen.split(",")):
        fix = f"set it to one of {', '.join(names)}, or unset it"
        yield Finding("interfaces", BAD, f"GLOO_SOCKET_IFNAME={chosen} does not exist on this machine", fix)
    else:
        hint = f"; machines communicate over {chosen}" if chosen else "; several machines need GLOO_SOCKET_IFNAME"
        yield Finding("interfaces", OK, ", ".join(names) + hint)


def _loopback() -> bool:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 2):
            return True
    except OSError:
        return False


def surroundings() -> dict[str, str]:
    """The environment of a user's command, without the variables of a job that this process may belong to."""
    ours = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", MEETING)
    return {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("SLURM_")}
