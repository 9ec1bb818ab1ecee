"""How a product is divided on a GPU: sizes that change its speed and the order of its sums, but not its result.

A rule chooses them, or timing if FULLGRAPH_TUNE=1. A choice by timing is kept in memory and in a file in the user's
cache folder: a plan determines the order of sums, so a later run gives the same bits only with the same plan.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import mkstemp

import torch
from torch import Tensor

from fullgraph.ops.structure import Structure

L2_BYTES = 32 << 20  # the part of the cache of an H100 or H200 (50 MiB) that a slice of x may fill
LINE_BYTES = 128  # bytes per row of x in a slice, if slices stay in the cache
ROW_BYTES = 256  # bytes per row of x in a slice, if they do not
WHOLE_BYTES = 512  # the longest row that is read at once if slices do not divide it
TILE_NUMBERS = 512  # numbers that a warp holds at the same time: 16 per thread
MOST_ARCS = 8  # maximum arcs in a tile of the product; more do not increase the reads in flight
ARCS_EACH = 256  # arcs that keep a program busy for longer than its start takes


@dataclass(frozen=True, slots=True)
class Plan:
    """A program has `rows` rows, or a piece of at most `chunk` arcs, and reads [arcs, columns] of x at once."""

    columns: int  # a power of two, like `arcs`
    arcs: int
    warps: int
    rows: int
    chunk: int
    pad: bool = True  # copy x to rows that begin at sectors, if that is expected to pay


def plan_product(num_rows: int, num_cols: int, num_arcs: int, width: int, itemsize: int) -> Plan:
    """Return the plan for x with `width` numbers of `itemsize` bytes per row."""
    cached = num_cols * LINE_BYTES <= L2_BYTES
    whole, columns = power_of_two(width), max(1, (LINE_BYTES if cached else ROW_BYTES) // itemsize)
    if width % columns and whole * itemsize <= WHOLE_BYTES:
        columns = whole
    columns = min(whole, columns)
    arcs = min(MOST_ARCS, TILE_NUMBERS // columns) if columns * itemsize >= LINE_BYTES else TILE_NUMBERS // columns
    degree = max(1, num_arcs // max(1, num_rows))
    return Plan(columns, min(64, max(2, arcs)), 1, rows_each(degree), chunk_size(degree))


def plan_arcs(num_rows: int, num_cols: int, num_arcs: int, width: int) -> Plan:
    """Return a plan for kernels whose `columns` cover all `width` numbers of an arc (its heads, or a head's row)."""
    columns = power_of_two(width)
    arcs = min(64, max(1, TILE_NUMBERS // columns))
    degree = max(1, num_arcs // max(1, num_rows))
    return Plan(columns, arcs, min(8, max(1, arcs * columns // TILE_NUMBERS)), rows_each(degree), chunk_size(degree))


def rows_each(degree: int) -> int:
    """Return the number of rows of `degree` arcs per program."""
    return min(16, power_of_two(max(1, ARCS_EACH // degree)))


def chunk_size(degree: int) -> int:
    """Return the longest row for one program, well above the mean so that few rows need a second kernel."""
    return min(8192, max(1024, power_of_two(4 * degree)))


def padded_width(width: int, itemsize: int, degree: int) -> int:
    """Return the width to copy x to, so that its rows begin at cache sectors (32 bytes); `width` if that costs more.

    The copy pays if rows are read often and padding adds little. The worse the alignment, the sooner it pays.
    """
    sector, row = 32 // itemsize, width * itemsize
    padded = ceil_div(width, sector) * sector
    misaligned = degree >= 16 if row % 8 else degree >= 128 and row % 16 != 0
    return padded if misaligned and 4 * padded <= 5 * width else width


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


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
