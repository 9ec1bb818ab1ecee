"""MixGCN: the update by rows, the aggregation by columns, equal to one process (arXiv:2501.01951)."""

from fullgraph.errors import InputError
from fullgraph.placement import Mixture
from fullgraph.recipes.base import Recipe


def mixgcn(blocks: int = 1) -> Recipe:
    """Exact training without halos: a machine holds the whole structure, and ranks swap row for column blocks.

    blocks: runs of rows, one of which is aggregated while the one before crosses and is updated.
    """
    if blocks < 1:
        raise InputError(f"blocks={blocks}: at least 1")
    return Recipe(
        name="mixgcn",
        options={"blocks": blocks},
        placement=Mixture,
        layout={"blocks": blocks},
        partitioner="contiguous" if blocks == 1 else "banded",
        partitioner_options={} if blocks == 1 else {"blocks": blocks},
    )
