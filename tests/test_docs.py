"""Every command and program in the documents works as printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def blocks(name, kind):
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def run(*command, cwd):
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_walk_names_files_and_functions_that_exist():
    files = {
        path.relative_to(ROOT / "src/fullgraph").as_posix(): path.read_text() for path in (ROOT / "src").rglob("*.py")
    }
    walk = (ROOT / "docs" / "walk.md").read_text()
    named = re.findall(r"`([\w/]+\.py)(?::(?:\w+\.)*(\w+))?`", walk)
    assert len(named) > 80
    for file, name in named:
        texts = [text for path, text in files.items() if f"/{path}".endswith(f"/{file}")]
        assert texts, file
        defined = rf"(?:def|class) {name}\b|^\s*{name}\b ?[:=]" if name else ""
        assert any(re.search(defined, text, re.MULTILINE) for text in texts), f"{file}:{name}"


@pytest.mark.cold
def test_the_readme_example_runs(tmp_path):
    example, _ = blocks("README.md", "python")
    (tmp_path / "example.py").write_text(example)
    out = run("example.py", cwd=tmp_path)
    accuracy, _, _, folder = out.splitlines()[-4:]
    assert float(accuracy) > 0.9
    assert (tmp_path / folder / "result.json").exists()


def test_the_example_of_options_runs(tmp_path):
    _, example = blocks("docs/api.md", "python")[:2]
    (tmp_path / "example.py").write_text(example)
    assert 0 < float(run("example.py", cwd=tmp_path).split()[-2]) < 1


def test_the_readme_model_trains(tmp_path):
    pytest.importorskip("torch_geometric", reason="the extra pyg")
    _, model = blocks("README.md", "python")
    (tmp_path / "my_model.py").write_text(model)
    (line,) = re.findall(r"`fullgraph (train demo [^`]*my_model[^`]*)`", (ROOT / "README.md").read_text())
    run("-m", "fullgraph", *line.split(), "--epochs", "3", "--out", "run", cwd=tmp_path)
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.timeout(600)
def test_the_tutorial_runs_from_top_to_bottom(tmp_path):
    """Python blocks that begin with a file's name are that file; others run; commands run in their order."""
    pytest.importorskip("torch_geometric", reason="the extra pyg")
    text = (ROOT / "docs" / "tutorial.md").read_text()
    ran = []
    for kind, body in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL):
        named = re.match(r"# (\w+\.py)\n", body)
        if named:
            (tmp_path / named[1]).write_text(body)
        elif kind == "python":
            ran.append(run("-c", body, cwd=tmp_path))
        else:
            for line in body.strip().splitlines():
                program, *arguments = shlex.split(line)
                ran.append(run(*(["-m", "fullgraph"] if program == "fullgraph" else []), *arguments, cwd=tmp_path))
    assert len(ran) == 9
    accuracy = float(ran[3].split()[2])
    assert accuracy > 0.8
    assert (tmp_path / "three.html").exists()
    assert (tmp_path / "runs" / "exact" / "metrics.jsonl").read_text().count("\n") == 80


def test_the_loop_of_ones_own_runs(tmp_path):
    (loop,) = [block for block in blocks("docs/running.md", "python") if "GradSync" in block]
    (tmp_path / "loop.py").write_text(loop)
    run("-m", "fullgraph", "partition", "demo", "--parts", "2", "--out", "parts", cwd=tmp_path)
    out = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "loop.py", cwd=tmp_path)
    assert 0 < float(out) < 1000  # of rank 0; about 1250 before the first step


def test_pictures_are_those_that_the_code_draws(tmp_path):
    for name in ("docs/pictures.py", "benchmarks/results/late_halos.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    run("docs/pictures.py", cwd=tmp_path)
    drawn = {path.name: path.read_text() for path in (tmp_path / "docs" / "images").iterdir()}
    assert drawn == {name: (ROOT / "docs" / "images" / name).read_text() for name in drawn}


@pytest.mark.timeout(300)
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="the extra docs")
    environ = {**os.environ, "PYTHONWARNINGS": ""}
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", ROOT / "docs", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environ)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "api.html").stat().st_size > 20_000
