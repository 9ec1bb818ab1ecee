"""A meter's results from marks: shares of a step, bins of a run, traffic by channel."""

import threading

import pytest
import torch

from fullgraph.report import Meter
from fullgraph.report.profile import MOST_BINS, Bin, Bins
from fullgraph.report.spans import Share, channel_of, row_of_thread, without
from fullgraph.transport import Key


class HandWatch:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 0.0

    def mark(self):
        return self.now

    def seconds(self, interval):
        return interval[1] - interval[0]


class Twice:
    """A coding of two bytes per number, which takes some time."""

    def __init__(self, watch):
        self.watch = watch

    def nbytes(self, peer, rows):
        return 2 * rows.numel()

    def encode(self, peer, rows):
        self.watch.now += 3
        return torch.zeros(2 * rows.numel(), dtype=torch.uint8)

    def decode(self, peer, wire):
        self.watch.now += 1
        return torch.zeros(len(wire) // 2)


@pytest.fixture
def meter():
    meter = Meter()
    meter.watch = HandWatch()
    return meter


def on_thread(name, work):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("wholes", "holes", "left"),
    [
        ([(0, 4)], [], [(0, 4)]),
        ([(0, 4), (2, 6)], [], [(0, 6)]),
        ([(0, 4)], [(1, 2)], [(0, 1), (2, 4)]),
        ([(0, 4), (6, 9)], [(3, 7)], [(0, 3), (7, 9)]),
        ([(0, 4)], [(0, 4)], []),
        ([(0, 4)], [(-1, 1), (1, 2)], [(2, 4)]),
        ([], [(0, 1)], []),
    ],
)
def test_a_union_less_another(wholes, holes, left):
    assert without(wholes, holes) == left


def test_a_step_is_shared_out(meter):
    key, watch = Key("halo/layer1/chunk3", 4, use="rows"), meter.watch
    meter.open_step(5)
    coding = meter.message(key, {1: torch.zeros(2, 3)}, {1: 12}, Twice(watch))
    with meter.span("pack", key):
        watch.now += 2
    on_thread("fullgraph-sender", lambda: coding.encode(1, torch.zeros(2, 3)))  # 2 to 5, beside the step
    watch.now += 10  # computes until 15
    with meter.waiting(key):
        watch.now += 4
        on_thread("fullgraph-receiver", lambda: coding.decode(1, torch.zeros(12, dtype=torch.uint8)))  # until 20
    with meter.span("sum"), meter.waiting(Key("weights", 5, use="weights")):
        watch.now += 7
    tally = meter.close_step()
    assert tally.share() == Share(step_s=27, pack_s=2, wait_s=5, sum_s=7, code_s=4, hidden_s=15)
    assert (tally.numbers, tally.lag, tally.wait_s) == (6, 1, 12)
    (flow,) = meter.traffic.values()
    assert (flow.messages, flow.rows, flow.numbers, flow.bytes) == (1, 2, 6, 12)
    assert list(meter.traffic) == [("halo/layer1", "forward")]


def test_a_message_that_outlives_its_step_is_hidden_in_both(meter):
    key, watch = Key("halo/layer1", 0, use="rows"), meter.watch
    meter.open_step(0)
    watch.now = 1
    coding = meter.message(key, {}, {1: 4}, Twice(watch))
    watch.now = 3
    first = meter.close_step()
    watch.now = 10  # evaluation, which is not counted
    meter.open_step(1)
    watch.now = 12
    coding.decode(1, torch.zeros(4, dtype=torch.uint8))
    watch.now = 20
    second = meter.close_step()
    assert first.share().hidden_s == 2
    assert second.share().hidden_s == 3


def test_only_rows_of_training_are_timed(meter):
    coding = Twice(meter.watch)
    assert meter.message(Key("eval/layer1", 0), {1: torch.zeros(1)}, {1: 2}, coding) is coding
    assert meter.traffic == {}


def test_threads_of_the_transport_have_rows_of_their_own():
    seen = []
    on_thread("fullgraph-sender", lambda: seen.append(row_of_thread()))
    on_thread("rank 3", lambda: seen.append(row_of_thread()))
    assert seen[0][0] == "sender"
    assert seen[1] == row_of_thread() == ("compute", 0)


def test_blocks_and_chunks_are_one_channel():
    names = ["halo/layer1/chunk12", "tiles/layer2/rows/block 3", "halo/layer1", "hops/0/chunk1"]
    assert [channel_of(Key(name, 0)) for name in names] == ["halo/layer1", "tiles/layer2/rows", "halo/layer1", "hops/0"]


@pytest.mark.parametrize("epochs", [1, MOST_BINS, MOST_BINS + 1, 5 * MOST_BINS, 1000])
def test_bins_keep_sums_and_stay_few(epochs):
    bins = Bins()
    for epoch in range(epochs):
        bins.add(Share(1.0, 0.25, 0.5, 0.125, 0.0, 2.0), numbers=3, nbytes=5, lag=epoch % 2)
    assert len(bins.bins) <= MOST_BINS
    assert len({bin.epochs for bin in bins.bins[:-1]}) <= 1
    total = sum(bins.bins[1:], bins.bins[0])
    assert total == Bin(
        epochs=epochs, step_s=epochs, pack_s=epochs / 4, wait_s=epochs / 2, sum_s=epochs / 8, hidden_s=2.0 * epochs,
        numbers=3 * epochs, bytes=5 * epochs, lag=epochs // 2,
    )  # fmt: skip
    assert total.compute_s == pytest.approx(epochs / 8)
