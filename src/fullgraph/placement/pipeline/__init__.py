"""Layers over stages, chunks of the graph in time."""

from fullgraph.placement.pipeline.placement import Pipeline

__all__ = ["Pipeline"]
