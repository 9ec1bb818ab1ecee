"""Limits of a job, and helper processes that do not answer: reported in one line before the kernel ends anything."""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from faults.command import Command, complaints, send, small_graph, wait_for
from fullgraph import cgroup
from fullgraph.train import fork_server_main
from tests.support import children_of

MIB = 1 << 20


def fake(monkeypatch, tmp_path, lines, mounts, files):
    """A machine whose process is in these groups; mounts: (root, folder, kind, options)."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cgroup").write_text("\n".join(lines) + "\n")
    told = [f"30 20 0:2{n} {root} {tmp_path / at} rw - {kind} cgroup {options}" for n, (root, at, kind, options)
            in enumerate(mounts)]  # fmt: skip
    (tmp_path / "proc" / "mountinfo").write_text("\n".join(told) + "\n")
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    monkeypatch.setattr(cgroup, "PROC", tmp_path / "proc")


def test_systemds_own_group_is_seen(monkeypatch, tmp_path):
    """The limit belongs to the slice, two groups above the process; cached files count as free."""
    own = "fs/system.slice/job.slice/run.scope"
    stat = f"anon {100 * MIB}\nactive_file {30 * MIB}\ninactive_file {20 * MIB}\nshmem 5\n"
    there = {f"{own}/memory.max": "max", f"{own}/memory.current": 5, f"{own}/memory.stat": "",
             "fs/system.slice/job.slice/memory.max": 700 * MIB, "fs/system.slice/job.slice/memory.current": 300 * MIB,
             "fs/system.slice/job.slice/memory.stat": stat, f"{own}/pids.max": 64}  # fmt: skip
    mounts = [("/", "fs", "cgroup2", "rw")]
    fake(monkeypatch, tmp_path, ["0::/system.slice/job.slice/run.scope"], mounts, there)
    assert cgroup.free_memory() == 450 * MIB
    assert cgroup.most_threads() == 64


def test_slurms_own_group_is_seen(monkeypatch, tmp_path):
    own = "fs/memory/slurm/uid_7/job_9/step_0"
    there = {f"{own}/memory.limit_in_bytes": 600 * MIB, f"{own}/memory.usage_in_bytes": 200 * MIB,
             f"{own}/memory.stat": f"active_file 1\ntotal_active_file {8 * MIB}\ntotal_inactive_file 0\n",
             "fs/memory/memory.limit_in_bytes": 2**63 - 4096, "fs/memory/memory.usage_in_bytes": 10,
             "fs/memory/memory.stat": ""}  # fmt: skip
    mounts = [("/", "fs/cpu", "cgroup", "rw,cpu"), ("/", "fs/memory", "cgroup", "rw,memory")]
    lines = ["5:cpu,cpuacct:/", "4:memory:/slurm/uid_7/job_9/step_0", "0::/"]
    fake(monkeypatch, tmp_path, lines, mounts, there)
    assert cgroup.free_memory() == 408 * MIB


def test_a_containers_group_is_seen(monkeypatch, tmp_path):
    """Its mount shows only its own group, under the path that the machine uses."""
    there = {"fs/memory.max": 500 * MIB, "fs/memory.current": 0, "fs/memory.stat": ""}
    fake(monkeypatch, tmp_path, ["0::/docker/ab"], [("/docker/ab", "fs", "cgroup2", "rw")], there)
    assert cgroup.free_memory() == 500 * MIB


def test_no_groups_are_no_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroup, "PROC", tmp_path)
    assert cgroup.free_memory() is cgroup.most_threads() is None


@contextmanager
def group_of(nbytes):
    """A control group with this memory limit, as a command's prefix; skips if none can be created."""
    lines = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    group = Path("/sys/fs/cgroup/memory" + lines.get("memory", "/none")) / f"fullgraph-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs root, and control groups of memory that can be written")
    try:
        (group / "memory.limit_in_bytes").write_text(str(nbytes))
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        deadline = time.monotonic() + 10
        while group.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


@pytest.mark.cold
@pytest.mark.parametrize("nodes", [80_000, 300_000])
def test_a_job_without_memory_says_so(nodes, tmp_path):
    """A job that cannot fit is refused; in one that might fit, a rank is ended, and not the process that reports it."""
    graph = f"sbm:nodes={nodes},edges={nodes * 5},features=64"
    run = ["train", graph, "--partitioner", "contiguous", "--parts", 2, "--epochs", 3, "--hidden", 128, "--out", "run"]
    with group_of(700 * MIB) as prefix, Command(*run, cwd=tmp_path, prefix=prefix) as command:
        command.finish()
        assert command.code in (1, 2), command.err
        assert re.search(r"[MG]B are free|for lack of memory|out of memory", complaints(command.err)[-1]), command.err


def _fork_servers(launcher):
    """Those that run their own program: until then a stopped child holds its launcher within `Popen`."""
    found = {pid: Path(f"/proc/{pid}/cmdline") for pid in children_of(launcher)}
    return [pid for pid, line in found.items() if line.exists() and fork_server_main.__file__ in line.read_text()]


@pytest.mark.cold
@pytest.mark.timeout(400)
def test_a_stopped_helper_is_named_within_the_timeout(tmp_path):
    small_graph(tmp_path)
    with Command("train", "g.npz", "--parts", 2, "--out", "run", "--timeout", 4, cwd=tmp_path) as command:
        helper = []
        wait_for(lambda: helper.extend(_fork_servers(command.process.pid)) or helper, "the process that imports")
        send(helper[0], signal.SIGSTOP)
        wait_for(lambda: "starting 2 ranks" in command.out, "its own imports")  # a minute on a busy machine
        command.finish(60)
        assert command.code == 1
        lines = complaints(command.err)
        assert len(lines) == 1, command.err
        assert re.search(rf"\(pid {helper[0]}\) gives no sign of life for 4 s", lines[0])
    assert subprocess.run(["ps", "-p", str(helper[0])], capture_output=True).returncode != 0


@pytest.mark.cold
@pytest.mark.skipif(not shutil.which("strace"), reason="a file system without locks is made by strace")
def test_a_temporary_folder_without_locks_is_one_line(tmp_path):
    small_graph(tmp_path)
    none = ["strace", "-f", "-q", "-o", "/dev/null", "-e", "trace=flock", "-e", "inject=flock:error=ENOLCK"]
    with Command("train", "g.npz", "--parts", 2, "--out", "run", cwd=tmp_path, prefix=none) as command:
        assert command.finish().code == 2, (command.code, command.err)
        lines = complaints(command.err)
        assert len(lines) == 1, command.err
        assert "set TMPDIR" in lines[0]
