"""Tables that are cut through files on a disk: the shards of memory to the last byte, whatever stops the command."""

import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest

from fullgraph import cutting
from fullgraph.data.columns import open_columns
from fullgraph.data.streamed import graph, ids, merge, runs, scratch
from fullgraph.errors import InputError
from fullgraph.partition import Fennel, Metis, Random
from fullgraph.report import Phases

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
from pyarrow import csv, parquet  # noqa: E402

N, E = 60, 400


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Make many runs, and blocks that end inside and between blocks of targets, of a small graph."""
    for module in (runs, graph):
        monkeypatch.setattr(module, "RUN_ARCS", 30)
    monkeypatch.setattr(merge, "MERGED_ARCS", 50)
    for module in (runs, merge):
        monkeypatch.setattr(module, "BLOCK_BITS", 3)


def tables(kind="texts", seed=0):
    """Node and edge tables with parallel arcs, loops, hubs and isolated nodes."""
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(N)
    names = numbers * 10**12 - 7 if kind == "numbers" else np.array([f"nöde {i}" * (i % 5 + 1) for i in numbers])
    source, target = (rng.random((2, E)) ** 2 * (N - 5)).astype(int)
    split = np.array(["train", "val", "test"])[rng.integers(0, 3, N)]
    nodes = {"id": names, "label": rng.integers(0, 3, N), "split": split}
    edges = {"source": names[source], "target": names[target]}
    if kind == "no features":
        return pa.table(nodes), pa.table(edges)
    nodes |= {f"x_{k}": rng.standard_normal(N).astype(np.float32) for k in range(3)}
    if kind == "lists":
        nodes["x"] = list(rng.standard_normal((N, 4)))
    if kind == "one number":
        edges["weight"] = rng.random(E).astype(np.float32)
    if kind == "numbers":
        edges |= {"weight": rng.random(E), "e_0": rng.random(E), "e_1": rng.random(E)}
    return pa.table(nodes), pa.table(edges)


def write(folder, nodes, edges, form="parquet"):
    """Write the tables as a file each, or as part files of different lengths."""
    folder.mkdir()
    for name, table in (("nodes", nodes), ("edges", edges)):
        cuts = (0, 0, 7, len(table) // 2, len(table)) if form == "parts" else (0, len(table))
        if form == "parts":
            (folder / name).mkdir()
        for part, (low, high) in enumerate(pairwise(cuts)):
            path = folder / name / f"part-{part}.parquet" if form == "parts" else folder / f"{name}.{form}"
            rows = table.slice(low, high - low)
            if form == "csv":
                csv.write_csv(rows, path)
            else:
                parquet.write_table(rows, path, row_group_size=13)
    return folder


def shards(spec, out, scratch=None, *, partitioner=None, features="none"):
    """Cut as the command does; return the bytes of every shard file."""
    phases = Phases()
    with cutting.source(str(spec), out, scratch, phases) as read:
        chosen, why = cutting.fitting(partitioner or Fennel(clusters=0), read.graph)
        assignment = cutting.cut(read.graph.noted(why), 3, chosen, 1, phases, read.scratch)
        cutting.write_shards(out, read.graph, assignment, phases, features=features)
    return contents(out)


def contents(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*.*"))}


@pytest.mark.parametrize("form", ["parquet", "parts", "csv"])
@pytest.mark.parametrize("kind", ["texts", "numbers", "one number", "lists", "no features"])
def test_shards_are_those_of_memory(tmp_path, kind, form):
    if (kind, form) == ("lists", "csv"):
        pytest.skip("a CSV file has no lists")
    folder = write(tmp_path / "mine", *tables(kind), form)
    for scaled in ("none", "standard") if kind != "no features" else ("none",):
        wanted = shards(folder, tmp_path / f"wanted-{scaled}", features=scaled)
        found = shards(folder, tmp_path / f"found-{scaled}", tmp_path, features=scaled)
        assert found == wanted
        assert len(found) > 20
    assert not list(tmp_path.glob("*.scratch"))


@pytest.mark.parametrize("kind", ["texts", "numbers"])
def test_edges_for_both_directions(tmp_path, kind):
    """Equal arcs keep their order: first as given, then reversed ones."""
    folder = write(tmp_path / "mine", *tables(kind))
    spec = f"tables:nodes={folder}/nodes.parquet,edges={folder}/edges.parquet,undirected=true"
    assert shards(spec, tmp_path / "found", tmp_path) == shards(spec, tmp_path / "wanted")


def test_metis_gives_the_same_shards_while_it_fits_and_fennel_is_told_of_when_not(tmp_path, monkeypatch):
    pytest.importorskip("pymetis", reason="pymetis is an extra")
    folder = write(tmp_path / "mine", *tables())
    metis = shards(folder, tmp_path / "metis", partitioner=Metis())
    assert shards(folder, tmp_path / "streamed", tmp_path, partitioner=Metis()) == metis
    with cutting.source(str(folder), tmp_path / "out", tmp_path, Phases()) as read:
        monkeypatch.setattr(cutting, "free_memory", lambda: 1000)
        chosen, why = cutting.fitting(Metis(), read.graph)
        assert (chosen, why.partition(" needs ")[0]) == (Fennel(), "metis")
        assert cutting.fitting(Fennel(passes=3), read.graph) == (Fennel(passes=3), "")


def test_large_tables_are_cut_through_files_by_themselves(tmp_path, monkeypatch):
    folder = write(tmp_path / "mine", *tables())
    wanted = shards(folder, tmp_path / "wanted")
    monkeypatch.setattr(cutting, "free_memory", lambda: 5000)
    with cutting.source(str(folder), tmp_path / "found", None, Phases()) as read:
        assert read.scratch is not None
        assert read.scratch.folder == tmp_path / "found.scratch"
    monkeypatch.setattr(cutting, "load_any", None)
    assert shards(folder, tmp_path / "found") == wanted


class Stopped(BaseException):
    pass


def test_a_command_that_is_stopped_anywhere_goes_on(tmp_path, monkeypatch):
    """Stop before every step's end in turn; no finished step is done again, and the shards are the same."""
    folder = write(tmp_path / "mine", *tables("numbers"))
    wanted = shards(folder, tmp_path / "wanted")
    step, finished, room = scratch.Scratch.step, [], [0]

    def stopping(self, name, write):
        def stopped(building):
            write(building)
            if not room[0]:
                raise Stopped
            room[0] -= 1
            finished.append(name)

        return step(self, name, stopped)

    monkeypatch.setattr(scratch.Scratch, "step", stopping)
    monkeypatch.setattr("fullgraph.data.arrays.num_cores", lambda: 1)
    stops = 0
    while not (tmp_path / "found").exists():
        room[0] = 3
        try:
            assert shards(folder, tmp_path / "found", tmp_path) == wanted
        except Stopped:
            stops += 1
            assert (tmp_path / "found.scratch").exists()
    assert stops > 5
    assert len(finished) == len(set(finished)) > 20


@pytest.mark.timeout(300)
def test_a_killed_process_leaves_steps_that_another_one_uses(tmp_path, monkeypatch):
    folder = write(tmp_path / "mine", *tables())
    words = ["partition", str(folder), "--out", str(tmp_path / "found"), "--scratch", str(tmp_path), "--parts", "3"]
    slow = "from fullgraph.data.streamed import graph, merge, runs\n"
    slow += "runs.RUN_ARCS = graph.RUN_ARCS = 30; runs.BLOCK_BITS = merge.BLOCK_BITS = 3\n"
    slow += "import sys, time; from fullgraph.cli import main\n"
    slow += "write = runs._write_run; runs._write_run = lambda *a: (time.sleep(0.2), write(*a))\n"
    slow += f"sys.argv[1:] = {words!r} + ['--seed', '1', '--partitioner', 'random']; main()"
    steps = tmp_path / "found.scratch"
    with subprocess.Popen(
        [sys.executable, "-c", slow], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while len(list(steps.glob("run-*"))) < 3:
                assert process.poll() is None
                time.sleep(0.01)
        finally:
            process.kill()
    left = {path.name for path in steps.glob("run-*")}
    done = []
    write_runs = graph.write_runs
    monkeypatch.setattr(graph, "write_runs", lambda into, *a, **k: done.append(1) or write_runs(into, *a, **k))
    found = shards(folder, tmp_path / "found", tmp_path, partitioner=Random())
    assert found == shards(folder, tmp_path / "wanted", partitioner=Random())
    assert len(left) >= 3
    assert len(done) == len(list(open_columns(folder / "edges.parquet", "edges").pieces(30))) - len(left)


def with_value(table, column, row, value):
    values = table.column(column).to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values))


FAULTS = {
    "a repeated id": (
        "nodes", lambda t: with_value(t, "id", 40, t["id"][9].as_py()), "part-3.parquet row 11 has the id "),
    "an empty id": ("nodes", lambda t: with_value(t, "id", 40, None), "part-3.parquet row 11 has no id"),
    "no ids": ("nodes", lambda t: t.drop_columns(["id"]), "has no column 'id'"),
    "an unknown id": (
        "edges", lambda t: with_value(t, "target", 230, "mars"), "part-3.parquet row 31 has the target 'mars'"),
    "an empty end": ("edges", lambda t: with_value(t, "source", 8, None), "part-2.parquet row 2 has no source"),
    "no targets": ("edges", lambda t: t.drop_columns(["target"]), "has no column 'target'"),
    "a weight that is not finite": (
        "edges", lambda t: with_value(t, "weight", 230, float("inf")), "part-3.parquet row 31 has NaN or infinity"),
    "a feature that is not finite": (
        "nodes", lambda t: with_value(t, "x_1", 40, float("nan")), "part-3.parquet row 11 has NaN or infinity"),
    "an empty feature": ("nodes", lambda t: with_value(t, "x_1", 40, None), "part-3.parquet row 11 has no x_1"),
    "an unknown split": ("nodes", lambda t: with_value(t, "split", 40, "maybe"), "part-3.parquet row 11 has split"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_with_its_file_and_row_and_leaves_nothing(tmp_path, fault):
    which, change, told = FAULTS[fault]
    given = dict(zip(("nodes", "edges"), tables("one number"), strict=True))
    given[which] = change(given[which])
    folder = write(tmp_path / "mine", given["nodes"], given["edges"], "parts")
    with pytest.raises(InputError) as refused:
        shards(folder, tmp_path / "found", tmp_path / "work")
    assert told in str(refused.value)
    assert str(folder / which) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "found").exists()
    assert not list((tmp_path / "work").iterdir())


def test_a_damaged_file_in_the_middle_is_named(tmp_path):
    folder = write(tmp_path / "mine", *tables(), "parts")
    path = folder / "edges" / "part-2.parquet"
    content = bytearray(path.read_bytes())
    content[40:2000] = bytes(1960)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"edges/part-2.parquet cannot be read \(") as refused:
        shards(folder, tmp_path / "found", tmp_path)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "found.scratch").exists()


def test_other_files_in_the_scratch_folder_stay(tmp_path):
    folder = write(tmp_path / "mine", *tables())
    (tmp_path / "found.scratch").mkdir()
    (tmp_path / "found.scratch" / "thesis.txt").write_text("dear")
    with pytest.raises(InputError, match=r"found.scratch holds thesis.txt, which is not of fullgraph"):
        shards(folder, tmp_path / "found", tmp_path)
    assert (tmp_path / "found.scratch" / "thesis.txt").read_text() == "dear"


def test_a_folder_that_cannot_hold_the_shards_is_refused_before_the_work(tmp_path):
    folder = write(tmp_path / "mine", *tables())
    with pytest.raises(InputError, match=r"--scratch is inside .*found, which will hold the shards alone"):
        shards(folder, tmp_path / "found", tmp_path / "found" / "work")
    assert not (tmp_path / "found").exists()
    with pytest.raises(InputError, match="mine exists and holds something other than shards"):
        shards(folder, folder, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_steps_of_other_tables_are_not_used(tmp_path, monkeypatch):
    folder = write(tmp_path / "mine", *tables())
    with monkeypatch.context() as patched:
        patched.setattr(cutting, "write_shards", lambda *_, **__: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            shards(folder, tmp_path / "found", tmp_path)
    assert (tmp_path / "found.scratch" / "ids").exists()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    write(folder, *tables(seed=5))
    assert shards(folder, tmp_path / "found", tmp_path) == shards(folder, tmp_path / "wanted")


def test_what_needs_memory_is_refused_in_one_line(tmp_path, say):
    nodes, edges = tables()
    folder = write(tmp_path / "mine", nodes, edges)
    more = ("--out", str(tmp_path / "out"), "--scratch", str(tmp_path))
    code, _, told = say("partition", str(folder), *more, "--task", "link")
    assert (code, "--scratch is for two tables, nodes and edges" in told) == (2, True)
    code, _, told = say("partition", "demo", *more)
    assert (code, "demo is in memory" in told) == (2, True)
    typed = tmp_path / "typed"
    typed.mkdir()
    parquet.write_table(nodes, typed / "user.parquet")
    parquet.write_table(edges, typed / "user__knows__user.parquet")
    code, _, told = say("partition", str(typed), *more)
    assert (code, "is in memory: leave it out" in told) == (2, True)


def test_the_disk_is_looked_at_first(tmp_path, monkeypatch):
    folder = write(tmp_path / "mine", *tables())
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 10}))
    with pytest.raises(InputError, match=r"needs .* on the disk of .*, and 10 B are free"):
        shards(folder, tmp_path / "found", tmp_path)
    assert not (tmp_path / "found.scratch").exists()


def test_a_full_disk_leaves_the_finished_steps(tmp_path, monkeypatch):
    folder = write(tmp_path / "mine", *tables())
    with monkeypatch.context() as patched:
        patched.setattr(merge, "_write_at", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(InputError, match=r"found.scratch: .*make room, and start the command again"):
            shards(folder, tmp_path / "found", tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 0}))
        with pytest.raises(InputError, match="0 B are free"):
            shards(folder, tmp_path / "found", tmp_path)
    monkeypatch.setattr(graph, "write_runs", lambda *_, **__: pytest.fail("a finished step was done again"))
    assert shards(folder, tmp_path / "found", tmp_path) == shards(folder, tmp_path / "wanted")


def test_equal_first_halves_of_hashes_are_not_the_same_id(tmp_path, monkeypatch):
    """The whole hash is compared; here all first halves are equal."""
    hashed = ids._hashed

    def alike(values):
        high, low = hashed(values)
        return np.full_like(high, 7), low

    folder = write(tmp_path / "mine", *tables())
    wanted = shards(folder, tmp_path / "wanted")
    monkeypatch.setattr(ids, "_hashed", alike)
    assert shards(folder, tmp_path / "found", tmp_path) == wanted
