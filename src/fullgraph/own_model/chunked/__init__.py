"""Run message-passing layers over chunks of target rows, recomputed in the backward pass: bounded memory for any
layer.
"""

from fullgraph.own_model.chunked.budget import AUTO, Budget
from fullgraph.own_model.chunked.layer import Chunks, run_in_chunks

__all__ = ["AUTO", "Budget", "Chunks", "run_in_chunks"]
