"""Transports: the same bodies over threads and processes; wrappers; errors that name the message."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch

from fullgraph.testing import run_processes, run_threads
from fullgraph.transport import Counting, Hub, Key, OrderChecking, PeerLost, sums

RUNNERS = {"threads": run_threads, "processes": run_processes}


def all_to_all(transport):
    """Each rank sends `rank` copies of its number to every other; some messages are empty or absent."""
    peers = [p for p in range(transport.size) if p != transport.rank]
    outgoing = {
        p: torch.full((transport.rank * 1000,), transport.rank, dtype=torch.uint8) for p in peers if transport.rank
    }
    incoming = {p: p * 1000 for p in peers if p}
    first = transport.begin(Key("a", 0), outgoing, incoming)
    second = transport.begin(Key("a", 1), {p: w + 100 for p, w in outgoing.items()}, incoming)
    # Read in another order than posted.
    late = {p: int(w.unique()) for p, w in second.wait().items()}
    early = {p: int(w.unique()) for p, w in first.wait().items()}
    assert first.wait() is first.wait()
    total = transport.all_reduce(Key("sum", 0), torch.arange(3.0) + transport.rank).wait()
    return early, late, total


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("size", [2, 4])
def test_messages_find_their_keys(runner, size):
    for rank, (early, late, total) in enumerate(RUNNERS[runner](size, all_to_all)):
        peers = [p for p in range(1, size) if p != rank]
        assert early == {p: p for p in peers}
        assert late == {p: p + 100 for p in peers}
        assert torch.equal(total, size * torch.arange(3.0) + sum(range(size)))


def parts_of_a_sum(rank, numbers):
    """Numbers of many sizes, whose sum depends on the order in which they are added."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randn(numbers, generator=draw) * 10 ** torch.randint(-4, 5, (numbers,), generator=draw)


def summed(transport, *lengths):
    """Sums in flight at the same time, read in another order than they were begun."""
    coming = [
        transport.all_reduce(Key("weights", step, use="weights"), parts_of_a_sum(transport.rank, numbers))
        for step, numbers in enumerate(lengths)
    ]
    assert all(one.wait() is one.wait() for one in coming[::-1])
    return [one.wait() for one in coming]


LONG = 1 + sums.SHORT // 4  # numbers that two ranks swap and three send around a ring


@pytest.mark.parametrize("size", [2, 3])
def test_short_sums_have_the_bits_of_adding_in_rank_order(size):
    lengths = (1, 0, 1000, LONG if size == 2 else sums.SHORT // 8)
    expected = []
    for numbers in lengths:
        total = torch.zeros(numbers)
        for rank in range(size):
            total += parts_of_a_sum(rank, numbers)
        expected.append(total)
    for runner in RUNNERS.values():
        for found in runner(size, summed, *lengths):
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def overtaking(transport, numbers):
    """Rank 0 begins a sum of weights that rank 1 begins only after others, for which both wait."""
    weights, early = Key("weights", 0, use="weights"), None
    if transport.rank == 0:
        early = transport.all_reduce(weights, torch.ones(numbers))
    between = [float(transport.all_reduce(Key("norm", step), torch.ones(1)).wait()) for step in range(3)]
    return between, (early or transport.all_reduce(weights, torch.ones(numbers))).wait()


@pytest.mark.parametrize("numbers", [8, LONG])
@pytest.mark.parametrize("size", [2, 3])
def test_sums_within_a_backward_pass_do_not_queue_behind_those_of_weights(size, numbers):
    for between, total in run_processes(size, overtaking, numbers):
        assert between == [size] * 3
        assert torch.equal(total, torch.full((numbers,), float(size)))


def in_any_mode(transport):
    """Sums of tensors that a thread in its usual mode may not write, and of one that is not contiguous."""
    with torch.inference_mode():
        dreamt = transport.all_reduce(Key("dreamt", 0), torch.ones(4)).wait().tolist()
    leaf, inner = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True) * 2
    came_from = inner.grad_fn
    kept = transport.all_reduce(Key("leaf", 0), leaf).wait().tolist(), leaf.requires_grad
    rest = transport.all_reduce(Key("inner", 0), inner).wait().tolist(), inner.grad_fn is came_from
    turned = transport.all_reduce(Key("turned", 0), torch.arange(6.0).view(2, 3).t()).wait().tolist()
    return dreamt, kept, rest, turned


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("size", [2, 3])
def test_sums_take_tensors_of_any_mode_and_layout(runner, size):
    for dreamt, kept, rest, turned in RUNNERS[runner](size, in_any_mode):
        assert dreamt == [size] * 4
        assert kept == ([size] * 4, True)
        assert rest == ([2 * size] * 4, True)
        assert turned == [[0, 3 * size], [size, 4 * size], [2 * size, 5 * size]]


def summed_by(transport):
    """The transport's class that carries out a sum of these lengths."""
    lengths = (1, LONG)
    coming = [transport.inner.all_reduce(Key("a", n), torch.ones(numbers)) for n, numbers in enumerate(lengths)]
    assert all(float(one.wait().max()) == transport.size for one in coming)
    return [type(one).__name__ for one in coming]


def test_long_sums_of_three_ranks_go_round_a_ring():
    assert run_processes(3, summed_by) == [["_PendingResult", "_PendingSum"]] * 3
    assert run_processes(2, summed_by) == [["_PendingResult", "_PendingResult"]] * 2
    first, *others = run_processes(3, summed, LONG)
    exact = sum(parts_of_a_sum(rank, LONG).double() for rank in range(3))
    torch.testing.assert_close(first[0].double(), exact, rtol=1e-5, atol=1e-2)
    assert all(torch.equal(first[0], found[0]) for found in others)


@pytest.mark.parametrize(
    ("nbytes", "ranks", "cost"),
    [(100, 1, (0, 0)), (10**9, 2, (1, 10**9)), (1000, 4, (1, 3000)), (10**6, 4, (6, 1.5e6))],
)
def test_what_a_sum_costs(nbytes, ranks, cost):
    assert sums.cost_of(nbytes, ranks) == cost


def test_counting_reports_bytes_and_waits():
    sent, waited = [], []

    def body(transport):
        counted = Counting(
            transport, lambda k, n: sent.append((k.channel, n)), lambda k: nullcontext(waited.append(k.channel))
        )
        other = 1 - transport.rank
        counted.begin(Key("halo/layer0", 0), {other: torch.zeros(10, dtype=torch.uint8)}, {other: 10}).wait()
        counted.all_reduce(Key("weights", 0), torch.zeros(4)).wait()

    run_threads(2, body)
    assert sorted(sent) == [("halo/layer0", 10)] * 2 + [("weights", 16)] * 2
    assert sorted(waited) == ["halo/layer0"] * 2 + ["weights"] * 2


class Spelled:
    """A coding that records which thread ran it."""

    def __init__(self):
        self.threads = []

    def nbytes(self, peer, rows):
        return 8 * len(rows)

    def encode(self, peer, rows):
        self.threads.append(threading.current_thread().name)
        return (rows + peer).view(torch.uint8)

    def decode(self, peer, wire):
        self.threads.append(threading.current_thread().name)
        return wire.view(torch.int64) * 10


def spelled(transport):
    other, sent, coding = 1 - transport.rank, [], Spelled()
    counted = Counting(transport, lambda k, n: sent.append(n))
    rows = torch.arange(3) + 100 * transport.rank
    got = counted.begin(Key("halo/layer0", 0), {other: rows}, {other: 24}, coding).wait()
    return got[other].tolist(), sent, coding.threads


@pytest.mark.parametrize("runner", RUNNERS)
def test_rows_are_coded_on_their_way(runner):
    for rank, (got, sent, threads) in enumerate(RUNNERS[runner](2, spelled)):
        assert got == [10 * (row + 100 * (1 - rank) + rank) for row in range(3)]
        assert sent == [24], "bytes are counted when a message is posted"
        if runner == "processes":
            assert threads == ["fullgraph-sender", "fullgraph-receiver"], "the thread that trains does not code"


def test_order_checking_refuses_a_key_used_twice():
    transport = OrderChecking(Hub(2).ranks()[0])
    transport.begin(Key("a", 0), {}, {})
    with pytest.raises(AssertionError, match="a/step 0/forward twice"):
        transport.begin(Key("a", 0), {}, {})


def in_rank_order(transport):
    names = ["a", "b"] if transport.rank == 0 else ["b", "a"]
    for name in names:
        transport.begin(Key(name, 0), {}, {}).wait()


def test_order_checking_refuses_ranks_that_disagree():
    with pytest.raises(AssertionError, match="another order"):
        run_threads(2, in_rank_order)


def test_a_hang_names_the_message():
    transport = Hub(2, timeout=0.1).ranks()[0]
    with pytest.raises(
        PeerLost, match=r"rank 0 waited for halo/layer1/step 40/forward from rank 1; nothing came for 0.1 s"
    ):
        transport.begin(Key("halo/layer1", 40), {}, {1: 8}).wait()


def dies(transport):
    if transport.rank == 1:
        raise KeyError("gone")
    transport.begin(Key("halo/layer1", 40), {}, {1: 8}).wait()


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_failing_rank_is_the_failure(runner):
    with pytest.raises((KeyError, AssertionError), match="gone"):
        RUNNERS[runner](2, dies)


def vanishes(transport):
    transport.all_reduce(Key("together", 0), torch.zeros(1)).wait()
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    transport.begin(Key("halo/layer1", 40), {}, {1: 8}).wait()


def test_a_killed_peer_is_named_with_the_message():
    with pytest.raises(AssertionError, match=r"rank 0 on \S+ lost halo/layer1/step 40/forward from rank 1: .*Conn"):
        run_processes(2, vanishes)


def test_keys_have_stable_seeds_and_tags():
    key = Key("halo/layer2", 7, "backward")
    assert str(key) == "halo/layer2/step 7/backward"
    assert key.seed == Key("halo/layer2", 7, "backward").seed
    others = [Key("halo/layer2", 7), Key("halo/layer2", 8, "backward"), Key("halo/layer1", 7, "backward")]
    assert len({key.tag, *(o.tag for o in others)}) == 4
    assert len({key.seed, *(o.seed for o in others)}) == 4
    pair = [Key("halo/layer2", 7, ends=(0, peer)) for peer in (1, 2)]
    assert pair[0].tag == pair[1].tag, "messages of one exchange"
    assert pair[0].seed != pair[1].seed, "with noise of their own"
    runs = [Key("halo/layer2", 7, run=seed) for seed in (0, 1)]
    assert runs[0].tag == runs[1].tag
    assert runs[0].seed != runs[1].seed, "and of their run's"


def waited_for_twice(transport):
    """Two threads of a rank wait for one message, like a step and the writer of a checkpoint."""
    other = 1 - transport.rank
    coming = transport.begin(Key("a", 0), {}, {other: 3}) if transport.rank else None
    if coming is None:
        time.sleep(0.2)
        transport.begin(Key("a", 0), {other: torch.arange(3, dtype=torch.uint8)}, {})
        return []
    with ThreadPoolExecutor(2) as pool:
        return [rows[other].tolist() for rows in pool.map(lambda _: coming.wait(), range(2))]


@pytest.mark.parametrize("runner", RUNNERS)
def test_two_threads_of_a_rank_may_wait_for_the_same_message(runner):
    assert RUNNERS[runner](2, waited_for_twice) == [[], [[0, 1, 2]] * 2]
