"""Devices: their names, whether this machine has them, and the operations that every accelerator offers.

Only this file, the kernels (ops/) and the streams (transport/) distinguish kinds of devices: torch's module of a
device (`torch.cuda`, `torch.xpu`, ...) offers the same calls for each. Torch is imported where it is used, because
names are checked before torch is needed.
"""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fullgraph.environ import number
from fullgraph.errors import InputError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
HOST = "cpu"
KINDS = (HOST, "cuda", "xpu")
NCCL = "cuda"  # the only devices whose memory nccl can send from
GET_TORCH = "https://pytorch.org/get-started"


@dataclass(frozen=True)
class OneDevice:
    """Accepts a kind of device, of which each rank takes one, or a numbered device: cpu, cuda, cuda:1, xpu."""

    words: tuple[str, ...] = KINDS

    def problem(self, value: Any) -> str | None:
        kind, colon, index = str(value).partition(":")
        if kind in self.words and (not colon or (kind != HOST and re.fullmatch(r"\d{1,4}", index, re.ASCII))):
            return None
        return f"one of {', '.join(self.words)}, or one with its number, such as {NCCL}:1"


DeviceName = Annotated[str, OneDevice()]


def is_accelerator(device: "torch.device | str") -> bool:
    """Whether the device is an accelerator, with its own memory and streams."""
    kind = device.partition(":")[0] if isinstance(device, str) else device.type
    return kind not in (HOST, "meta")


def require(name: str) -> None:
    """Refuse a device that this machine does not have."""
    if not is_accelerator(name):
        return
    import torch

    kind, _, index = name.partition(":")
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        raise InputError(f"--device {name}, but torch sees no GPU; use --device {HOST}")
    if found.type != kind:
        raise InputError(f"--device {name}, but torch sees {found.type} devices; use --device {found.type} or {HOST}")
    count = torch.accelerator.device_count()
    if index and int(index) >= count:
        raise InputError(f"device {name}, but torch sees {count} of them; count them from {kind}:0")


def device_of(name: str) -> "torch.device":
    """This rank's device; if there are more ranks than devices, ranks share them, unless each names its device.

    A launcher may show each rank all devices of its machine, or the rank's own alone (`srun --gpus-per-task=1`).
    """
    import torch

    require(name)
    if not is_accelerator(name) or ":" in name:
        return torch.device(name)
    count = torch.accelerator.device_count()
    if count > 1 and number("WORLD_SIZE", 1) > 1 and "LOCAL_RANK" not in os.environ:
        raise InputError(
            f"in the environment, LOCAL_RANK is not set, so that all ranks of this machine would use {name}:0 of its "
            f"{count} GPUs; set it to the rank's number on its machine, or start with torchrun or srun"
        )
    return torch.device(name, number("LOCAL_RANK", 0) % count)


SHARED_NCCL = "NCCL_MULTI_RANK_GPU_ENABLE"  # of NCCL 2.30 and later: several ranks may use one GPU


def identity(device: "torch.device") -> str:
    """The physical device, in words that differ between all devices of all machines; containers may share one."""
    known = getattr(module_of(device).get_device_properties(device), "uuid", None)
    return f"{device} of {os.uname().nodename}" if known is None else f"GPU {known}"


def refuse_shared(devices: Sequence[str]) -> None:
    """Refuse two ranks on one device, which nccl cannot serve. devices: the identity of each rank's device."""
    if os.environ.get(SHARED_NCCL) == "1":
        return
    for device in devices:
        ranks = [str(rank) for rank, other in enumerate(devices) if other == device]
        if len(ranks) > 1:
            raise InputError(
                f"ranks {', '.join(ranks[:-1])} and {ranks[-1]} have the same device ({device}), and nccl needs one "
                "for each rank; start at most as many ranks per machine as it has GPUs, give Slurm's tasks their own "
                "(--gpus-per-task=1), or use --backend gloo"
            )


def available() -> bool:
    """Whether torch sees an accelerator."""
    import torch

    return torch.accelerator.is_available()


def module_of(device: "torch.device") -> Any:
    """Torch's module of an accelerator, with its streams and events."""
    import torch

    return torch.get_device_module(device)


def by_kind(table: Mapping[str, T], device: "torch.device") -> T:
    """The table's entry for a device's kind; accelerators without an entry use `gpu`."""
    return table[device.type] if device.type in table else table["gpu"]


def marked(device: "torch.device", *, timing: bool = False) -> Any:
    """Record an event after all work so far on an accelerator's current stream."""
    module = module_of(device)
    event = module.Event(enable_timing=timing)
    event.record(module.current_stream(device))
    return event


def synchronize(device: "torch.device") -> None:
    """Wait until a device has done its work; a CPU's work is done when a call returns."""
    if is_accelerator(device):
        module_of(device).synchronize(device)


def peak_bytes(device: "torch.device") -> int:
    """The largest memory that tensors ever held on an accelerator; 0 on a CPU."""
    return int(module_of(device).max_memory_allocated(device)) if is_accelerator(device) else 0


def begin_peak(device: "torch.device") -> int:
    """Reset the peak; return the bytes that tensors hold now."""
    if not is_accelerator(device):
        return 0
    module_of(device).reset_peak_memory_stats(device)
    return int(module_of(device).memory_allocated(device))


def free_bytes(device: "torch.device") -> int:
    """The bytes that tensors can still take on an accelerator, with those that torch holds unused."""
    module = module_of(device)
    unused = int(module.memory_reserved(device)) - int(module.memory_allocated(device))
    return int(module.mem_get_info(device)[0]) + unused


def description(device: "torch.device") -> tuple[str, int]:
    """The name and the memory of an accelerator."""
    about = module_of(device).get_device_properties(device)
    return str(about.name), int(about.total_memory)


def listed() -> list[tuple[str, int, int, str]]:
    """Every device that torch sees: its name, its memory, how much of it is free, and its generation."""
    import torch

    if not available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    found = []
    for index in range(torch.accelerator.device_count()):
        device = torch.device(kind.type, index)
        about, free = module_of(device).get_device_properties(device), int(module_of(device).mem_get_info(device)[0])
        generation = f", compute capability {about.major}.{about.minor}" if hasattr(about, "major") else ""
        found.append((*description(device), free, generation))
    return found


def built_for() -> str:
    """The accelerator that torch was built for, in words; empty: CPU only."""
    import torch

    versions = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip, "XPU": getattr(torch.version, "xpu", None)}
    return next((f"{name} {version}" for name, version in versions.items() if version), "")


def profiled() -> list[Any]:
    """The activities that torch's profiler can record: the CPU, and the accelerator if there is one."""
    import torch

    known = torch.profiler.supported_activities() if available() else set()
    return sorted({torch.profiler.ProfilerActivity.CPU, *known}, key=lambda activity: activity.name)


def ignore_missing_driver() -> None:
    """Suppress torch's warning about a driver that does not start; `require` reports it in one line."""
    warnings.filterwarnings("ignore", message="CUDA initialization")
