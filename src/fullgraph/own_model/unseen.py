"""The view of a shard that was opened without an aggregation: ids, and an error for a model of ours."""

from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.placement import Rows, Shard


@dataclass(frozen=True, eq=False)
class Unseen:
    """Rows whose neighbours only a model of the user's own reads."""

    ids: Tensor

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InputError(
            "this shard was opened for fg.distribute; for a model of ours give its aggregation: "
            "fg.open_shard(..., aggregation='gcn', 'mean', 'sum' or 'attention')"
        )


def unseen(shard: Shard) -> Shard:
    """The same shard for a user's own model alone."""

    def hidden(rows: Rows) -> Rows:
        view: Any = Unseen(rows.ids)
        return replace(rows, view=view)

    return replace(shard, train=hidden(shard.train), full=hidden(shard.full))
