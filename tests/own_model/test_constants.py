"""Rows that do not change cross once, also where a layer makes them anew in every pass."""

import pytest
import torch

import fullgraph as fg
from fullgraph.own_model.constants import TRIES, Constant
from fullgraph.testing import run_threads
from tests.own_model.users_kinds import FILE
from tests.support import random_graph

pytest.importorskip("torch_geometric")


def test_inputs_that_a_layer_repeats_cross_once(tmp_path):
    """As PNAConv repeats x for its towers."""
    options = {"parts": 2, "epochs": 4, "eval_every": 4, "strategy": "sylvie-s"}
    run = fg.train(random_graph(), model=f"{FILE}:Normalised", out=tmp_path / "run", **options)
    first, *later = (record.bytes for record in run.metrics)
    assert len(set(later)) == 1
    assert later[0] < first / 10


def test_all_ranks_send_again_where_one_has_changed_its_rows():
    def body(transport):
        constant, sent = Constant(), []

        def total(x):
            return transport.all_reduce(fg.transport.Key("changed", len(sent)), x).wait()

        for step in range(6):
            rows = torch.full((3, 2), 1.0 + (step == 2 and transport.rank == 1))
            known = constant.known(rows, total)
            sent.append(known is None)
            if known is None:
                constant.keep(rows, torch.full((1, 2), float(step)))
            rows += 1  # a model may write to its rows afterwards
        return sent

    seen = run_threads(3, body)
    assert TRIES == 2
    assert seen == [[True, False, True, True, True, True]] * 3
