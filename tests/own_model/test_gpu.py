"""Users' models on a CUDA device: following rows creates no tensor on another device, and results are equal."""

import copy

import pytest
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.testing import run_threads

pytest.importorskip("torch_geometric", reason="PyG is an extra")

from tests.own_model.mixing import LATE, RIGHT
from tests.own_model.nets import case_graph, shard_of
from tests.own_model.test_mixing import STEPS, in_one_process, made

pytestmark = pytest.mark.gpu


def on_device(transport, model):
    """Evaluated logits of a few steps on the CUDA device."""
    device = torch.device("cuda")
    shard = shard_of(transport, case_graph(), device=device)
    model = fg.distribute(copy.deepcopy(model).to(device), shard)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    more = [shard.node_id] if type(model.module).__name__ == "ById" else []
    logits = []
    for _ in range(STEPS):
        out = model.train()(shard.x, shard.edge_index, *more)
        rows = shard.train_mask
        optimizer.zero_grad()
        fg.mean_loss(F.cross_entropy(out[rows], shard.y[rows], reduction="none"), shard).backward()
        fg.sync_gradients(model)
        optimizer.step()
        with torch.no_grad():
            logits.append(model.eval()())
    return shard.full.ids.cpu(), torch.stack(logits).cpu()


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cuda_device_gives_what_one_process_gives(name, ranks):
    model = made(RIGHT[name])
    _, logits, _ = in_one_process(model)
    for ids, rows in run_threads(ranks, on_device, model):
        torch.testing.assert_close(rows, logits[:, ids], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", LATE, ids=lambda kind: kind.__name__)
def test_refused_on_a_cuda_device_too(kind):
    with pytest.raises(fg.InputError, match=LATE[kind]):
        run_threads(1, on_device, made(kind))
