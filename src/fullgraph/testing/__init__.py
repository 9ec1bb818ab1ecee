"""Help for tests: awkward graphs, oracles without our machinery, and ranks as threads or processes."""

from fullgraph.testing.bodies import (
    Saved,
    Trace,
    assert_same,
    differing,
    resumed_epochs,
    saved_epochs,
    train_trace,
    trainer_of,
    whole_logits,
)
from fullgraph.testing.cases import CASES, Case, random_graph
from fullgraph.testing.chunked import chunked_trace
from fullgraph.testing.crossing import coded, stale_trace
from fullgraph.testing.halos import HaloRules, halo_trace
from fullgraph.testing.launched import children_of, ranks_of
from fullgraph.testing.laws import adjoint_pair, assert_schedule_law, assert_size_law
from fullgraph.testing.oracles import DenseModel, dense_trace
from fullgraph.testing.ranks import anew, run_processes, run_threads

__all__ = [
    "CASES",
    "Case",
    "DenseModel",
    "HaloRules",
    "Saved",
    "Trace",
    "adjoint_pair",
    "anew",
    "assert_same",
    "assert_schedule_law",
    "assert_size_law",
    "children_of",
    "chunked_trace",
    "coded",
    "dense_trace",
    "differing",
    "halo_trace",
    "random_graph",
    "ranks_of",
    "resumed_epochs",
    "run_processes",
    "run_threads",
    "saved_epochs",
    "stale_trace",
    "train_trace",
    "trainer_of",
    "whole_logits",
]
