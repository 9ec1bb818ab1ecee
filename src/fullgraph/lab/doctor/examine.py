"""All checks, in the order in which one explains the next."""

from collections.abc import Callable, Iterator

from fullgraph.display import SILENT, Display
from fullgraph.errors import one_line
from fullgraph.lab.doctor import machine, packages, torches
from fullgraph.lab.doctor.finding import BAD, Finding
from fullgraph.lab.doctor.trial import trial

CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "python": packages.python,
    "packages": packages.needed,
    "torch": torches.torch,
    "backends": torches.backends,
    "GPUs": torches.gpus,
    "Triton": torches.triton,
    "numba": packages.numba,
    "METIS": packages.metis,
    "cores": machine.cores,
    "memory": machine.memory,
    "disk": machine.disk,
    "open files": machine.files,
    "processes": machine.processes,
    "shared memory": machine.shared_memory,
    "interfaces": machine.interfaces,
    "extras": packages.extras,
    "trial": trial,
}


def examine(leave_out: tuple[str, ...] = (), display: Display = SILENT) -> list[Finding]:
    """What every check finds; one that fails in a way nobody thought of is a finding too."""
    found: list[Finding] = []
    checks = {name: check for name, check in CHECKS.items() if name not in leave_out}
    with display.phase("looking at this machine"):
        for name, check in checks.items():
            with display.phase("training on two ranks" if name == "trial" else f"looking at {name}"):
                found += _found(name, check)
    return found


def _found(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:
        return [Finding(name, BAD, f"the check failed: {one_line(error, 160)}", "see what it says")]
