"""MixGCN: the update by rows, the aggregation by columns, equal to one process (arXiv:2501.01951)."""

from fullgraph.placement import Mixture
from fullgraph.recipes.base import Recipe


def mixgcn() -> Recipe:
    """Exact training without halos: ranks hold the whole structure and swap row for column blocks of the features."""
    return Recipe(name="mixgcn", placement=Mixture, partitioner="contiguous")
