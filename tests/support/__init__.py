"""Unusual graphs, oracles that share no code with channels, and the bodies that ranks run."""

from tests.support.bodies import (
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
from tests.support.cases import CASES, Case, random_graph, same_fields
from tests.support.chunked import chunked_trace
from tests.support.crossing import coded, stale_trace
from tests.support.halos import HaloRules, halo_trace
from tests.support.launched import children_of, ranks_of
from tests.support.oracles import DenseModel, dense_trace

__all__ = [
    "CASES",
    "Case",
    "DenseModel",
    "HaloRules",
    "Saved",
    "Trace",
    "assert_same",
    "children_of",
    "chunked_trace",
    "coded",
    "dense_trace",
    "differing",
    "halo_trace",
    "random_graph",
    "ranks_of",
    "resumed_epochs",
    "same_fields",
    "saved_epochs",
    "stale_trace",
    "train_trace",
    "trainer_of",
    "whole_logits",
]
