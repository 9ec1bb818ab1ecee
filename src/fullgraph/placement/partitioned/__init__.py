"""The partitioned placement: every rank computes all layers of its nodes and fetches its halo."""

from fullgraph.placement.partitioned.placement import Partitioned

__all__ = ["Partitioned"]
