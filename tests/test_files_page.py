"""docs/files.md names every field that a run writes, and no other field."""

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from fullgraph.axes import TASKS
from fullgraph.partition import GraphFacts
from fullgraph.partition.part import array_names
from fullgraph.train.config import TrainConfig
from fullgraph.train.folder import NAMES
from fullgraph.train.predict import arrays_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "files.md"


def table(heading, first):
    """Names in the first column of the table that begins with `first` below a heading; and when each exists."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = section.split(f"\n| {first} |")[1].split("\n\n")[0].splitlines()
    when = rows[0].strip(" |").split(" | ").index("when") + 1
    cells = [re.split(r"(?<!\\)\|", row.strip(" |")) for row in rows[2:]]
    names = [re.fullmatch(r"`(.+)`", row[0].strip())[1] for row in cells]
    assert len(names) == len(set(names)), "a name stands twice"
    return {name: row[when].strip() for name, row in zip(names, cells, strict=True)}


def flat(tree, inside):
    """Names of a document's fields; those in the objects of `inside` have a dot."""
    found = set()
    for name, value in tree.items():
        found |= {f"{name}.{key}" for key in value} if name in inside else {name}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two ranks from the shell, late rows and scores in some epochs among it."""
    place = tmp_path_factory.mktemp("files")
    arguments = (
        "train sbm:nodes=300,edges=900 --parts 2 --strategy steady -o drift=9 --hidden 8 --epochs 21 --eval-every 7"
    )
    line = [sys.executable, "-m", "fullgraph", *arguments.split(), "--out", "run"]
    done = subprocess.run(line, cwd=place, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return place / "run"


def test_every_field_of_a_result(folder):
    result = json.loads((folder / "result.json").read_text())
    found = flat(result, {"graph", "startup_s", "partition", "versions"})
    # A run from the shell that partitions its graph has them all, except those of `auto`.
    assert found | {"startup_s.choose"} == set(table("`result.json`", "field"))


def test_every_field_of_a_line_of_metrics(folder):
    lines = [set(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = table("`metrics.jsonl`", "field")
    assert set.union(*lines) == set(told)
    assert set.intersection(*lines) == {name for name, when in told.items() if when == "always"}


def test_every_field_of_a_config(folder):
    config = json.loads((folder / "config.json").read_text())
    told = set(table("`config.json`", "field"))
    assert flat(config, {"train"}) == told
    assert {f"train.{field.name}" for field in fields(TrainConfig)} <= told


def test_every_field_of_a_manifest_and_of_a_checkpoint(folder):
    manifest = json.loads((folder / "shards" / "manifest.json").read_text())
    told = table("Shards and their manifest", "field of `manifest.json`")
    assert flat(manifest, {"graph", "figures"}) == set(told)
    state = json.loads((folder / "checkpoints" / "epoch-00000021" / "state.json").read_text())
    assert flat(state, {"best"}) == set(table("`checkpoints`", "field of `state.json`"))


def test_every_file_of_a_folder(folder):
    told = table("The run's folder", "name")
    assert set(told) == set(NAMES)
    there = {path.name for path in folder.iterdir()} - {".fullgraph.lock"}
    assert {name for name, when in told.items() if when in ("always", "at the end")} <= there <= set(told)
    assert {name for task in TASKS.values() for name in arrays_of(task)} == set(table("`predictions`", "file"))


def test_every_array_of_a_part(folder):
    facts = GraphFacts("", 1, 1, 1, 1, multilabel=False, weighted=False, splits=1, sparse=False)
    rich = replace(facts, weighted=True, sparse=True, edge_features=1, pairs=1)
    told = table("Shards and their manifest", "array")
    assert {*array_names(facts), *array_names(rich), "position"} == set(told)
    there = {path.stem for path in (folder / "shards" / "part-1").iterdir()}
    assert {name for name, when in told.items() if when == "always"} == there - {"x"}
