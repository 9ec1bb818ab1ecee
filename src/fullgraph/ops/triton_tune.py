"""Plans chosen by timing instead of by rule, if FULLGRAPH_TUNE=1.

A choice is kept in memory and in a file in the user's cache folder: a plan determines the order of sums, so a later run
gives the same bits only with the same plan.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import mkstemp

import torch
from torch import Tensor

from fullgraph.ops.structure import Structure
from fullgraph.ops.triton_plan import Plan, power_of_two

ROUNDS = 3


def tuned(default: Plan, s: Structure, x: Tensor, run: Callable[[Plan], None]) -> Plan:
    """Return the fastest plan for such products; `run` computes one by a plan. Without FULLGRAPH_TUNE: the default."""
    if os.environ.get("FULLGRAPH_TUNE") != "1" or not x.is_cuda:
        return default
    degree, cols = (power_of_two(n) for n in (s.num_arcs // max(1, s.num_rows), s.num_cols))
    kind = f"{x.shape[1]} x {x.dtype}, degree {degree}, columns {cols}"
    key = f"{torch.cuda.get_device_name(x.device)}: {kind}"
    known = _known()
    if key not in known:
        known[key] = min(candidates(default, x.shape[1], x.element_size()), key=lambda plan: milliseconds(run, plan))
        _write(known)
    return known[key]


def candidates(default: Plan, width: int, itemsize: int) -> Iterator[Plan]:
    """Yield plans with slices of 64 to 512 bytes, tiles of 1 and 2 KiB per warp, and one or two warps."""
    slices = sorted({min(power_of_two(width), size // itemsize) for size in (64, 128, 256, 512)})
    for columns in slices:
        for tile in (1024, 2048):
            for warps in (1, 2):
                arcs = tile * warps // (columns * itemsize)
                if 2 <= arcs <= 64:
                    yield replace(default, columns=columns, arcs=arcs, warps=warps)


def milliseconds(run: Callable[[Plan], None], plan: Plan) -> float:
    """Return the median time of a product with this plan, after a first run that compiles."""
    run(plan)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(ROUNDS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run(plan)
        mark.record()
    marks[-1].synchronize()
    times: list[float] = [before.elapsed_time(after) for before, after in pairwise(marks)]
    return median(times)


def _file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fullgraph" / "plans.json"


@cache
def _known() -> dict[str, Plan]:
    try:
        return {key: Plan(**plan) for key, plan in json.loads(_file().read_text()).items()}
    except (OSError, ValueError, TypeError):  # no file, or a file of another version
        return {}


def _write(known: dict[str, Plan]) -> None:
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        handle, part = mkstemp(prefix="plans-", dir=_file().parent)
        with os.fdopen(handle, "w") as file:
            json.dump({key: asdict(plan) for key, plan in known.items()}, file, indent=1)
        os.replace(part, _file())
    except OSError:  # the folder is not writable: only this process keeps the choice
        pass
