"""Packages: those that are needed, and the extras."""

import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from fullgraph.lab.doctor.finding import BAD, OK, OPTION, Finding
from fullgraph.version import __version__

USES = {  # of what the extras bring, by package, which is its module as well
    "torch_geometric": "graphs and layers of PyG",
    "pyarrow": "Parquet and CSV",
    "kaminpar": "--partitioner kaminpar",
    "mtkahypar": "--partitioner mtkahypar",
    "tensorboard": "--tensorboard",
    "cloudpickle": "models defined in a notebook",
}
LINE = re.compile(r"([A-Za-z0-9_.-]+)(?:>=([0-9.]+))?[^;]*(?:;.*extra == ['\"](\w+)['\"])?")


def python() -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    text = f"{platform.python_version()}, fullgraph {__version__}, {platform.platform(terse=True)}"
    yield Finding("python", OK if good else BAD, text, "" if good else "install Python 3.11 or later")


def needed() -> Iterator[Finding]:
    """What the package's own metadata says it needs, but for torch and METIS, which have checks of their own."""
    found = []
    for line, name, least, extra in _requirements():
        if extra or name in ("torch", "pymetis"):
            continue
        have = _version(name)
        if have is None or (least and _numbers(have) < _numbers(least)):
            told = f"{name} {have or 'is not installed'}" + (f", {least} or later is needed" if have else "")
            yield Finding("packages", BAD, told, f"pip install '{line}'")
        else:
            found.append(f"{name} {have}")
    if found:
        yield Finding("packages", OK, ", ".join(found))
    else:
        yield Finding("packages", OPTION, "fullgraph is imported from a folder, not installed", "pip install .")


def extras() -> Iterator[Finding]:
    """Each brings something that everything else does without."""
    for _, package, _, extra in _requirements():
        if not extra or package not in USES:
            continue
        if find_spec(package) is None:
            fix = f"pip install 'fullgraph[{extra}]'"
            yield Finding(package, OPTION, f"not installed: no {USES[package]}", fix)
        else:
            yield Finding(package, OK, f"{_version(package) or ''}: {USES[package]}")


def _requirements() -> Iterator[tuple[str, str, str | None, str | None]]:
    """(line, package, least version, extra) of what the installed package asks for."""
    with suppress(PackageNotFoundError):
        for line in requires("fullgraph") or []:
            name, least, extra = LINE.match(line).groups()  # type: ignore[union-attr]
            yield line, name, least, extra


def numba() -> Iterator[Finding]:
    """Compiled loops for a CPU; without them torch's own are many times slower."""
    from fullgraph.ops import kernels

    try:
        import numba
    except Exception as error:
        yield Finding("numba", BAD, f"it does not start: {error}", "pip install 'numba>=0.60'")
        return
    if kernels._compiled() is None:
        yield Finding("numba", BAD, f"{numba.__version__}, told not to compile", "unset NUMBA_DISABLE_JIT")
        return
    cache = Path(numba.config.CACHE_DIR or Path(kernels.__file__).parent)
    writable = _can_write(cache)
    text = (
        f"{numba.__version__}, cache in {cache if writable else 'a folder of its own, for the usual one is read-only'}"
    )
    fix = "" if writable else "set NUMBA_CACHE_DIR to a folder that can be written, or every start may compile anew"
    yield Finding("numba", OK if writable else OPTION, text, fix)


def metis() -> Iterator[Finding]:
    """The default partitioner, on a ring of eight nodes."""
    try:
        import pymetis

        _, parts = pymetis.part_graph(2, adjacency=[[(i - 1) % 8, (i + 1) % 8] for i in range(8)])
        good = sorted(set(parts)) == [0, 1]
        yield Finding("METIS", OK if good else BAD, f"pymetis {version('pymetis')} cuts", "" if good else REINSTALL)
    except Exception as error:
        yield Finding("METIS", BAD, f"pymetis does not work: {error}", REINSTALL)


REINSTALL = "pip install --force-reinstall 'pymetis>=2025.2.2', or train with --partitioner contiguous"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)[:3]]


def _can_write(folder: Path) -> bool:
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return os.access(place, os.W_OK)
