"""Tables of any size from a seed: edges between texts in many Parquet files, and how long they take to become shards.

python benchmarks/tables.py write FOLDER --edges 10000000 --files 20
python benchmarks/tables.py measure FOLDER --parts 8 [--kills 2] [--memory]     (time, peak memory; killed, resumed)
python benchmarks/tables.py fit SECONDS.jsonl                                   (exponent, projection to 5G edges)
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np

BLOCK = 1 << 20


def write(folder: Path, edges: int, nodes: int, files: int, features: int, seed: int) -> None:
    """Write nodes with communities of about 1000: 7 of 8 edges stay inside one; degrees follow a power law."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "edges").mkdir(parents=True)
    (folder / "nodes").mkdir()
    count = max(1, nodes // 1000)
    order = np.random.default_rng((seed, 0)).permutation(nodes)  # row in the table of the node with each number

    def texts(numbers: np.ndarray) -> pa.Array:
        """Return texts such as user-000123456. Digits are computed, because formatting takes longer than all else."""
        letters = np.empty((len(numbers), 14), np.uint8)
        letters[:, :5] = np.frombuffer(b"user-", np.uint8)
        rest = numbers * 7919 % 10**9
        for digit in range(13, 4, -1):
            rest, letters[:, digit] = rest // 10, rest % 10 + ord("0")
        offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 14
        return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(letters))

    written = 0
    for file in range(files):
        rng = np.random.default_rng((seed, 1, file))
        rows = edges * (file + 1) // files - written
        with pq.ParquetWriter(
            folder / "edges" / f"part-{file:05}.parquet", pa.schema([("source", pa.string()), ("target", pa.string())])
        ) as out:
            for low in range(0, rows, BLOCK):
                size = min(BLOCK, rows - low)
                source = (rng.random(size) ** 2 * nodes).astype(np.int64)
                near = source // 1000 * 1000 + rng.integers(0, 1000, size)
                far = (rng.random(size) ** 2 * nodes).astype(np.int64)
                target = np.where(rng.random(size) < 0.875, np.minimum(near, nodes - 1), far)
                out.write_table(pa.table({"source": texts(order[source]), "target": texts(order[target])}))
        written += rows
    made = 0
    for file in range(4):
        rng = np.random.default_rng((seed, 2, file))
        rows = nodes * (file + 1) // 4 - made
        path, writer = folder / "nodes" / f"part-{file}.parquet", None
        for low in range(made, made + rows, BLOCK // 4):
            ids = np.arange(low, min(low + BLOCK // 4, made + rows))
            table = {"id": texts(ids), "label": pa.array(rng.integers(0, min(40, count + 1), len(ids)))}
            table |= {"split": pa.array(np.array(["train", "val", "test"])[rng.integers(0, 3, len(ids))])}
            table |= {f"x_{k}": pa.array(rng.standard_normal(len(ids), dtype=np.float32)) for k in range(features)}
            writer = writer or pq.ParquetWriter(path, pa.table(table).schema)
            writer.write_table(pa.table(table))
        assert writer is not None
        writer.close()
        made += rows


KILLS = ("run-*", "block-*", "cut-*")  # kill the command when the second step of this kind is finished


def measure(folder: Path, parts: int, kills: int, memory: bool, work: Path) -> None:
    """Cut the tables through files; then again with kills; then through memory. All shards must be the same bytes."""
    work.mkdir(parents=True, exist_ok=True)
    told = {"edges": _rows(folder / "edges"), "bytes": _bytes(folder), "parts": parts}
    told |= _cut(folder, work / "streamed", parts, ["--scratch", str(work)])
    expected = _contents(work / "streamed")
    if kills:
        shutil.rmtree(work / "streamed")
        for kind in KILLS[:kills]:
            _cut(folder, work / "killed", parts, ["--scratch", str(work)], kind)
        told["left_by_kills"] = len(list((work / "killed.scratch").glob("*-*")))
        again = _cut(folder, work / "killed", parts, ["--scratch", str(work)])
        told |= {
            "resumed_cpu_seconds": again["cpu_seconds"],
            "same_after_kills": _contents(work / "killed") == expected,
        }
        shutil.rmtree(work / "killed")
    shutil.rmtree(work / "streamed", ignore_errors=True)
    if memory:
        told |= {f"memory_{key}": value for key, value in _cut(folder, work / "memory", parts, []).items()}
        told["same_through_memory"] = _contents(work / "memory") == expected
        shutil.rmtree(work / "memory")
    print(json.dumps(told))
    if not all(told.get(key, True) for key in ("same_after_kills", "same_through_memory")):
        sys.exit("the shards differ")


def _cut(folder: Path, out: Path, parts: int, more: list[str], kill_at: str = "") -> dict[str, float]:
    """Return the seconds, processor seconds and peak resident memory of a cut; or kill it on the way."""
    command = [sys.executable, "-m", "fullgraph", "partition", str(folder), "--parts", str(parts), "--out", str(out)]
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--partitioner", "fennel", *more], stdout=subprocess.DEVNULL)
    steps = out.with_name(f"{out.name}.scratch")
    while kill_at and len(list(steps.glob(kill_at))) < (1 if kill_at == KILLS[-1] else 2) and process.poll() is None:
        time.sleep(0.01)
    if kill_at:
        os.kill(process.pid, signal.SIGKILL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == (-signal.SIGKILL if kill_at else 0), process.returncode
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_GiB": round(used.ru_maxrss / 2**20, 2),
    }


def _contents(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): zlib.crc32(path.read_bytes()) for path in sorted(folder.rglob("*.*"))}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def _rows(folder: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in folder.iterdir())


def fit(path: Path, wanted: float) -> None:
    """Fit  processor seconds = start + c * edges^a  by least squares of logarithms, and project it."""
    rows = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda row: row["edges"])
    start = rows.pop(0)["cpu_seconds"]  # of a tiny table: imports and compiled loops
    size, taken = (
        np.log(values) for values in zip(*((row["edges"], row["cpu_seconds"] - start) for row in rows), strict=True)
    )
    exponent, constant = np.polyfit(size, taken, 1)
    seconds = math.exp(constant + exponent * math.log(wanted))
    law = f"processor seconds = {start} + {math.exp(constant):.3g} * edges^{exponent:.3f}"
    print(f"{law}; {wanted:.3g} edges: {seconds / 3600:.1f} h of one core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("write")
    making.add_argument("folder", type=Path)
    making.add_argument("--edges", type=int, default=10_000_000)
    making.add_argument("--nodes", type=int, default=0, help="0: a tenth of the edges")
    making.add_argument("--files", type=int, default=20)
    making.add_argument("--features", type=int, default=16)
    making.add_argument("--seed", type=int, default=0)
    measuring = commands.add_parser("measure")
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("--parts", type=int, default=8)
    measuring.add_argument("--kills", type=int, default=0)
    measuring.add_argument("--memory", action="store_true", help="also cut through memory, and compare")
    measuring.add_argument("--work", type=Path, default=None, help="folder for shards and scratch")
    fitting = commands.add_parser("fit")
    fitting.add_argument("file", type=Path)
    fitting.add_argument("--edges", type=float, default=5e9)
    given = parser.parse_args()
    if given.command == "write":
        write(given.folder, given.edges, given.nodes or given.edges // 10, given.files, given.features, given.seed)
    elif given.command == "measure":
        work = given.work or given.folder.with_name(given.folder.name + "-work")
        measure(given.folder, given.parts, given.kills, given.memory, work)
    else:
        fit(given.file, given.edges)


if __name__ == "__main__":
    main()
