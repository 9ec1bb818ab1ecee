"""Commands beside `train`: their output for people and for programs."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields
from inspect import signature
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import fullgraph as fg
from fullgraph.axes import MODELS
from fullgraph.cli import app
from fullgraph.commands.shared import with_fields
from fullgraph.options import MODEL_OPTIONS
from fullgraph.report.tables import Compared, print_comparison
from fullgraph.train.config import TrainConfig
from fullgraph.values import Help, Range, help_of
from tests.support import random_graph


def test_version(say):
    assert say("--version") == (0, f"fullgraph {fg.__version__}\n", "")


def test_every_command_has_an_example_and_options_mean_the_same(say):
    commands = ["train", "partition", "inspect", "predict", "compare", "bench", "schedule", "strategies", "doctor"]
    pages = {command: " ".join(say(command, "--help")[1].split()) for command in commands}
    assert all(f"Example: fullgraph {command}" in page for command, page in pages.items())
    for command in ("train", "partition", "inspect"):
        assert "-p, --partitioner-option" in pages[command]
    assert "-o, --option" in pages["train"]
    assert "-o, --option" not in pages["partition"] + pages["inspect"]
    assert all("--json" in pages[command] for command in ("inspect", "compare", "doctor"))


# Names with a spelling mistake.


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["train", "demo", "--strategy", "pipgcn"], "pipegcn"),
        (["train", "demo", "--strategy", "Sylvie-A"], "sylvie-a"),
        (["train", "demo", "--model", "saeg"], "sage"),
        (["train", "demo", "--partitioner", "mettis"], "metis"),
        (["train", "demo", "--strategy", "sylvie-a", "-o", "bit=1"], "bits"),
        (["train", "demo", "-p", "degree_wieght=1"], "degree_weight"),
        (["train", "demo", "--metric", "acuracy"], "accuracy"),
        (["train", "demo", "--norm", "laier"], "layer"),
        (["train", "demo", "--epocs", "3"], "--epochs"),
        (["train", "--config", "bad.toml"], "epochs"),
        (["train", "dmo"], "demo"),
        (["train", "sbn:nodes=10"], "sbm"),
        (["train", "sbm:node=10"], "nodes"),
        (["train", "mygrph.npz"], "mygraph.npz"),
        (["train", "tables"], "sourc"),
        (["trian"], "train"),
        (["schedule", "boundde"], "bounded"),
    ],
)
def test_the_nearest_name_is_suggested(say, tmp_path, args, meant):
    (tmp_path / "bad.toml").write_text("epoch = 3\n")
    (tmp_path / "mygraph.npz").write_bytes(b"")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "nodes.csv").write_text("id,x_0,label,split\n1,2,0,train\n")
    (tmp_path / "tables" / "edges.csv").write_text("sourc,target\n1,1\n")
    if args[:2] == ["train", "tables"]:
        pytest.importorskip("pyarrow")
    code, _, err = say(*args)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert any(form in err for form in (f"did you mean {meant}?", f"Did you mean '{meant}'?", f"options: {meant}")), err


def test_a_name_that_is_like_nothing_suggests_nothing(say):
    assert "did you mean" not in say("train", "demo", "--strategy", "xyzzy")[2]


# Comparing runs.

ROW = Compared(
    run="runs/one", strategy="vanilla", model="sage", ranks=2, metric="accuracy", test=0.9, val=0.8, best_epoch=10,
    epochs=20, epoch_s=0.1234, wait_s=0.01, bytes_per_epoch=10**6, bytes_total=2 * 10**7,
)  # fmt: skip


def rows_of(**changes):
    return [ROW, Compared(**(ROW.__dict__ | {"run": "r" * 200} | changes))]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "strategy": "my_strategies_file.py:AVeryLongName",
            "model": "another_model.py:Net",
            "ranks": 1024,
            "metric": "mrr",
        },
        {"epoch_s": 123456.0, "wait_s": 12345.0, "bytes_per_epoch": 10**14, "bytes_total": 2**53, "ranks": 65535},
        {"test": None, "val": None, "best_epoch": 0, "metric": "rmse"},
    ],
)
@pytest.mark.parametrize("target", [None, 0.123456])
def test_a_comparison_fits_80_columns(capsys, changes, target):
    rows = rows_of(**changes)
    print_comparison(rows, target)
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if "r" * 200 not in line]
    assert max(map(len, table)) <= 80
    text = "\n".join(table)
    assert all(word in text for word in ("strategy", "test", "epoch", "waiting", "bytes", "vanilla"))
    assert ("to 0.123456" in text) == (target is not None)
    for name in ("val", "best", "in all"):  # it is there, or it is said that it is not
        assert name in text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, strategy in (("one", "vanilla"), ("two", "none")):
        options = {"epochs": 2, "eval_every": 1, "threads": 1}
        model = fg.nn.GraphSAGE(layers=2, hidden=4)
        fg.train(random_graph(), model=model, strategy=strategy, parts=2, out=folder / name, **options)
    return folder


def test_a_comparison_for_machines(runs, say, tmp_path):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    code, out, _ = say("compare", "one", "two", "--json", "--target", 0)
    rows = json.loads(out)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")]
    assert code == 0
    assert [row["run"] for row in rows] == ["one", "two"]
    for row, result in zip(rows, results, strict=True):
        assert all(row[key] == result[key] for key in row if key in result)
        assert row["target_s"] > 0
    code, out, _ = say("compare", "one", "two", "--csv")
    read = list(csv.DictReader(io.StringIO(out)))
    assert [float(line["test"]) for line in read] == [result["test"] for result in results]
    assert read[0]["target"] == ""
    assert say("compare", "one", "two", "--out", "all.csv")[:2] == (0, "wrote all.csv\n")
    assert (tmp_path / "all.csv").read_text() == out
    assert say("compare", "one", "--out", "all.json")[0] == 0
    assert len(json.loads((tmp_path / "all.json").read_text())) == 1
    assert "did you mean csv?" in say("predict", "one", "--format", "cvs")[2]
    assert say("compare", "one", "--csv", "--json")[0] == 2
    assert say("compare", "one", "--out", "all.txt")[0] == 2
    assert "two" in say("compare", "one", "two")[1]


@pytest.mark.cold
def test_the_end_of_a_run_names_commands_that_work(runs, tmp_path):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    line = [sys.executable, "-m", "fullgraph", "train", "--resume", "one", "--epochs", "3"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    commands = [text.strip() for text in done.stdout.splitlines() if text.startswith("  fullgraph ")]
    assert "run folder: one" in done.stdout.splitlines()
    assert commands[-1] == "fullgraph train --resume one --epochs 6"
    predict = next(command for command in commands if " predict " in command)
    assert predict == "fullgraph predict one --format csv"
    pytest.importorskip("pyarrow")
    again = [sys.executable, "-m", *predict.split()]
    assert subprocess.run(again, cwd=tmp_path, capture_output=True, timeout=100).returncode == 0
    assert (tmp_path / "one" / "predictions" / "predictions.csv").exists()


# Describing a graph.


def test_inspect(say, tmp_path):
    graph = random_graph(nodes=200, arcs=800)
    fg.save_npz(graph, tmp_path / "g.npz")
    code, out, err = say("inspect", "g.npz", "--parts", 3, "--json")
    assert code == 0
    about = json.loads(out)
    assert "reading g.npz" in err
    assert (about["graph"]["nodes"], about["graph"]["arcs"]) == (200, graph.num_arcs)
    assert sum(about["partition"]["nodes"]) == 200
    assert say("partition", "g.npz", "--parts", 3, "--out", "parts")[0] == 0
    code, out, _ = say("inspect", "parts", "--json")
    assert json.loads(out)["partition"] == about["partition"]
    for place in ("g.npz", "parts"):
        code, out, _ = say("inspect", place)
        assert code == 0
        assert "nodes  200" in out
        assert "max/mean" in out
    out = say("inspect", "g.npz", "--partitioner", "random", "--parts", 8)[1]
    assert "halo rows per node" in out


def test_inspect_counts_what_crosses_between_hosts(say, tmp_path):
    fg.save_npz(random_graph(nodes=200, arcs=800), tmp_path / "g.npz")
    random = ["inspect", "g.npz", "--partitioner", "random", "--parts", 4]
    between = json.loads(say(*random, "--ranks-per-host", 2, "--json")[1])["partition"]["between_hosts"]
    assert between["hosts"] == 2
    assert between["covered"] < between["covered_alone"] < between["rows_alone"]
    assert between["covered"] < between["rows"] < between["rows_alone"]
    assert f"between 2 hosts: {between['rows']} halo rows" in say(*random, "--ranks-per-host", 2)[1]
    assert "between_hosts" not in json.loads(say(*random, "--json")[1])["partition"]
    assert say("partition", "g.npz", "--parts", 4, "--out", "parts")[0] == 0
    code, _, err = say("inspect", "parts", "--ranks-per-host", 2)
    assert code == 2
    assert "give the graph instead of its parts" in err


def test_a_partitioners_options_are_given_by_p(say, tmp_path):
    fg.save_npz(random_graph(nodes=200, arcs=800), tmp_path / "g.npz")
    new = say("inspect", "g.npz", "-p", "objective=cut")
    old = say("inspect", "g.npz", "-o", "objective=cut")
    assert (new[0], new[1], new[2]) == (old[0], old[1], "")
    assert "use -p for" in old[2]


# The doctor.


def test_the_doctor_finds_this_machine_well(say):
    """These tests run on torch, gloo, numba, METIS and loopback, so the doctor must find them."""
    code, out, err = say("doctor", "--no-trial", "--json")
    found = json.loads(out)
    assert (code, found["ok"]) == (0, True), out
    assert err == "checking this machine\n"
    names = {finding["name"] for finding in found["findings"]}
    needed = {"torch", "gloo", "nccl", "Triton", "numba", "METIS", "memory", "disk", "open files", "shared memory"}
    assert needed | {"loopback", "interfaces", "/dev/shm", "python"} <= names
    assert all(finding["fix"] for finding in found["findings"] if finding["state"] != "ok")


def test_the_doctor_says_what_is_missing_and_how_to_get_it(say, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    code, out, _ = say("doctor", "--no-trial")
    assert code == 1
    lines = out.splitlines()
    bad = [number for number, line in enumerate(lines) if line.startswith("!!")]
    assert len(bad) == 2
    assert "pip install" in lines[bad[0] + 1]
    assert "GLOO_SOCKET_IFNAME=nowhere0" in lines[bad[1]]
    assert "lo" in lines[bad[1] + 1]


def test_a_check_that_breaks_is_a_finding(monkeypatch):
    from fullgraph.lab import doctor

    def broken():
        raise RuntimeError("no such thing")
        yield

    monkeypatch.setitem(doctor.CHECKS, "cores", broken)
    found = doctor.examine(tuple(name for name in doctor.CHECKS if name != "cores"))
    assert [(finding.name, finding.state) for finding in found] == [("cores", "missing")]


@pytest.mark.cold
def test_the_doctor_trains_for_a_trial(say):
    from fullgraph.lab.doctor.examine import trial

    (found,) = trial()
    assert found.state == "ok", found


# Each in a new process, like a user's command; other tests start the other commands in this way.


@pytest.mark.cold
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("inspect sbm:nodes=60 --parts 2", "max/mean"),
        ("schedule bounded --steps 4", "read"),
        ("strategies", "pipegcn"),
        (
            "strategies --for sbm:nodes=60 --strategy sylvie-a --layers 2",
            "layer 1: sends input, 128 columns, 1 bit, 1 s",
        ),
        ("doctor --no-trial", "METIS"),
    ],
)
def test_a_command_by_itself(tmp_path, line, word):
    command = [sys.executable, "-m", "fullgraph", *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert word in done.stdout


# Completion.

TRY = """
source ./completion
offered() {
    COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
    _fullgraph_completion fullgraph
    echo "${COMPREPLY[*]}"
}
offered fullgraph train --strategy pip
offered fullgraph train --model g
offered fullgraph inspect --partitioner metis-
offered fullgraph tr
offered fullgraph train --strateg
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_bash_completes_names(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "fullgraph").write_text(f'#!/bin/sh\nexec {sys.executable} -m fullgraph "$@"\n')
    (tmp_path / "bin" / "fullgraph").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    script = subprocess.run(
        ["fullgraph", "--show-completion", "bash"], env=env, capture_output=True, text=True, timeout=60
    )
    (tmp_path / "completion").write_text(script.stdout)
    done = subprocess.run(["bash", "-c", TRY], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "pipegcn pipegcn-f pipegcn-g pipegcn-gf",
        "gcn gin gat gcnii",
        "metis-cut metis-volume",
        "train",
        "--strategy",
    ], (script.stderr, done.stderr)


# Options of models.


def options_shown():
    (command,) = (command for command in app.registered_commands if command.callback.__name__ == "train")
    return signature(command.callback).parameters


def test_help_shows_the_defaults_of_the_models():
    """An option that was not given has the model's own default; the command's default is only displayed."""
    shown = {name: parameter.default for name, parameter in options_shown().items()}
    for name, model in MODELS.items():
        own = {field.name: field.default for field in fields(model) if field.name in MODEL_OPTIONS - {"norm"}}
        assert own == {option: shown[option] for option in own}, name
    assert {field.name for model in MODELS.values() for field in fields(model)} == MODEL_OPTIONS


def test_every_field_of_a_training_is_an_option_with_its_default(say):
    shown = options_shown()
    own = {field.name: field.default for field in fields(TrainConfig) if field.name != "callbacks"}
    assert own == {name: shown[name].default for name in own}
    page = " ".join(say("train", "--help")[1].split())
    for name, text in help_of(TrainConfig).items():
        assert name == "callbacks" or f"--{name.replace('_', '-')} " in page, name
        assert text.text.split(" ")[0] in page
    assert "first reaction to SIGTERM and SIGINT: checkpoint, stop [default: checkpoint]" in page


def test_an_option_is_one_field_of_a_dataclass():
    """A new training option needs only a field with its range and its help."""

    @dataclass(frozen=True, kw_only=True)
    class More(TrainConfig):
        warmth: Annotated[int, Range(1, 9), Help("how warm it is")] = 3

    @with_fields(More, leave=("callbacks",))
    def heat(**fields: object) -> None:
        """Heat."""
        found.append(fields)

    found, trial = [], typer.Typer()
    trial.command()(heat)
    trial.command()(with_fields(More)(lambda: None))
    done = CliRunner().invoke(trial, ["heat", "--warmth", "5"])
    assert done.exit_code == 0, done.output
    assert (found[0]["warmth"], found[0]["epochs"]) == (5, 200)
    assert "how warm it is" in CliRunner().invoke(trial, ["heat", "--help"]).output
    with pytest.raises(fg.InputError, match="warmth=12: at least 1 and at most 9"):
        More(warmth=12)


def test_another_models_option_in_a_file_is_refused(say, tmp_path):
    (tmp_path / "run.toml").write_text('model = "gat"\nheads = 2\n')
    code, _, err = say("train", "demo", "--config", "run.toml", "--model", "gcn")
    assert code == 2
    assert "--heads is an option of --model gat or rgat or hgt, not of gcn; leave it out" in err
