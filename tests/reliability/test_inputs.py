"""Mutated inputs: a sample of the campaign, and every bug that it has found."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from faults.command import small_graph
from faults.inputs import runs, trial
from faults.inputs.case import NOTE, Case, files_in, judge
from faults.inputs.here import run_here
from faults.inputs.runs import COMMANDS, NEWEST
from fullgraph.data import save_npz
from fullgraph.storage import read_tensors, sealed, write_tensors
from tests.support import random_graph

SAMPLE = 50


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Finished runs that all cases copy; created once."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.timeout(300)
def test_a_sample_of_the_campaign(shared):
    assert trial(4, shared, SAMPLE)


@pytest.fixture
def here(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def run(here, tmp_path):
    """Run a command in this process; the promise holds, and the one line, or the whole output, has these words."""

    def one(arguments, *words, must="refused", **about):
        before = files_in(here)
        case = Case("", [str(word) for word in arguments], must=must, **about)
        ended = run_here(case, here, tmp_path)
        judge(case, ended, before)
        for word in words:
            assert word in ended.err + ended.out, (word, ended.err)
        return ended

    return one


@pytest.fixture
def finished(here, shared, tmp_path):
    """Copy a finished run with that many ranks, and a second run of the same shape beside it."""

    def lay_out(name="one"):
        base = runs.bases(shared, lambda arguments, folder: run_here(Case("", arguments), folder, tmp_path))
        shutil.rmtree(here)
        runs._lay_out(base, name, here)
        return here / "run", here / "sibling"

    return lay_out


def edit(path, **changes):
    """Change fields of a document and correct its checksum; None removes a field."""
    tree = {**json.loads(path.read_text()), **changes}
    tree.pop("checksum")
    path.write_text(json.dumps(sealed({name: value for name, value in tree.items() if value is not None})))


TRAIN = ["train", "g.npz", "--epochs", "2", "--hidden", "4", "--layers", "2", "--threads", "1", "--out", "run"]


# --- files of a run


@pytest.mark.parametrize(
    ("change", "word"),
    [({"strategy": None}, "lacks strategy"), ({"schema": 2}, "schema=2"), ({"best_epoch": "x"}, "best_epoch=x"),
     ({"test": []}, "test=[]"), ({"bytes_total": -1}, "bytes_total=-1")],
)  # fmt: skip
def test_compare_reads_only_results_of_its_own_form(finished, run, change, word):
    folder, _ = finished()
    edit(folder / "result.json", **change)
    run(COMMANDS["compare"], word)


@pytest.mark.parametrize(
    "strategy", [{}, {"name": 3}, {"name": "vanilla", "codec": [1]}, {"name": "fixed", "ratio": "x"}]
)
def test_a_config_of_wrong_types_is_one_line(finished, run, strategy):
    folder, _ = finished()
    edit(folder / "config.json", strategy=strategy)
    run(COMMANDS["predict"])


def test_a_refused_resume_leaves_the_config_as_it_was(finished, run):
    folder, _ = finished()
    (folder / "shards" / "part-0" / "ids.npy").write_bytes(b"")
    run(COMMANDS["resume"], "is damaged")


def test_a_refused_prediction_leaves_no_folder(finished, run):
    folder, _ = finished()
    (folder / "model.safetensors").write_bytes(b"")
    run(COMMANDS["predict"], "is damaged")


@pytest.mark.parametrize(
    ("command", "file", "words"),
    [("predict", "model.safetensors", ["the model of another run"]),
     ("predict", "shards", ["not the shards this run began with"]),
     ("resume", "shards", ["not the shards this run began with"])],
)  # fmt: skip
def test_files_of_another_run_are_refused(finished, run, command, file, words):
    folder, sibling = finished()
    shutil.rmtree(folder / file) if file == "shards" else (folder / file).unlink()
    shutil.move(sibling / file, folder / file)
    run(COMMANDS[command], *words)


@pytest.mark.parametrize("file", ["shared.safetensors", "rank-0.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["another run's", "missing", "pipe", "another rank's"])
def test_a_damaged_checkpoint_is_noted_and_the_one_before_it_taken(finished, run, shared, file, how):
    folder, sibling = finished("two")
    path = folder / NEWEST / file
    path.unlink()
    if how == "another run's":
        shutil.copy(sibling / NEWEST / file, path)
    elif how == "another rank's":
        shutil.copy(folder / NEWEST / "rank-1.safetensors", path)
    elif how == "pipe":
        os.mkfifo(path)
    ended = run(COMMANDS["resume"], must="right")
    assert all(line.startswith(NOTE) and "going on from" in line for line in ended.err.splitlines())
    assert ended.err
    base = runs.bases(shared, lambda *_: pytest.fail("made before"))
    runs.same_outcome("resume", ended, base / "two resume")


@pytest.mark.parametrize("kind", ["beside", "file"])
def test_a_damaged_checkpoint_that_holds_something_else_is_refused_before_an_epoch_is_trained(finished, run, kind):
    """Training would write this checkpoint again, and must not replace a file of the user's."""
    folder, _ = finished("two")
    if kind == "beside":
        (folder / NEWEST / "rank-0.safetensors").rename(folder / NEWEST / "notes")
    else:
        shutil.rmtree(folder / NEWEST)
        (folder / NEWEST).touch()
    words = "notes, which is not of a checkpoint" if kind == "beside" else "something other than a folder"
    run(COMMANDS["resume"], f"{NEWEST} holds {words}")  # the case's judge compares all files of the folder


def test_no_whole_checkpoint_is_one_line(finished, run):
    folder, _ = finished("two")
    for path in folder.glob("checkpoints/*/state.json"):
        path.write_text("{}")
    run(COMMANDS["resume"], "no checkpoint in run/checkpoints is whole: ", "has no checksum")


@pytest.mark.parametrize("name", ["epoch-x", "epoch-", "epoch-5", "epoch-" + "9" * 30, "epoch-\u0663"])
def test_folders_of_other_names_are_no_checkpoints(finished, run, name):
    folder, _ = finished()
    shutil.copytree(folder / NEWEST, folder / "checkpoints" / name)
    assert run(COMMANDS["resume"], must="right").err == ""


def change(path, edit):
    """Write an edited file of tensors with a correct checksum."""
    tensors, about = read_tensors(path, fix="")
    write_tensors(path, edit(tensors), about)


def test_tensors_that_fit_one_rank_and_not_the_other(finished, run):
    folder, _ = finished("two")
    change(folder / NEWEST / "rank-1.safetensors", lambda held: held | {"more": next(iter(held.values())).clone()})
    run(COMMANDS["resume"], "does not fit this run's model or strategy")


def test_rows_of_another_shape_are_refused_in_the_first_step(finished, run):
    """Only the first exchange can detect it; the record of epochs was rewritten by then, but nothing was trained."""
    folder, _ = finished("two")

    def shortened(held):
        late = next(name for name in held if ".version." in name and held[name].dim() == 2)
        return held | {late: held[late][:-1].clone()}

    change(folder / NEWEST / "rank-1.safetensors", shortened)
    run(COMMANDS["resume"], "does not fit this run")


def test_rows_of_another_step_are_refused(finished, run):
    folder, _ = finished("two")

    def renamed(held):
        late = max(name for name in held if re.fullmatch(r".*\.forward\.version\.\d+", name))
        return {name.replace(late, f"{late}0"): value for name, value in held.items()}

    change(folder / NEWEST / "rank-1.safetensors", renamed)
    run(COMMANDS["resume"], "does not fit this run")


def test_best_weights_of_another_model_are_refused(finished, run):
    folder, _ = finished("two")
    change(folder / NEWEST / "shared.safetensors", lambda held: held | {"best.x": next(iter(held.values())).clone()})
    run(COMMANDS["resume"], "does not fit this run's model or strategy")


def test_a_folder_in_a_files_place_is_named(finished, run):
    folder, _ = finished("two")
    (folder / "result.json").unlink()
    (folder / "result.json").mkdir()
    run(COMMANDS["resume"], "run/result.json is a folder")


def test_a_pipe_in_the_place_of_what_a_run_writes_is_refused_before_it_writes(finished, run):
    folder, _ = finished("two")
    model = folder / "model.safetensors"
    model.write_bytes(b"mine")
    (folder / "result.json").unlink()
    os.mkfifo(folder / "result.json")
    run(COMMANDS["again"], "run/result.json is a device, pipe or socket")
    assert model.read_bytes() == b"mine"


@pytest.mark.parametrize("change", ["last line", "line end", "words behind"])
def test_a_record_without_its_end_is_refused(finished, run, change):
    folder, _ = finished()
    path = folder / "metrics.jsonl"
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    path.write_text({"last line": "".join(lines[:-1]), "line end": text[:-1], "words behind": text + "x"}[change])
    run(COMMANDS["target"], "whole lines for 4 epochs")


@pytest.mark.parametrize("command", ["resume", "predict", "compare", "target", "inspect"])
def test_a_pipe_in_a_files_place_is_no_hang(finished, run, command):
    folder, _ = finished()
    path = folder / runs.READS[command][-1 if command == "target" else 0]
    path.unlink()
    os.mkfifo(path)
    run(COMMANDS[command])


def test_a_huge_record_is_not_read_by_a_resume(finished, run):
    folder, _ = finished()
    with (folder / "metrics.jsonl").open("wb") as file:
        file.truncate(1 << 33)
    run(COMMANDS["again"], must="right")


# --- graphs


def graph(**changes):
    rng = np.random.default_rng(0)
    rows = sp.csr_array(np.where(rng.random((24, 5)) < 0.5, 1.0, 0.0))
    masks = {f"{name}_mask": np.arange(24) % 3 == k for k, name in enumerate(("train", "val", "test"))}
    parts = {"x_data": rows.data, "x_indices": rows.indices, "x_indptr": rows.indptr, "x_shape": np.array(rows.shape)}
    return {"edge_index": rng.integers(0, 24, (2, 90)), "y": rng.integers(0, 3, 24), **masks, **parts, **changes}


HUGE = np.array(["1e4000"] * 90, dtype=np.longdouble)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"x_data": graph()["x_data"].astype(np.complex64)}, "x_data has the type complex64"),
     ({"edge_weight": HUGE}, "NaN or infinity"), ({"x": HUGE[:48].reshape(24, 2)}, "NaN or infinity")],
)  # fmt: skip
def test_numbers_that_would_be_lost_are_refused_without_a_warning(here, run, changes, word):
    np.savez(here / "g.npz", **graph(**changes))
    run(TRAIN, word)


def saint(here, **changes):
    folder = here / "saint"
    folder.mkdir()
    adj = sp.csr_array(np.eye(24))
    np.savez(folder / "adj_full.npz", **{"data": adj.data, "indices": adj.indices, "indptr": adj.indptr,
             "shape": np.array(adj.shape), "format": np.array("csr"), **changes})  # fmt: skip
    np.save(folder / "feats.npy", np.ones((24, 2)))
    (folder / "class_map.json").write_text(json.dumps({str(node): node % 3 for node in range(24)}))
    (folder / "role.json").write_text(json.dumps({"tr": [0, 1, 2], "va": [3, 4], "te": [5]}))


def test_a_small_saint_folder_takes_little_memory(here, run):
    saint(here)
    run(["inspect", "saint:saint"], must="right")


def test_a_strange_format_in_a_saint_folder(here, run):
    saint(here, format=np.zeros((), "V4"))
    run(["inspect", "saint:saint"], "not in CSR form")


@pytest.mark.parametrize(
    ("spec", "word"),
    [("sbm:nodes=2e9", "of memory"), ("rmat:scale=31", "of memory"), ("sbm:nodes=1e12", "nodes=1000000000000"),
     ("sbm:edges=1e30", "edges="), ("rmat:scale=60", "scale=60"), ("sbm:noise=1e300", "noise="),
     ("sbm:seed=" + "9" * 5000, "seed="), ("pyg:Planetoid/../../x", "no slashes"), ("pyg:__name__", "'__name__'")],
)  # fmt: skip
def test_names_of_graphs_that_cannot_be(run, spec, word):
    run(["inspect", spec], word)


# --- options


@pytest.mark.parametrize(
    ("options", "word"),
    [(["--partitioner", "banded", "--parts", "2", "-p", "blocks=9223372036854775807"], "blocks="),
     (["--partitioner", "banded", "--parts", "65535"], "65535 parts for 300 nodes"),
     (["--partitioner", "kaminpar", "--parts", "2", "-p", "imbalance=0"], "imbalance=0"),
     (["--partitioner", "metis", "--parts", "2", "-p", "node_weight=1e300"], "node_weight="),
     (["--strategy", "mixgcn", "-o", "blocks=1e15"], "blocks="),
     (["--strategy", "gnnpipe", "-o", "chunks=10000000000"], "chunks="),
     (["--strategy", "varco", "-o", "c_max=inf"], "c_max=inf"),
     (["--strategy", "pipegcn", "-o", "smooth=f", "-o", "gamma=nan"], "gamma=nan"),
     (["--strategy", "vanilla", "-o", "=1"], "has no option"),
     (["--hidden", "1000000"], "of memory")],
)  # fmt: skip
def test_options_beyond_all_bounds(here, run, options, word):
    small_graph(here)
    run([*TRAIN, *options], word)


@pytest.mark.parametrize("steps", ["0", "1000000000000"])
def test_a_schedule_of_too_many_steps(run, steps):
    run(["schedule", "sync", "--steps", steps], "steps=")


@pytest.mark.parametrize("text", ["seed = " + "9" * 5000, 'out = "a\\u0000b"', "a = " + "[" * 5000])
def test_options_in_a_file(here, run, text):
    small_graph(here)
    (here / "c.toml").write_text(text)
    run(["train", "g.npz", "--config", "c.toml", "--epochs", "1"])


def test_a_pipe_of_options_is_no_hang(here, run):
    os.mkfifo(here / "c.toml")
    run(["train", "--config", "c.toml"], "not a plain file")


@pytest.mark.parametrize(
    ("name", "value"),
    [("WORLD_SIZE", "1" * 50), ("WORLD_SIZE", "abc"), ("RANK", "abc"), ("RANK", "-1"), ("SLURM_STEP_NUM_TASKS", "x")],
)
def test_numbers_in_the_environment(here, run, name, value):
    small_graph(here)
    run(TRAIN, name, environ={name: value})


def test_a_port_that_is_none(here):
    """Refused before a rank waits for others."""
    small_graph(here)
    job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "abc"}
    ended = real(TRAIN, here, env={**os.environ, **job})
    assert (ended.returncode, "MASTER_PORT=abc" in ended.stderr) == (2, True)


# --- surroundings


def real(arguments, cwd, **how):
    command = [sys.executable, "-m", "fullgraph", *arguments]
    return subprocess.run(command, cwd=cwd, text=True, timeout=100, stderr=how.pop("stderr", subprocess.PIPE), **how)


@pytest.mark.cold
def test_a_name_that_no_encoding_has_is_printed_all_the_same(here):
    small_graph(here)
    command = [sys.executable, "-m", "fullgraph", "partition", "g.npz", "--parts", "2", "--out", b"\xff"]
    ended = subprocess.run(command, cwd=here, timeout=100, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    assert rb"wrote \udcff" in ended.stdout


def test_closed_standard_streams(here):
    small_graph(here)
    command = f"exec {sys.executable} -m fullgraph {' '.join(TRAIN)} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], cwd=here, timeout=100).returncode == 0
    assert (here / "run" / "result.json").exists()


@pytest.mark.parametrize(("name", "code"), [("NUMBA_DISABLE_JIT", 0), ("NUMBA_NUM_THREADS", 2)])
def test_settings_of_numba(here, name, code):
    save_npz(random_graph(nodes=30, arcs=90), here / "g.npz")  # without its compiler Python runs the loops
    value = {"NUMBA_DISABLE_JIT": "1", "NUMBA_NUM_THREADS": "-1"}[name]
    ended = real(TRAIN, here, env={**os.environ, name: value})
    assert ended.returncode == code, ended.stderr
    assert len(ended.stderr.splitlines()) == (1 if code else 0)
