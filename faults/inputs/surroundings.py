"""Hostile surroundings: few descriptors, little memory, folders that cannot be written, closed pipes, no ports."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from faults.command import small_graph
from faults.inputs.case import Case, Ended

Again = Callable[[list[str], Path], Ended]

TRAIN = ["train", "g.npz", "--epochs", "2", "--hidden", "4", "--layers", "2", "--out", "run"]
INSPECT = ["inspect", "g.npz"]
RUN = 'exec "$0" "$@"'
READ_ONLY = (
    'unshare -m bash -c \'mount --bind . . && mount -o remount,ro,bind . && cd "$PWD" && exec "$0" "$@"\' "$0" "$@"'
)
LOOPBACK_UP = r'''"$0" -c "from pyroute2 import IPRoute; IPRoute().link(\"set\", index=1, state=\"up\")"'''
NO_PORTS = (
    f"unshare -n bash -c '{LOOPBACK_UP} && echo 40000 {{last}} > /proc/sys/net/ipv4/ip_local_port_range && "
    'exec "$0" "$@"\' "$0" "$@"'
)


def case(random: Random, here: Path, shared: Path, again: Again) -> Case:
    small_graph(here)
    scenes = [scene for name, scene in globals().items() if name.startswith("_scene_")]
    if os.geteuid() != 0:
        scenes = [scene for scene in scenes if scene not in (_scene_read_only, _scene_no_ports, _scene_no_loopback)]
    made: Case = random.choice(scenes)(random)
    made.what = f"surroundings, {made.what}"
    made.real = True
    return made


def _parts(random: Random) -> list[str]:
    return ["--parts", random.choice(["1", "2"])]


def _finished(ended: Ended) -> None:
    assert (ended.here / "run" / "result.json").exists(), "no result"


def _scene_few_files(random: Random) -> Case:
    few = random.choice([5, 8, 12, 16, 24, 48, 80])
    return Case("few descriptors", [*TRAIN, *_parts(random)], _finished, shell=f"ulimit -n {few}; {RUN}")


def _scene_little_memory(random: Random) -> Case:
    kib = random.choice([2_000_000, 2_500_000, 3_000_000, 5_000_000])
    return Case("little memory", [*TRAIN, *_parts(random)], _finished, shell=f"ulimit -v {kib}; {RUN}")


def _scene_small_files(random: Random) -> Case:
    kib = random.choice([1, 4, 8])
    return Case("small files only", [*TRAIN, *_parts(random)], _finished, shell=f"ulimit -f {kib}; {RUN}")


def _scene_read_only(random: Random) -> Case:
    arguments = random.choice([[*TRAIN, *_parts(random)], ["partition", "g.npz", "--out", "shards"]])
    return Case("read-only folder", arguments, must="refused", shell=READ_ONLY)


def _scene_full_output(random: Random) -> Case:
    if random.random() < 0.5:
        return Case("full output", TRAIN, _finished, shell=f"{RUN} > /dev/full", status=(0, 1))
    return Case("full output", INSPECT, must="refused", shell=f"{RUN} > /dev/full", status=(1, 2))


def _scene_closed_pipe(random: Random) -> Case:
    arguments, right = random.choice([(TRAIN, _finished), (INSPECT, lambda ended: None)])
    return Case("closed pipe", arguments, right, "right", shell='"$0" "$@" | true; exit ${PIPESTATUS[0]}')


def _scene_one_line_read(random: Random) -> Case:
    arguments = [*TRAIN, "--eval-every", "1"]
    return Case("head -1", arguments, _finished, "right", shell='"$0" "$@" | head -1; exit ${PIPESTATUS[0]}')


def _scene_closed_streams(random: Random) -> Case:
    closed = random.choice(["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    return Case(f"closed streams {closed}", TRAIN, _finished, "right", shell=f"{RUN} {closed}")


def _scene_no_ports(random: Random) -> Case:
    shell = NO_PORTS.format(last=random.choice([40000, 40001, 40003]))
    return Case("no free port", [*TRAIN, "--parts", "2", "--timeout", "5"], must="refused", shell=shell)


def _scene_no_loopback(random: Random) -> Case:
    shell = "unshare -n " + RUN.removeprefix("exec ")
    arguments = [*TRAIN, *_parts(random), "--timeout", "5"]
    return Case("no network at all", arguments, _finished, shell=shell)


def _scene_wrong_interface(random: Random) -> Case:
    name = random.choice(["nowhere", "eth99", "", "lo,nowhere", "\x1b[31m", "a" * 300])
    arguments = [*TRAIN, "--parts", "2", "--timeout", "5"]
    return Case("wrong interface", arguments, _finished, environ={"GLOO_SOCKET_IFNAME": name})


def _scene_threads(random: Random) -> Case:
    return Case("many threads", [*TRAIN, "--threads", random.choice(["100000", "4096", "1000"])], must="refused")


def _scene_no_scratch(random: Random) -> Case:
    where = random.choice(["/nowhere", "/dev/null", "/proc", "n" * 300, "g.npz"])
    return Case("no scratch folder", [*TRAIN, *_parts(random)], _finished, environ={"TMPDIR": where})


def _scene_encoding(random: Random) -> Case:
    environ = {"PYTHONIOENCODING": random.choice(["ascii", "latin1", "utf-16"]), "LC_ALL": "C", "PYTHONUTF8": "0"}
    arguments = random.choice([INSPECT, [*TRAIN[:-1], "é"], ["inspect", "é.npz"]])
    return Case("another encoding", arguments, environ=environ)


def _scene_terminal(random: Random) -> Case:
    environ = {"TERM": random.choice(["dumb", "", "x" * 999]), "COLUMNS": random.choice(["1", "0", "-5", "x", "99999"])}
    environ[random.choice(["FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"])] = "1"
    return Case("another terminal", random.choice([INSPECT, ["--help"], ["strategies"]]), environ=environ)


def _scene_no_home(random: Random) -> Case:
    home = random.choice(["/nowhere", "/dev/null", "", "g.npz"])
    return Case("no home", [*TRAIN, *_parts(random)], _finished, "right", environ={"HOME": home})


def _scene_libraries(random: Random) -> Case:
    name = random.choice(["MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMBA_DISABLE_JIT"])
    return Case("libraries", TRAIN, _finished, environ={name: random.choice(["-1", "0", "100000", "1"])})


def _scene_kernels(random: Random) -> Case:
    arguments = [*TRAIN, *_parts(random)]
    return Case(
        "kernels", arguments, _finished, environ={"FULLGRAPH_KERNELS": random.choice(["torch", "x", "", "NUMBA"])}
    )
