"""The update by rows, the aggregation by columns."""

from fullgraph.placement.mixture.placement import Mixture

__all__ = ["Mixture"]
