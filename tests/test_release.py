"""A release's version, Python versions, papers and workflow agree in all files."""

import re
import tomllib
from pathlib import Path

import pytest

import fullgraph as fg

ROOT = Path(__file__).resolve().parents[1]
yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_one_version():
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert fg.__version__ == CITATION["version"] == newest[1]


def test_the_citation_names_the_papers_of_the_readme():
    papers = set(re.findall(r"arXiv:\d{4}\.\d{5}", (ROOT / "README.md").read_text()))
    cited = {identifier["value"] for work in CITATION["references"] for identifier in work["identifiers"]}
    assert len(cited) == 8
    assert cited == papers
    for work in CITATION["references"]:
        (identifier,) = work["identifiers"]
        assert work["url"].endswith(identifier["value"].removeprefix("arXiv:"))
        named = re.findall(r"strateg(?:y|ies) (.*)", work["notes"])[0].split(", ")
        assert all(name in fg.recipes.STRATEGIES for name in named)


def test_every_python_is_tested():
    tested = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"]
    promised = [line.rpartition(" ")[2] for line in PYPROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert tested == promised
    assert PYPROJECT["requires-python"] == f">={tested[0]}"


def test_only_a_tag_publishes_and_only_after_everything_else():
    jobs = WORKFLOW["jobs"]
    publish = jobs["publish"]
    assert set(publish["needs"]) == set(jobs) - {"publish"}
    assert "refs/tags/v" in publish["if"]
    assert publish["permissions"] == {"id-token": "write"}
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_the_workflow_calls_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    called = [step["run"].split()[1] for step in steps if step["run"].startswith("make ")]
    assert called == ["lint", "test", "docs", "dist-check"]
    assert set(called) <= targets


def test_the_package_is_typed():
    assert (Path(fg.__file__).parent / "py.typed").exists()
