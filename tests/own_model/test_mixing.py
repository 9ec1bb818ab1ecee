"""Models that mix rows of different nodes, in training and evaluation, on 1 to 3 ranks: exact, or refused by name."""

import copy
import io
import time

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.partition import cut_parts, partition
from fullgraph.placement import Partitioned
from fullgraph.testing import run_threads

pytest.importorskip("torch_geometric", reason="PyG is an extra")

from tests.own_model import mixing, mixing_again, mixing_more
from tests.own_model.nets import case_graph, shard_of

STEPS = 4
RIGHT = mixing.RIGHT | mixing_more.RIGHT | mixing_again.RIGHT
REFUSED = mixing.REFUSED | mixing_more.REFUSED | mixing_again.REFUSED
LATE = mixing.LATE | mixing_more.LATE | mixing_again.LATE


def in_one_process(model):
    """Losses and evaluated logits of plain PyG."""
    graph, model = case_graph(), copy.deepcopy(model)
    x, y, mask = torch.tensor(graph.x), torch.tensor(graph.y), torch.tensor(graph.train_mask[:, 0])
    edge_index = torch.from_numpy(graph.edge_index.astype(np.int64))
    more = [torch.arange(len(x))] if type(model).__name__ == "ById" else []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    losses, logits = [], []
    for _ in range(STEPS):
        loss = F.cross_entropy(model.train()(x, edge_index, *more)[mask], y[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        with torch.no_grad():
            logits.append(model.eval()(x, edge_index, *more))
    return torch.stack(losses), torch.stack(logits), dict(model.named_buffers())


def on_ranks(transport, model):
    """The same from a user's own loop over ranks."""
    shard = shard_of(transport, case_graph())
    model = fg.distribute(copy.deepcopy(model), shard)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    more = [shard.node_id] if type(model.module).__name__ == "ById" else []
    losses, logits = [], []
    for _ in range(STEPS):
        out = model.train()(shard.x, shard.edge_index, *more)
        mask = shard.train_mask
        loss = fg.mean_loss(F.cross_entropy(out[mask], shard.y[mask], reduction="none"), shard)
        optimizer.zero_grad()
        loss.backward()
        fg.sync_gradients(model)
        optimizer.step()
        losses.append(loss.detach())
        with torch.no_grad():
            logits.append(fg.gather_rows(model.eval()(), shard))
    whole = model.state_dict()
    return torch.stack(losses), torch.stack(logits), {name: whole[name] for name, _ in model.module.named_buffers()}


def made(kind):
    torch.manual_seed(3)
    return kind().double()


@pytest.mark.parametrize("name", RIGHT)
def test_equal_to_one_process(name):
    model = made(RIGHT[name])
    losses, logits, buffers = in_one_process(model)
    for ranks in (1, 2, 3):
        for mine, rows, kept in (got := run_threads(ranks, on_ranks, model)):
            assert len(mine) == STEPS
            torch.testing.assert_close(rows, logits, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(kept, buffers, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(sum(mine for mine, _, _ in got), losses, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("ranks", [1, 3])
def test_refused_by_name(kind, ranks):
    with pytest.raises(fg.InputError, match=REFUSED[kind]):
        run_threads(ranks, on_ranks, made(kind))


@pytest.mark.parametrize("kind", LATE, ids=lambda kind: kind.__name__)
def test_refused_in_the_step_where_it_begins(kind):
    with pytest.raises(fg.InputError, match=rf"mixing\w*\.py:\d+, ({kind.__name__}|\w+ \(layer \w+\)): .*{LATE[kind]}"):
        run_threads(3, on_ranks, made(kind))


@pytest.mark.parametrize("kind", mixing_again.LATER, ids=lambda kind: kind.__name__)
def test_a_hook_is_followed_in_the_backward_pass_of_every_step(kind):
    with pytest.raises(fg.InputError, match=mixing_again.LATER[kind]):
        run_threads(3, on_ranks, made(kind))


def test_ranks_that_wait_for_one_another_are_told_at_once():
    (kind, place), *_ = mixing_more.WAITING.items()
    begun = time.process_time()
    with pytest.raises(fg.InputError, match=rf"self-check: .*({place}).*one rank waits here for another"):
        run_threads(3, on_ranks, made(kind))
    assert time.process_time() - begun < 30


@pytest.mark.parametrize("kind", [mixing_more.Dropped, *mixing.DRAWN], ids=lambda kind: kind.__name__)
def test_a_number_drawn_for_a_row_is_the_same_on_any_number_of_ranks(kind):
    one, _, _ = run_threads(1, on_ranks, made(kind))[0]
    three = run_threads(3, on_ranks, made(kind))
    torch.testing.assert_close(sum(losses for losses, _, _ in three), one, rtol=1e-9, atol=1e-9)
    assert len(one.unique()) == STEPS


def test_the_output_can_be_saved():
    def body(transport):
        shard = shard_of(transport, case_graph())
        out = fg.distribute(made(mixing.Base), shard, check=False).eval()()
        torch.save(out.detach(), file := io.BytesIO())
        file.seek(0)
        return torch.equal(torch.load(file), out)

    assert run_threads(2, body) == [True] * 2


class InFloat32(mixing.Base):
    """Tensors of the default dtype, as in a model for float32."""

    def made(self):
        self.scale = torch.ones(mixing.HIDDEN)

    def between(self, h, x, e):
        degree = torch.zeros(x.size(0)).index_add(0, e[1], torch.ones(e.size(1)))
        return h * self.scale / (1 + degree[:, None]) + torch.ones(mixing.HIDDEN) @ torch.eye(mixing.HIDDEN)


def test_a_model_of_float32_is_checked_in_float64():
    def body(transport):
        part = cut_parts(case_graph(), partition(case_graph(), transport.size, method="random", seed=0), transport.rank)
        shard = Partitioned(dtype=torch.float32, precompute=False).place(part, transport, fg.Wire(), "sum")
        return fg.gather_rows(fg.distribute(copy.deepcopy(model), shard).eval()(), shard)

    torch.manual_seed(3)  # not in the threads: they share one generator
    model = InFloat32()
    (one,), many = run_threads(1, body), run_threads(3, body)
    assert torch.get_default_dtype() is torch.float32
    torch.testing.assert_close(many, [one] * 3)
