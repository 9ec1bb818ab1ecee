"""Mutated data sets of other projects: GraphSAINT's folders and the raw files of OGB."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import scipy.sparse as sp

from faults.inputs.case import Case, Ended
from faults.inputs.edits import edit_bytes, edit_tree, nonsense_array, torture_json

Again = Callable[[list[str], Path], Ended]

NODES, WIDTH = 24, 5


def case(random: Random, here: Path, shared: Path, again: Again) -> Case:
    make = random.choice([_saint, _saint, _ogb])
    spec, told = make(random, here)
    command = random.choice(
        [["train", spec, "--epochs", "1", "--hidden", "4", "--threads", "1", "--out", "run"], ["inspect", spec]]
    )
    must = "right" if told == "as it was" else ""
    return Case(f"foreign, {make.__name__[1:]}: {told}", command, must=must, environ={"FULLGRAPH_DATA": "data"})


def _roles(rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    return np.split(rng.permutation(NODES), [12, 18])


def _saint(random: Random, here: Path) -> tuple[str, str]:
    rng = np.random.default_rng(random.randrange(4))
    folder = here / "saint"
    folder.mkdir()
    adj = sp.csr_array((rng.random((NODES, NODES)) < 0.2).astype(np.float64))
    if random.random() < 0.3:
        adj.data[:] = rng.random(len(adj.data))
    parts = {"data": adj.data, "indices": adj.indices, "indptr": adj.indptr, "shape": np.array(adj.shape)}
    parts["format"] = np.array(b"csr")
    x = rng.standard_normal((NODES, WIDTH))
    classes: dict[str, Any] = {str(node): int(rng.integers(3)) for node in range(NODES)}
    if random.random() < 0.3:
        classes = {str(node): rng.integers(0, 2, 4).tolist() for node in range(NODES)}
    roles = {name: ids.tolist() for name, ids in zip(("tr", "va", "te"), _roles(rng), strict=True)}
    victim = random.choice(["adj_full.npz", "feats.npy", "class_map.json", "role.json", ""])
    structural = random.random() < 0.5
    told = "as it was"
    if structural and victim == "adj_full.npz":
        name = random.choice(list(parts))
        parts[name] = nonsense_array(random, parts[name])
        told = f"adj_full {name} by {parts[name].dtype} {parts[name].shape}"
    elif structural and victim == "feats.npy":
        x = nonsense_array(random, x)
        told = f"feats by {x.dtype} {x.shape}"
    elif structural and victim:
        told = f"{victim}, {edit_tree(classes if victim == 'class_map.json' else roles, random)}"
    np.savez(folder / "adj_full.npz", **parts)
    np.save(folder / "feats.npy", x)
    for name, tree in (("class_map.json", classes), ("role.json", roles)):
        (folder / name).write_bytes(json.dumps(tree).encode("utf-8", "surrogatepass"))
    if victim and not structural:
        told = f"{victim}, {_damage(folder / victim, random)}"
    return "saint:saint", told


def _ogb(random: Random, here: Path) -> tuple[str, str]:
    rng = np.random.default_rng(random.randrange(4))
    raw, split = here / "data" / "ogbn_arxiv" / "raw", here / "data" / "ogbn_arxiv" / "split" / "time"
    raw.mkdir(parents=True)
    split.mkdir(parents=True)
    tables = {
        raw / "num-node-list": np.array([[NODES]]),
        raw / "edge": rng.integers(0, NODES, (80, 2)),
        raw / "node-feat": rng.standard_normal((NODES, WIDTH)),
        raw / "node-label": rng.integers(0, 3, (NODES, 1)),
        **{split / name: ids[:, None] for name, ids in zip(("train", "valid", "test"), _roles(rng), strict=True)},
    }
    victim = random.choice([*tables, None])
    told = "as it was"
    for stem, table in tables.items():
        lines = [",".join(map(str, row)) for row in table.tolist()]
        if stem == victim and random.random() < 0.6:
            place = random.randrange(len(lines))
            lines[place] = random.choice(
                ["", "x", "-1", "1e9", "nan", "1,2,3,4,5,6,7", "9" * 400, "inf", "\x00", "0.5", "é"]
            )
            told = f"{stem.name} line {place} is {lines[place][:20]!r}"
            if random.random() < 0.2:
                lines, told = [], f"{stem.name} is empty"
        path = stem.with_name(stem.name + ".csv.gz")
        path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
        if stem == victim and told == "as it was":
            told = f"{stem.name}, {_damage(path, random)}"
    return "ogb:ogbn-arxiv", told


def _damage(path: Path, random: Random) -> str:
    kind = random.choice(["bytes", "bytes", "bytes", "missing", "folder", "fifo", "torture"])
    if kind == "torture" and path.suffix == ".json":
        text, told = torture_json(path.read_text(), random)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return told
    if kind in ("bytes", "torture"):
        data, told = edit_bytes(path.read_bytes(), random)
        path.write_bytes(data)
        return told
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    return kind
