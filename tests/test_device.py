"""Devices by name: which are refused, when, and that one file knows the kinds."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fullgraph as fg
from fullgraph import device
from fullgraph.storage import write_document
from fullgraph.train.config import TrainConfig, device_in
from tests.support import random_graph

SOURCE = Path(fg.__file__).parent
KNOW = ("device.py", "ops/", "transport/")  # kernels and streams
NAMES_OF_TORCH = {  # attributes of tensors, and an option's example
    "own_model/mode.py",
    "own_model/rows/sparse.py",
    "own_model/rows/special.py",
}


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", "xpu", "xpu:12"])
def test_names_that_are_taken(name):
    assert TrainConfig(device=name).device == name


@pytest.mark.parametrize(
    "name", ["gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "", "CUDA", "meta", "cuda:\u0663"]
)
def test_names_that_are_not(name):
    with pytest.raises(fg.InputError, match=r"device=.*: one of cpu, cuda, xpu, or one with its number"):
        TrainConfig(device=name)


def test_a_config_of_somebody_elses_names_no_device(tmp_path):
    for given, found in (("cuda:1", "cuda:1"), ("rm -rf", "cpu"), (3, "cpu")):
        write_document(tmp_path / "config.json", {"train": {"device": given}})
        assert device_in(tmp_path / "config.json") == found


@pytest.mark.skipif(device.available(), reason="this machine has a device")
@pytest.mark.parametrize("options", [["--device", "cuda"], ["--device", "cuda:1"], ["--device", "xpu"],
                                     ["--strategy", "mixgcn", "-o", "devices=cuda:0,cpu", "--parts", 2]])  # fmt: skip
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(say, tmp_path, options):
    code, out, err = say("train", "sbm:nodes=60", "--out", "run", *options)
    assert (code, out) == (2, "starting\n")
    assert re.search(r"--device (cuda|xpu)\S*, but torch sees no GPU; use --device cpu", err)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(device.available(), reason="this machine has a device")
def test_a_run_from_a_machine_with_a_gpu_is_neither_resumed_nor_predicted_here(say, tmp_path):
    fg.train(random_graph(), model=fg.nn.GCN(layers=2, hidden=4), epochs=1, eval_every=1, out=tmp_path / "run")
    run = fg.Run.read(tmp_path / "run")
    replace(run, train=replace(run.train, device="cuda")).write(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.suffix != ".lock"}
    for words in (["train", "--resume", "run", "--epochs", 3], ["predict", "run", "--out", "there"]):
        code, _, err = say(*words)
        assert code == 2
        assert "--device cuda, but torch sees no GPU; use --device cpu" in err
    assert not (tmp_path / "there").exists()
    assert {path: path.stat().st_mtime_ns for path in before} == before


class Other:
    """torch on a machine with two devices of another maker."""

    @staticmethod
    def current_accelerator():
        return torch.device("xpu")

    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)


def test_devices_of_another_kind(monkeypatch):
    monkeypatch.setattr(torch, "accelerator", Other)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device.device_of("xpu") == torch.device("xpu", 1)
    assert device.device_of("xpu:0") == torch.device("xpu", 0)
    assert device.device_of("cpu") == torch.device("cpu")
    with pytest.raises(fg.InputError, match="--device cuda, but torch sees xpu devices; use --device xpu or cpu"):
        device.device_of("cuda")
    with pytest.raises(fg.InputError, match="device xpu:2, but torch sees 2 of them; count them from xpu:0"):
        device.device_of("xpu:2")


def test_on_a_cpu_there_is_nothing_to_wait_for():
    cpu = torch.device("cpu")
    device.synchronize(cpu)
    assert (device.peak_bytes(cpu), device.begin_peak(cpu)) == (0, 0)
    assert device.by_kind({"cpu": 1, "gpu": 2}, cpu) == 1
    assert device.by_kind({"cpu": 1, "gpu": 2}, torch.device("xpu", 1)) == 2
    assert [device.is_accelerator(name) for name in ("cpu", "meta", "cuda:1", "xpu")] == [False, False, True, True]


def test_one_file_knows_the_kinds_of_devices():
    """Beside kernels and streams, all other code treats a device as a name or a torch.device."""
    knowing = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "cuda" in path.read_text() and not str(path.relative_to(SOURCE)).startswith(KNOW)
    }
    assert knowing - {"recipes/mixgcn.py", "recipes/placements.py"} == NAMES_OF_TORCH
