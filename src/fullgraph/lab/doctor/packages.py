"""Packages: the required ones, the extras, and torch with its backends and its GPUs."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from fullgraph.device import GET_TORCH, available, built_for, listed
from fullgraph.lab.doctor.finding import BAD, OK, OPTION, Finding
from fullgraph.version import __version__
from fullgraph.words import size

USES = {  # the purpose of each package of an extra; the package is also its module
    "torch_geometric": "graphs and layers of PyG",
    "pyarrow": "Parquet and CSV",
    "kaminpar": "--partitioner kaminpar",
    "mtkahypar": "--partitioner mtkahypar",
    "tensorboard": "--log tensorboard",
    "wandb": "--log wandb",
    "cloudpickle": "models defined in a notebook",
}
LINE = re.compile(r"([A-Za-z0-9_.-]+)(?:>=([0-9.]+))?[^;]*(?:;.*extra == ['\"](\w+)['\"])?")


def python() -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    text = f"{platform.python_version()}, fullgraph {__version__}, {platform.platform(terse=True)}"
    yield Finding("python", OK if good else BAD, text, "" if good else "install Python 3.11 or later")


def needed() -> Iterator[Finding]:
    """The requirements in the package's metadata, except torch and METIS, which have their own checks."""
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
    """Optional packages; everything else works without them."""
    for _, package, _, extra in _requirements():
        if not extra or package not in USES:
            continue
        if find_spec(package) is None:
            fix = f"pip install 'fullgraph[{extra}]'"
            yield Finding(package, OPTION, f"not installed: no {USES[package]}", fix)
        else:
            yield Finding(package, OK, f"{_version(package) or ''}: {USES[package]}")


def _requirements() -> Iterator[tuple[str, str, str | None, str | None]]:
    """(line, package, least version, extra) of each requirement of the installed package."""
    with suppress(PackageNotFoundError):
        for line in requires("fullgraph") or []:
            name, least, extra = LINE.match(line).groups()  # type: ignore[union-attr]
            yield line, name, least, extra


def numba() -> Iterator[Finding]:
    """Compiled loops for a CPU; without them torch's loops are many times slower."""
    from fullgraph.ops import kernels

    try:
        import numba
    except Exception as error:
        yield Finding("numba", BAD, f"it does not start: {error}", "pip install 'numba>=0.60'")
        return
    if kernels._compiled() is None:
        yield Finding("numba", BAD, f"{numba.__version__}, compiling is switched off", "unset NUMBA_DISABLE_JIT")
        return
    cache = Path(numba.config.CACHE_DIR or Path(kernels.__file__).parent)
    writable = _can_write(cache)
    text = (
        f"{numba.__version__}, cache in {cache if writable else 'another folder, because the usual one is read-only'}"
    )
    fix = "" if writable else "set NUMBA_CACHE_DIR to a folder that can be written, or every start may compile again"
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


LEAST = (2, 6)
TORCH = "pip install 'torch>=2.6'"


def torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:
        yield Finding("torch", BAD, f"it does not start: {error}", TORCH)
        return
    have = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    built = f"built for {built_for() or 'CPUs'}"
    text = f"{torch.__version__}, {built}, {torch.get_num_threads()} threads"
    yield Finding("torch", OK if have >= LEAST else BAD, text, "" if have >= LEAST else TORCH)


def backends() -> Iterator[Finding]:
    from fullgraph.transport.job import backends

    there = backends()
    if there["gloo"]:
        yield Finding("gloo", OK, "ranks on CPUs, and on GPUs through pinned memory")
    else:
        yield Finding("gloo", BAD, "not in this torch: only one rank can train", f"{TORCH} from PyPI or pytorch.org")
    if there["nccl"]:
        yield Finding("nccl", OK, "ranks on GPUs, --backend nccl")
    else:
        fix = f"with GPUs: install a torch that is built for them, {GET_TORCH}"
        yield Finding("nccl", OPTION, "not in this torch: GPUs communicate through gloo", fix)


def gpus() -> Iterator[Finding]:
    """Each GPU with its memory; or a driver whose GPUs torch does not see."""
    found = listed()
    for number, (name, whole, free, generation) in enumerate(found):
        yield Finding(f"GPU {number}", OK, f"{name}, {size(whole)}, {size(free)} free{generation}")
    if found:
        return
    driver = _driver()
    if driver and not built_for():
        fix = f"install a torch that is built for GPUs, {GET_TORCH}"
        yield Finding("GPU", BAD, f"{driver} is here, and torch is built for CPUs", fix)
    elif driver:
        fix = "update the driver, or install a torch for its version; see nvidia-smi"
        yield Finding("GPU", BAD, f"{driver} is here, and torch does not see it", fix)
    else:
        yield Finding(
            "GPU", OPTION, "none: training runs on the CPU", "for another --device than cpu, use a machine with a GPU"
        )


def triton() -> Iterator[Finding]:
    """Kernels for GPUs."""
    there = find_spec("triton") is not None
    if there:
        import triton

        yield Finding("Triton", OK, f"{triton.__version__}, kernels for GPUs")
    elif available():
        yield Finding("Triton", BAD, "not installed: a GPU runs torch's slower operations", "pip install 'triton>=3.2'")
    else:
        yield Finding(
            "Triton", OPTION, "not installed, and not needed without a GPU", "comes with a torch that is built for GPUs"
        )


def _driver() -> str:
    """The first GPU that NVIDIA's driver lists."""
    if shutil.which("nvidia-smi"):
        with suppress(OSError, subprocess.SubprocessError):
            line = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            done = subprocess.run(line, capture_output=True, text=True, timeout=20)
            return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else ""
    return ""
