"""The mixture placement: ranks own rows for the update and columns for the aggregation."""

from fullgraph.placement.mixture.placement import Mixture

__all__ = ["Mixture"]
