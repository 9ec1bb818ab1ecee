"""A disk that fills at any moment: one line of error, no user data lost, and the same end after space is freed."""

import subprocess
import tempfile
from pathlib import Path
from random import Random

from faults.command import STRATEGIES, Command, difference, leftovers, options, small_graph
from faults.kills import EPOCHS, reference
from faults.trials import Campaign

ROOM_KB = 4096


def trial(number: int, shared: Path) -> str:
    random = Random(number)
    strategy = list(STRATEGIES)[number % len(STRATEGIES)]
    whole = reference(strategy, shared)
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here, disk = Path(scratch), Path(scratch) / "disk"
        disk.mkdir()
        small_graph(here)
        kilobytes = random.randint(40, 700)
        mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk))
        try:
            (disk / "mine.txt").write_text("mine")
            arguments = ["train", here / "g.npz", "--epochs", EPOCHS, "--out", disk / "run", *options(strategy)]
            with Command(*arguments, cwd=here) as command:
                code = command.finish().code
                assert code in (0, 2), command.err
                lines = command.complaints
                assert code == 0 or len(lines) == 1, command.err
                assert code == 0 or "disk" in lines[0], command.err
            assert (disk / "mine.txt").read_text() == "mine"
            assert not leftovers(disk / "run"), f"left behind: {leftovers(disk / 'run')}"
            mount("-o", f"remount,size={ROOM_KB}k", str(disk))
            kept = (disk / "run" / "config.json").exists()
            again = ["train", "--resume", disk / "run"] if kept else arguments
            with Command(*again, cwd=here) as command:
                if code:
                    assert command.finish().code == 0, command.err
            differs = difference(whole, disk / "run")
            assert not differs, f"{strategy}, {kilobytes} kB: other {differs.names}"
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    return "fitted" if code == 0 else "full, resumed" if kept else "full, started again"


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"small disks need root: {done.stderr}"


CAMPAIGN = Campaign(trial, 44, "a full disk is one line; nothing is lost, and with room again the run ends the same")
