"""The files for Kubernetes, Ray, Slurm and containers: they parse, and all that they name exists."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import typer

import fullgraph as fg
from fullgraph.cli import app
from fullgraph.data import save_npz
from fullgraph.train.config import TrainConfig
from tests.support import random_graph

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def known():
    """The options of `fullgraph train`."""
    train = typer.main.get_command(app).commands["train"]
    return {option for parameter in train.params for option in [*parameter.opts, *parameter.secondary_opts]}


def commands(text):
    """The options of every `fullgraph train ...` in a text, each with the word that comes behind it."""
    return [re.findall(r"(--[a-z-]+)(?: ([^\s;\"]+))?", line) for line in re.findall(r"fullgraph train (.*)", text)]


@pytest.mark.parametrize("name", ["slurm.sh", "pytorchjob.yaml", "Dockerfile"])
def test_the_options_that_an_example_gives_exist(name):
    found = commands((EXAMPLES / name).read_text())
    assert found
    assert {option for options in found for option, _ in options} <= known()
    for option, value in (pair for options in found for pair in options):
        if option == "--backend":
            assert TrainConfig(backend=value, device="cuda").backend == value


def test_the_pods_of_kubernetes():
    yaml = pytest.importorskip("yaml", reason="reading YAML needs PyYAML")
    job = yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: kind["replicas"] for name, kind in replicas.items()} == {"Master": 1, "Worker": 3}
    for kind in replicas.values():
        pod = kind["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch"  # the operator adds its variables to the container of this name
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        program, flag, script = container["command"]
        assert subprocess.run([program, "-n", flag, script], check=False).returncode == 0
        assert pod["terminationGracePeriodSeconds"] > TrainConfig().timeout


def test_the_container_has_what_it_copies_and_installs():
    lines = (EXAMPLES / "Dockerfile").read_text().splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    by_name = dict(steps)
    assert by_name["FROM"].startswith("python:3.")
    assert by_name["FROM"].removeprefix("python:").removesuffix("-slim") in (ROOT / "pyproject.toml").read_text()
    for name, rest in steps:
        assert name in ("FROM", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD")
        if name == "COPY":
            assert all((ROOT / source).exists() for source in rest.split()[:-1])
    install = next(rest for name, rest in steps if name == "RUN" and rest.startswith("pip install"))
    (extra,) = re.findall(r"\.\[(\w+)\]", install)
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
    assert 'fullgraph = "fullgraph.cli:main"' in (ROOT / "pyproject.toml").read_text()
    assert by_name["ENTRYPOINT"] == '["fullgraph"]'
    assert by_name["CMD"] == '["doctor"]'
    assert "doctor" in typer.main.get_command(app).commands
    assert "USER" in by_name, "a container runs as a user without rights"


def test_slurms_script_is_short_and_is_a_script():
    script = EXAMPLES / "slurm.sh"
    assert len(script.read_text().splitlines()) < 15
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert os.access(script, os.X_OK)


def test_the_page_prints_the_script_that_slurm_runs():
    page = (ROOT / "docs" / "machines.md").read_text()
    assert f"```\n{(EXAMPLES / 'slurm.sh').read_text()}```" in page
    assert all(name in page for name in ("Dockerfile", "pytorchjob.yaml", "on_ray.py"))


def test_the_options_of_torchrun_on_the_page_exist():
    from torch.distributed.run import get_args_parser  # noqa: TID251

    known_there = {option for action in get_args_parser()._actions for option in action.option_strings}
    page = (ROOT / "docs" / "machines.md").read_text()
    text = page[page.index("## torchrun") : page.index("## Another number")]
    ours = {option for options in commands(text) for option, _ in options}
    given = set(re.findall(r"(--[a-z][a-z-]+)", text)) - ours - {"--parts"}
    assert given <= known_there


class FakeRay(types.ModuleType):
    """Ray's calls that the example makes, on this machine alone: an actor's method runs in a thread."""

    def __init__(self):
        super().__init__("ray")
        self.util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
        self.asked = []

    def init(self):
        pass

    def remote(self, kind):
        def method(function):
            def call(*args):
                found = []
                thread = threading.Thread(target=lambda: found.append(function(*args)))
                thread.start()
                return thread, found

            return types.SimpleNamespace(remote=call)

        def make():
            own = kind()
            return types.SimpleNamespace(address=method(own.address), train=method(own.train))

        def options(**wanted):
            self.asked.append(wanted)
            return types.SimpleNamespace(remote=make)

        return types.SimpleNamespace(options=options)

    def get(self, running):
        if isinstance(running, list):
            return [self.get(one) for one in running]
        thread, found = running
        thread.join()
        return found[0]


@pytest.mark.cold
@pytest.mark.timeout(300)
def test_rays_actors_train(tmp_path, monkeypatch):
    """With a module in Ray's place; Ray itself is not installed."""
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    spec = importlib.util.spec_from_file_location("on_ray", EXAMPLES / "on_ray.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    save_npz(random_graph(), tmp_path / "g.npz")
    run = tmp_path / "run"
    options = ["--out", str(run), "--epochs", "2", "--hidden", "4", "--no-report"]
    assert example.main(2, [str(tmp_path / "g.npz"), *options]) == 0
    assert fg.FinishedRun(run).result["ranks"] == 2
    assert ray.asked == [{"num_cpus": 1, "num_gpus": 0}] * 2
