"""The few calls in a user's own training loop that must involve other ranks."""

import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.own_code import in_users_frames
from fullgraph.own_model.module import Distributed
from fullgraph.placement import Shard
from fullgraph.tasks import Scores, node_task
from fullgraph.train.trainer import evaluate as evaluate_task
from fullgraph.transport import Key
from fullgraph.transport import gather_rows as gather_ranks

Over = Shard | Distributed


def mean_loss(losses: Tensor, over: Over, *, weight: Tensor | None = None) -> Tensor:
    """This rank's summand of the mean of `losses` over the rows of all ranks.

    losses: one number per row (reduction="none"), for this rank's rows. weight: the rows' weights, if `losses` are
    already weighted and the mean divides by the sum of weights, as in F.cross_entropy(weight=...).
    """
    if losses.dim() == 0:
        raise InputError("mean_loss takes one loss per row: compute it with reduction='none'")
    shard = _shard(over)
    total = losses.new_tensor([losses.numel()], dtype=torch.float64) if weight is None else weight.double().sum()[None]
    count = shard.train.owners.all_reduce(_key(shard, "loss"), total.detach().cpu().clone()).wait()
    if not float(count):
        raise InputError("mean_loss was given no row on any rank; choose rows that have labels")
    return losses.sum() / count.to(device=losses.device, dtype=losses.dtype)[0]


def sync_gradients(model: Distributed, loss: Tensor | None = None) -> None:
    """Sum the weight gradients of all ranks, between loss.backward() and optimizer.step(); this ends the step.

    loss: from `mean_loss`, for strategies that follow the loss (adaptive=True).
    """
    if not isinstance(model, Distributed):
        raise InputError("sync_gradients takes a model that fg.distribute made; fg.GradSync serves our own")
    model.sync_gradients(loss)


@in_users_frames
def evaluate(model: nn.Module, shard: Shard | None = None, *, metric: str = "auto") -> Scores:
    """The exact score on the training, validation and test rows of all ranks, equal on every rank."""
    if isinstance(model, Distributed):
        shard = model.shard
    if shard is None:
        raise InputError("evaluate needs the shard beside a model that fg.distribute did not make")
    multilabel = shard.full.y.dim() == 2 and not shard.real
    task = node_task(classes=shard.num_classes, multilabel=multilabel, real=shard.real, metric=metric)
    return evaluate_task(model, shard, task)


def gather_rows(rows: Tensor, over: Over, *, kind: str = "") -> Tensor:
    """The rows of all nodes in the graph's own order, on every rank; `rows` are those of all this rank's nodes.

    kind: the node type of the rows, in a typed graph; by default they are rows of all types.
    """
    shard = _shard(over)
    ids = shard.typed.numbers[kind] if kind else shard.full.ids
    if len(rows) != len(ids):
        raise InputError(f"gather_rows was given {len(rows)} rows where this rank owns {len(ids)} nodes; give all")
    rows = rows.detach()
    all_ids = gather_ranks(ids, shard.full.owners, _key(shard, "gather ids"))
    all_rows = gather_ranks(rows, shard.full.owners, _key(shard, "gather rows"))
    out = torch.empty_like(all_rows)
    out[all_ids] = all_rows
    return out


def _shard(over: Over) -> Shard:
    return over.shard if isinstance(over, Distributed) else over


def _key(shard: Shard, name: str) -> Key:
    """A new key at every call; the clock of evaluation only distinguishes messages."""
    shard.eval_clock.tick()
    return Key(name, shard.eval_clock.step)
