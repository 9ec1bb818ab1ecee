"""A page's advice: given for figures that call for it, and only for these."""

from dataclasses import replace
from pathlib import Path

import pytest

from fullgraph.lab.html.advice import advice
from fullgraph.lab.html.past import PastRun
from fullgraph.report import EpochRecord, Outcome
from fullgraph.report.profile import Bin, Flow, Profile, RankProfile

EPOCH = Bin(step_s=1.0, pack_s=0.05, wait_s=0.1, sum_s=0.05, numbers=3200, bytes=12800)
FLOW = Flow(channel="halo/layer1", way="forward", messages=4, rows=100, numbers=12800, bytes=51200, expected=51200)


def rank(**changes):
    usual = RankProfile(
        host="here", device="cpu", threads=1, peak_memory_bytes=10, memory_bytes=1000, nodes=100, arcs=1000, train=10,
        halo=(0, 10, 10, 10), bins=(EPOCH,) * 5, traffic=(FLOW,),
    )  # fmt: skip
    return replace(usual, **changes)


def past(*ranks, partitioner="metis", options=(), records=(), outcome=None):
    profile = Profile(first_epoch=1, versions={}, ranks=ranks)
    return PastRun(
        folder=Path("run"), name="run", graph="g", strategy="vanilla", model="sage", partitioner=partitioner,
        ranks=len(ranks), seed="0", planned=5, options=list(options), command="", records=list(records),
        outcome=outcome, result=[], profile=profile,
    )  # fmt: skip


def waiting(share, **changes):
    return replace(EPOCH, wait_s=share, **changes)


def test_more_threads_than_cores():
    (text,) = advice(past(*[rank(cores=2)] * 4))
    assert text.startswith("4 ranks with 4 threads compete for 2 cores on here, and 15 % of the epoch is waiting")
    idle = rank(cores=2, bins=(waiting(0.01, sum_s=0.0),) * 5)
    assert advice(past(*[idle] * 4)) == []
    assert advice(past(*[rank(cores=4)] * 4)) == []


def test_sums_that_wait_for_the_last():
    early, last = rank(bins=(replace(EPOCH, sum_s=0.5),) * 5), rank(bins=(replace(EPOCH, sum_s=0.3),) * 5)
    (text,) = [text for text in advice(past(early, last, early, early)) if "all-reduce" in text]
    assert text.startswith("45 % of the epoch goes into the gradient all-reduce")
    assert "rank 1 spends the least time there" in text


def test_an_even_run_is_left_alone():
    assert advice(past(*[rank()] * 4)) == []


def test_edges_alone_are_no_reason():
    """The ranks compute equally long, whatever their parts hold."""
    assert advice(past(rank(), rank(), rank(), rank(arcs=2500))) == []


def test_a_rank_with_more_edges_that_computes_longer():
    longer = rank(arcs=2500, bins=(replace(EPOCH, step_s=2.0),) * 5)
    uneven = [*[rank(bins=(waiting(1.1, step_s=2.0),) * 5)] * 3, longer]

    def said(**about):
        return next(text for text in advice(past(*uneven, **about)) if text.startswith("Rank 3 computes"))

    assert said().startswith("Rank 3 computes 1.8 s per epoch, 1.7x the mean, and the others wait for it")
    assert "1.8x the mean's edges: partition with -p degree_weight=1" in said()
    told = said(options=[("partitioner.degree_weight", "1.0")])
    assert "metis was told to balance them (degree_weight 1.0)" in told
    assert "-p degree_weight" not in told
    assert "--partitioner metis" in said(partitioner="random")
    assert "--partitioner metis" not in said(partitioner="metis-volume")


def test_a_run_with_patience_is_not_told_to_take_some():
    found = outcome_of(8), [record(epoch) for epoch in range(1, 41)]
    run = past(*[rank()] * 4, outcome=found[0], records=found[1])
    assert any("--patience" in text for text in advice(run))
    assert advice(replace(run, options=[("train.patience", "9")])) == []


def test_the_page_warns_of_the_losses_that_the_terminal_warns_of():
    """Late rows, and a loss that does not fall."""
    late = rank(bins=(replace(EPOCH, epochs=10, step_s=10.0, lag=10),) * 5)
    run = past(*[late] * 4, records=[record(epoch) for epoch in range(1, 51)])
    assert any(text.startswith("The loss has hardly fallen in 50 epochs (1 to 1)") for text in advice(run))
    assert advice(replace(run, profile=replace(run.profile, ranks=(rank(),) * 4))) == []


def test_the_terminal_and_the_page_mean_the_same_by_lagging():
    from fullgraph.lab.html import advice as page
    from fullgraph.train import progress

    assert page.LAG is progress.LAG


def test_an_epoch_that_waits_for_whole_rows():
    (text,) = advice(past(*[rank(bins=(waiting(0.82),) * 5)] * 4))
    # of each 51200 bytes: four per row, 400, and one bit per number, 1600
    assert text.startswith("82 % of the epoch waits for messages: --strategy sylvie-a would send 1/26 of the bytes")


@pytest.mark.parametrize(("lag", "said"), [(0, "one step late hide it"), (1, "use fewer ranks, or a faster link")])
def test_an_epoch_that_waits_for_few_bits(lag, said):
    (text,) = advice(past(*[rank(bins=(waiting(0.6, bytes=400, lag=lag),) * 5)] * 4))
    assert said in text


def test_ranks_that_wait_for_one():
    slow = rank(bins=(waiting(0.0, step_s=1.0),) * 5)
    found = advice(past(slow, *[rank(bins=(waiting(0.6),) * 5)] * 3))
    assert any("of rank 0 only 0 %: the others wait for its work" in text for text in found)
    assert any(text.startswith("Rank 0 computes") for text in found)


def test_halos_larger_than_a_mixtures_tiles():
    (text,) = advice(past(*[rank(halo=(90, 90, 90, 0))] * 4))
    assert text.startswith("15 % of the epoch is waiting")
    assert "--strategy mixgcn would move 0.56 of them" in text
    quick = rank(halo=(90, 90, 90, 0), bins=(waiting(0.01, sum_s=0.0),) * 5)
    assert advice(past(*[quick] * 4)) == []
    run = past(*[rank(halo=(90, 90, 90, 0))] * 4)
    assert advice(replace(run, model="my_model.py:Net")) == []  # a mixture takes our models


def test_memory_that_is_nearly_used_up():
    (text,) = advice(past(*[rank(peak_memory_bytes=220)] * 4))
    assert "held up to 880 B of its 1 kB" in text
    (text,) = advice(past(*[rank(peak_device_bytes=90, device_bytes=100)], *[rank()] * 3))
    assert "Rank 0 held up to 90 B of its GPU's 100 B" in text


def record(epoch, late=None):
    return EpochRecord(
        epoch=epoch, loss=1.0, lr=0.1, epoch_s=1.0, wait_s=0.1, bytes=1, grad_bytes=1, late=late, val=0.5
    )


def outcome_of(best):
    return Outcome(
        schema=1, strategy="vanilla", model="sage", ranks=4, epochs=40, metric="accuracy", best_epoch=best, test=0.5,
        val=0.5, epoch_s=1.0, wait_s=0.1, bytes_per_epoch=1, bytes_total=40,
    )  # fmt: skip


def test_how_late_rows_are_is_no_advice():
    """It does not distinguish a run that loses score from one that does not (docs/benchmarks.md)."""
    assert advice(past(*[rank()] * 4, records=[record(1), record(2, late=1.5)])) == []


@pytest.mark.parametrize(("best", "said"), [(40, "more epochs may score higher"), (8, "--patience 5"), (30, None)])
def test_when_the_best_score_came(best, said):
    records = [record(epoch) for epoch in range(1, 41)]
    found = advice(past(*[rank()] * 4, records=records, outcome=outcome_of(best)))
    assert (said is None and found == []) or (said is not None and said in found[0])
