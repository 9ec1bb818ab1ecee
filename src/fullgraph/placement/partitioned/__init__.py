"""Every rank owns some nodes, through all layers, and fetches its halo."""

from fullgraph.placement.partitioned.placement import Partitioned

__all__ = ["Partitioned"]
