"""Torch, what it can send by, and GPUs."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec

from fullgraph.device import GET_TORCH, available, built_for, listed
from fullgraph.lab.doctor.finding import BAD, OK, OPTION, Finding
from fullgraph.words import size

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
    from fullgraph.transport.available import backends

    there = backends()
    if there["gloo"]:
        yield Finding("gloo", OK, "ranks on CPUs, and on GPUs through pinned memory")
    else:
        yield Finding("gloo", BAD, "this torch has none: only one rank can train", f"{TORCH} from PyPI or pytorch.org")
    if there["nccl"]:
        yield Finding("nccl", OK, "ranks on GPUs, --backend nccl")
    else:
        fix = f"with GPUs: install a torch that is built for them, {GET_TORCH}"
        yield Finding("nccl", OPTION, "this torch has none: GPUs talk through gloo", fix)


def gpus() -> Iterator[Finding]:
    """Each GPU and its memory; a driver without a torch that knows it."""
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
