"""The trainer takes a distributed model like ours: the same steps as a user's loop, and bit-identical resume."""

import copy

import pytest
import torch

import fullgraph as fg
from fullgraph.report import Meter
from fullgraph.tasks import node_task
from fullgraph.testing import anew, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import Trainer

pyg = pytest.importorskip("torch_geometric.nn", reason="PyG is an extra")

from tests.own_model.nets import CLASSES, HIDDEN, WIDTH, case_graph, shard_of  # noqa: E402
from tests.own_model.test_own_loop import steps  # noqa: E402

STEPS = 5


def trainer_of(transport, model, strategy, epochs=STEPS):
    shard = shard_of(transport, case_graph())
    model = fg.distribute(copy.deepcopy(model).double(), shard, strategy, check=False)
    config = TrainConfig(epochs=epochs, lr=0.01, dtype="float64", eval_every=100)
    return Trainer(model, model.shard, node_task(multilabel=False, classes=CLASSES), config, Meter())


def losses_of(transport, model, strategy):
    """Losses of a whole run; of a run that stops in the middle and continues from its state; and the scores."""
    trainer = anew(transport, trainer_of, model, strategy)
    losses = [float(trainer.train_step()[0]) for _ in range(STEPS)]
    begun = anew(transport, trainer_of, model, strategy)
    first = [float(begun.train_step()[0]) for _ in range(2)]
    held = {name: value.clone() for name, value in begun.shard.state().items()}
    resumed = anew(transport, trainer_of, model, strategy)
    resumed.model.load_state_dict(begun.model.state_dict())
    resumed.optimizer.load_state_dict(copy.deepcopy(begun.optimizer.state_dict()))
    resumed.shard.load_state(held)
    resumed.shard.clock.step = begun.shard.clock.step
    first += [float(resumed.train_step()[0]) for _ in range(STEPS - 2)]
    return losses, first, resumed.score()


@pytest.mark.parametrize("strategy", ["vanilla", "pipegcn-gf"])
def test_a_trainer_does_what_ones_own_loop_does(strategy):
    torch.manual_seed(3)
    model = pyg.GAT(WIDTH, HIDDEN, 3, CLASSES, v2=True, dropout=0.3)
    ranks = run_threads(3, losses_of, model, strategy)
    own = run_threads(3, lambda t: steps(t, model, STEPS, strategy=strategy))
    for (whole, resumed, scores), loop in zip(ranks, own, strict=True):
        assert whole == resumed
        assert whole == pytest.approx(loop["losses"].tolist(), rel=1e-12)
        assert scores == pytest.approx(loop["scores"])
