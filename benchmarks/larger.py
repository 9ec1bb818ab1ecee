"""A graph that does not fit in memory: write it in pieces, train it within a budget, and compare with a run in memory.

    python benchmarks/larger.py write GRAPH.npz --nodes 3e6 --degree 10 --features 128
    python benchmarks/larger.py compare GRAPH.npz --host-memory 2GiB --epochs 3
    python benchmarks/larger.py one GRAPH.npz --host-memory 16GiB --epochs 1 --scratch FOLDER

The graph has communities of consecutive nodes; nine of ten edges stay within one, as after a good partition.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

BLOCK = 1 << 18  # nodes that are drawn at a time
COMMUNITY = 10_000
CLASSES = 10


def write(path: Path, nodes: int, degree: int, features: int, inside: float, noise: float) -> None:
    """Write an uncompressed .npz in blocks of nodes; its edges are sorted by target and then by source."""
    centres = np.random.default_rng(0).standard_normal((CLASSES, features)).astype(np.float32)

    def blocks() -> Iterator[tuple[int, int]]:
        return ((low, min(nodes, low + BLOCK)) for low in range(0, nodes, BLOCK))

    def classes(low: int, high: int) -> np.ndarray:
        return np.arange(low, high) // COMMUNITY % CLASSES

    def sources(low: int, high: int) -> np.ndarray:
        rng = np.random.default_rng([1, low])
        home = np.arange(low, high) // COMMUNITY * COMMUNITY
        size = np.minimum(COMMUNITY, nodes - home)
        near = home[:, None] + (rng.random((high - low, degree)) * size[:, None]).astype(np.int64)
        far = rng.integers(0, nodes, (high - low, degree))
        return np.sort(np.where(rng.random(near.shape) < inside, near, far), axis=1).astype(np.int32).ravel()

    def x(low: int, high: int) -> np.ndarray:
        rng = np.random.default_rng([2, low])
        rows = rng.standard_normal((high - low, features), dtype=np.float32)
        return centres[classes(low, high)] + noise * rows

    def mask(which: int) -> Callable[[int, int], np.ndarray]:
        shares = (0.0, 0.6, 0.8, 1.0)

        def of(low: int, high: int) -> np.ndarray:
            drawn = np.random.default_rng([3, low]).random(high - low)
            return (drawn >= shares[which]) & (drawn < shares[which + 1])

        return of

    def targets(low: int, high: int) -> np.ndarray:
        return np.repeat(np.arange(low, high, dtype=np.int32), degree)

    arrays = {
        "edge_index": ((2, nodes * degree), np.int32, [sources, targets]),
        "x": ((nodes, features), np.float32, [x]),
        "y": ((nodes,), np.int64, [classes]),
        **{f"{name}_mask": ((nodes,), np.bool_, [mask(i)]) for i, name in enumerate(("train", "val", "test"))},
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, (shape, dtype, passes) in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                about = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, about)
                for draw in passes:
                    for low, high in blocks():
                        file.write(np.ascontiguousarray(draw(low, high), dtype=dtype).data)


def train(graph: Path, out: Path, options: list[str]) -> dict:
    """Train in a new process; return its result, its plan and its losses."""
    command = [sys.executable, "-m", "fullgraph", "train", str(graph), "--out", str(out), *options]
    subprocess.run(command, check=True)
    result = json.loads((out / "result.json").read_text())
    profile = json.loads((out / "profile.json").read_text())
    losses = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    (plan,) = profile["ranks"][0]["memory"] or [{}]
    return {
        "epoch_s": result["epoch_s"], "peak": result["peak_memory_bytes"], "planned": plan.get("peak", 0),
        "parts": plan.get("parts", 0), "disk": plan.get("disk", 0), "reads": plan.get("reads", 1.0), "losses": losses,
        "startup_s": result["startup_s"], "test": result["test"],
    }  # fmt: skip


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("job", choices=("write", "one", "compare"))
    reader.add_argument("graph", type=Path)
    for name, default in (("--nodes", 3e6), ("--degree", 10), ("--features", 128)):
        reader.add_argument(name, type=lambda text: int(float(text)), default=int(default))
    reader.add_argument("--inside", type=float, default=0.9)
    reader.add_argument("--noise", type=float, default=4.0)
    reader.add_argument("--host-memory", default="2GiB")
    reader.add_argument("--epochs", default="3")
    reader.add_argument("--hidden", default="128")
    reader.add_argument("--model", default="sage")
    reader.add_argument("--scratch", default="")
    given, more = reader.parse_known_args()
    if given.job == "write":
        write(given.graph, given.nodes, given.degree, given.features, given.inside, given.noise)
        return
    options = ["--model", given.model, "--layers", "3", "--hidden", given.hidden, "--epochs", given.epochs]
    options += ["--eval-every", given.epochs, "--checkpoint-every", "0", "--parts", "1", *more]
    within = ["--host-memory", given.host_memory, *(["--scratch", given.scratch] if given.scratch else [])]
    with tempfile.TemporaryDirectory(dir=given.graph.parent) as folder:
        found = {"budget": train(given.graph, Path(folder) / "budget", [*options, *within])}
        if given.job == "compare":
            found["in memory"] = train(given.graph, Path(folder) / "whole", [*options, "--host-memory", "1TiB"])
            ratio = found["budget"]["epoch_s"] / found["in memory"]["epoch_s"]
            print(f"an epoch takes {ratio:.2f} times as long")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
