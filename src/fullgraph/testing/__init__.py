"""Help for tests: awkward graphs, oracles without our machinery, and ranks as threads or processes."""

from fullgraph.testing.bodies import Trace, assert_same, train_trace, whole_logits
from fullgraph.testing.cases import CASES, Case, random_graph
from fullgraph.testing.laws import adjoint_pair, assert_schedule_law, assert_size_law
from fullgraph.testing.oracles import DenseModel, coded, dense_trace, stale_trace
from fullgraph.testing.ranks import run_processes, run_threads

__all__ = [
    "CASES",
    "Case",
    "DenseModel",
    "Trace",
    "adjoint_pair",
    "assert_same",
    "assert_schedule_law",
    "assert_size_law",
    "coded",
    "dense_trace",
    "random_graph",
    "run_processes",
    "run_threads",
    "stale_trace",
    "train_trace",
    "whole_logits",
]
