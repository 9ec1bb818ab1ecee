"""The pipeline placement: layers over stages, chunks of the graph in time."""

from fullgraph.placement.pipeline.placement import Pipeline
from fullgraph.placement.pipeline.rows import History

__all__ = ["History", "Pipeline"]
