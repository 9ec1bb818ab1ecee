"""A placement: the usual parts, but every step trains on one group of the training rows, in turn."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from fullgraph.placement import Partitioned, WholeStep
from fullgraph.transport import Key
from fullgraph.values import Range


@dataclass(frozen=True, kw_only=True)
class InGroups(Partitioned):
    """The loss of step t is the mean over the training rows whose number in the graph is t modulo `groups`."""

    groups: Annotated[int, Range(1, 1000)] = 2

    def place(self, part, transport, wire, aggregation):
        shard = Partitioned.place(self, part, transport, wire, aggregation)
        rows = shard.train
        group_n = rows.ids[rows.splits["train"]].cpu() % self.groups
        counts = torch.bincount(group_n, minlength=self.groups)
        counts = transport.all_reduce(Key("setup/groups", 0), counts).wait()  # of all ranks
        return replace(shard, executor=GroupStep(rows, counts.tolist()))


class GroupStep(WholeStep):
    def __init__(self, rows, counts):
        super().__init__(rows)
        self.counts = counts

    def step(self, model, shard, loss):
        """One forward and one backward pass; returns this rank's part of the loss."""
        rows, group = self.rows, shard.clock.step % len(self.counts)
        picked = rows.splits["train"]
        read = picked[rows.ids[picked] % len(self.counts) == group]
        value = loss(model(rows.x, rows)[read], rows.y[read], max(self.counts[group], 1))
        value.backward()
        return value.detach()
