"""Mutated inputs of every kind: exit status 2 and one line, or exactly the right result.

No traceback, no hang, no gigabytes, no file changed outside the case's folder, no user data lost. A trial is a batch of
cases in a separate process, which is restarted if a case ends it.

    python -m faults.inputs TRIAL [CASE]      runs a batch, or one of its cases, and prints the result
"""

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from faults.trials import Campaign

CASES = 100  # per trial
SILENCE_S = 300.0  # longer than any case with its preparations


def trial(number: int, shared: Path, cases: int = CASES) -> str:
    """Run a batch; its label counts the ends of its cases."""
    ends: Counter[str] = Counter()
    broken: list[str] = []
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        first = 0
        while first < cases:
            for index, end, text in _cases(number, range(first, cases), shared, Path(scratch)):
                ends[end] += 1
                first = index + 1
                if end == "broken":
                    broken.append(f"case {number}/{index}: {text}")
    assert not broken, f"{len(broken)} of {cases} cases: " + "\n".join(broken)[:3500]
    return ", ".join(f"{ends[end]} {end}" for end in ("refused", "right", "fell back") if ends[end])


def _cases(number: int, cases: range, shared: Path, scratch: Path) -> list[tuple[int, str, str]]:
    """Run cases in one process, until the last case or until the process must be replaced."""
    command = [sys.executable, "-m", "faults.inputs", str(number), "--first", str(cases.start), "--last",
               str(cases[-1]), "--report", "--shared", str(shared), "--scratch", str(scratch)]  # fmt: skip
    done: list[tuple[int, str, str]] = []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        assert child.stdout is not None
        selector, tail = selectors.DefaultSelector(), b""
        selector.register(child.stdout, selectors.EVENT_READ)
        noise = b""
        while selector.select(SILENCE_S) and (data := os.read(child.stdout.fileno(), 65536)):
            *lines, tail = (tail + data).split(b"\n")
            for line in lines:
                try:
                    done.append(tuple(json.loads(line)))
                except ValueError:
                    noise += line + b"\n"
        child.kill()
        child.wait()
    if child.returncode not in (0, -9) or not done:
        index = done[-1][0] + 1 if done else cases.start
        text = f"the process ended with status {child.returncode}: {(noise + tail)[-2000:].decode(errors='replace')}"
        done.append((index, "broken", text))
    elif child.returncode == -9 and done[-1][0] < cases[-1]:
        done.append((done[-1][0] + 1, "broken", f"no sign of life for {SILENCE_S:g} s"))
    return done


CAMPAIGN = Campaign(trial, 300, "mutated inputs: exit 2 and one line, or exactly the right result")
