"""A command that is forked from a keeper behaves like a newly started one (tests/warm)."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests import warm

# What a script sees of its surroundings; `torch` is left out of the comparison.
SCRIPT = """
import json, os, signal, sys, threading
told = {
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "name": __name__, "file": __file__,
    "main": sys.modules["__main__"].__dict__ is globals(), "variable": os.environ.get("FG_WORD"),
    "parent": os.getppid(), "alone": os.getpgid(0) == os.getpid(), "threads": threading.active_count(),
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "handlers": [str(signal.getsignal(n)).split(" at ")[0] for n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
    "streams": [
        (s.fileno(), s.encoding, s.errors, s.line_buffering, s.write_through)
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "inherited": os.read(int(sys.argv[1]), 4).decode() if len(sys.argv) > 1 else "",
    "input": sys.stdin.read(), "torch": "torch" in sys.modules,
}
print(json.dumps(told))
print("a word", file=sys.stderr)
sys.exit(5)
"""


HANDLE = 400  # a descriptor whose number does not depend on what else is open


def told_to(popen, folder, *flags, arguments=(), **how):
    """(what the script saw, how it ended)"""
    command = [sys.executable, *flags, "script.py", *arguments]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with popen(command, cwd=folder, text=True, **streams, **how) as process:
        out, err = process.communicate("some words", timeout=100)
    told = json.loads(out)
    return told.pop("torch"), (told, err, process.returncode)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize("session", [False, True])
def test_a_script_sees_what_it_would_see_anyway(folder, session):
    found = []
    for popen in (warm.COLD, subprocess.Popen):
        read, write = os.pipe()
        os.write(write, b"here")
        handle = os.dup2(read, HANDLE)
        how = {"pass_fds": [handle], "env": {**os.environ, "FG_WORD": "mine"}, "start_new_session": session}
        found.append(told_to(popen, folder, arguments=[str(handle), "-m", "ü"], **how))
        os.close(handle), os.close(read), os.close(write)
    (before, anew), (after, forked) = found
    assert (before, after) == (False, True)
    assert {name: (value, anew[0][name]) for name, value in forked[0].items() if value != anew[0][name]} == {}
    assert forked == anew


def test_blocked_signals_stay_blocked(folder):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        forked, (told, _, _) = told_to(subprocess.Popen, folder)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert forked
    assert told["blocked"] == [signal.SIGUSR1]


@pytest.mark.parametrize("how", [{"env": {"NUMBA_NUM_THREADS": "1"}}, {"env": {"PYTHONPATH": "."}}, {"flag": "-E"}])
def test_what_a_keeper_cannot_know_starts_anew(folder, how):
    flags = [how["flag"]] if "flag" in how else []
    environ = {**os.environ, **how.get("env", {})}
    forked, _ = told_to(subprocess.Popen, folder, *flags, env=environ)
    assert not forked


@pytest.mark.cold
def test_a_cold_test_starts_its_commands_anew(folder):
    forked, _ = told_to(subprocess.Popen, folder)
    assert not forked


def test_commands_of_a_command_are_forked_too(folder):
    (folder / "outer.py").write_text(
        "import subprocess, sys\nsys.exit(subprocess.run([sys.executable, 'script.py']).returncode)"
    )
    done = subprocess.run([sys.executable, "outer.py"], cwd=folder, capture_output=True, text=True, timeout=100)
    assert (json.loads(done.stdout)["torch"], done.returncode) == (True, 5)


def test_a_signal_ends_one_as_it_ends_any(folder):
    (folder / "wait.py").write_text("print(1, flush=True)\nimport signal\nsignal.pause()")
    heard = [n for n in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) != signal.SIG_IGN]
    # a signal that this process ignores, as background jobs ignore SIGINT, is also ignored by a command
    for number in heard:
        line = [sys.executable, "wait.py"]
        with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout.read(1) == b"1"
            process.send_signal(number)
            assert process.wait(100) == -number


def test_an_error_is_a_traceback_and_status_1(folder):
    (folder / "wrong.py").write_text("raise ValueError('so it is')")
    done = subprocess.run([sys.executable, "wrong.py"], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: so it is\n")
