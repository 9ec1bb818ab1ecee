"""Devices by name: which are refused, when, and that one file knows the kinds."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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
                                     ["--strategy", "mixgcn", "-o", "devices=cuda:0,cpu", "--parts", 2],
                                     ["--strategy", "mixgcn", "-o", "devices=cpu,cuda:0", "--parts", 2],
                                     ["--device", "cuda", "--backend", "nccl", "--parts", 2]])  # fmt: skip
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


class Four(Other):
    """torch on a machine with four GPUs."""

    device_count = staticmethod(lambda: 4)


LAUNCHED = {  # a launcher's variables, the devices that a rank sees, and the one that it takes
    "torchrun": ({"LOCAL_RANK": "3", "WORLD_SIZE": "8"}, 4, 3),
    "more ranks than devices": ({"LOCAL_RANK": "5", "WORLD_SIZE": "8"}, 4, 1),
    "a task with its own device": ({"LOCAL_RANK": "3", "WORLD_SIZE": "8"}, 1, 0),
    "one rank": ({}, 4, 0),
    "a launcher that numbers no local ranks, one device": ({"WORLD_SIZE": "2"}, 1, 0),
}


@pytest.mark.parametrize("how", LAUNCHED)
def test_ranks_take_the_devices_that_a_launcher_gives_them(how, monkeypatch):
    environ, count, index = LAUNCHED[how]
    monkeypatch.setattr(torch, "accelerator", Four)
    monkeypatch.setattr(Four, "device_count", lambda: count)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert device.device_of("xpu") == torch.device("xpu", index)


def test_ranks_without_a_local_number_are_refused(monkeypatch):
    """They would all take the first of several devices."""
    monkeypatch.setattr(torch, "accelerator", Four)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(fg.InputError, match=r"LOCAL_RANK is not set, .* would use xpu:0 of its 4 GPUs; set it to"):
        device.device_of("xpu")
    assert device.device_of("xpu:2") == torch.device("xpu", 2)


def test_two_ranks_on_one_device_are_refused_over_nccl(monkeypatch):
    monkeypatch.delenv(device.SHARED_NCCL, raising=False)
    device.refuse_shared(["GPU a of h1", "GPU a of h2", "GPU b of h1"])
    with pytest.raises(fg.InputError, match=r"ranks 0, 2 and 3 have the same device \(GPU a of h1\), and nccl"):
        device.refuse_shared(["GPU a of h1", "GPU a of h2", "GPU a of h1", "GPU a of h1"])
    monkeypatch.setenv(device.SHARED_NCCL, "1")
    device.refuse_shared(["GPU a of h1", "GPU a of h1"])


def test_a_device_is_known_by_its_number_or_by_its_place(monkeypatch):
    """Two containers of one machine may have different names and the same device."""
    about = SimpleNamespace(uuid="1-2-3")
    monkeypatch.setattr(device, "module_of", lambda _: SimpleNamespace(get_device_properties=lambda _: about))
    assert device.identity(torch.device("cuda", 1)) == "GPU 1-2-3"
    del about.uuid
    assert device.identity(torch.device("xpu", 1)) == f"xpu:1 of {os.uname().nodename}"


JOINS = """
import sys, torch
from fullgraph import device
from fullgraph.transport import job
job.identity = lambda device: "GPU 7 of here"
try:
    job.join(backend="nccl", device=torch.device("cuda", 0), timeout=30)
except ValueError as error:
    print(type(error).__name__, error)
"""


def test_ranks_learn_of_it_before_nccl_starts(tmp_path):
    """With variables that hide a GPU from no rank: each has number 0, and it is the same one."""
    about = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "FULLGRAPH_MEETING": str(tmp_path)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", JOINS], env={**os.environ, **about, "RANK": str(rank)},
                         stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        out, _ = rank.communicate(timeout=100)
        assert out.startswith(
            "InputError ranks 0 and 1 have the same device (GPU 7 of here), and nccl needs one for each"
        )


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
