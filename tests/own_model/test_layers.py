"""PyG's layers on three ranks are PyG's layers in one process: logits, all gradients, float64."""

import pytest
import torch

from fullgraph.testing import anew, run_processes, run_threads

pytest.importorskip("torch_geometric", reason="PyG is an extra")

from tests.own_model.nets import NETS, in_one_process, on_ranks

SAMPLE = ("gcn weighted", "gatv2", "gin", "pna", "shared", "model gcn")


def compare(values, name):
    logits, grads, model = in_one_process(name, values[0][-1])
    got = torch.full_like(logits, float("nan"))
    for ids, rows, *_ in values:
        got[ids] = rows
    torch.testing.assert_close(got, logits, rtol=1e-9, atol=1e-9)
    for _, _, mine, buffers, _ in values:
        torch.testing.assert_close(mine, grads, rtol=1e-9, atol=1e-9)
        want = {key: value.double() for key, value in model.named_buffers()}
        torch.testing.assert_close(buffers, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NETS)
def test_three_ranks_equal_one_process(name):
    compare(run_threads(3, on_ranks, name), name)


@pytest.mark.parametrize("name", ["gcn", "model gin"])
def test_one_rank_equals_one_process(name):
    compare(run_threads(1, on_ranks, name), name)


def sample(transport):
    return [anew(transport, on_ranks, name) for name in SAMPLE]


@pytest.mark.timeout(300)  # three processes import PyG
def test_processes_equal_one_process():
    values = run_processes(3, sample, timeout=280, silence=120)
    for number, name in enumerate(SAMPLE):
        compare([value[number] for value in values], name)
