"""Restarted ranks meet through one store, and hosts that differ get the same error."""

import threading
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from fullgraph.errors import InputError
from fullgraph.testing import run_processes, run_threads
from fullgraph.transport import agree
from fullgraph.transport.job import meet


def met(store, size, who, seconds=10.0):
    """The name of the attempt for the ranks `who`; the errors of those that did not meet."""
    found = {}

    def come(rank):
        try:
            found[rank] = meet(store, rank, size, seconds)
        except RuntimeError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in who]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


@pytest.fixture
def store():
    store = HashStore()
    store.set_timeout(timedelta(seconds=5))
    return store


def test_every_attempt_has_a_name_of_its_own(store):
    names = []
    for _ in range(4):
        found = met(store, 3, range(3))
        assert len(set(found.values())) == 1
        names.append(found[0])
    assert len(set(names)) == 4


def test_who_came_in_an_earlier_attempt_is_not_waited_for_in_vain(store):
    """Rank 1 comes, dies and comes again: the others continue with the living one."""
    assert met(store, 3, [1], 0.2)[1] == "rank 0, 2 never came"
    assert len(set(met(store, 3, range(3)).values())) == 1


def test_ranks_that_do_not_come_are_named(store):
    assert met(store, 3, [0, 1], 0.5)[0] == "rank 2 never came"
    met(store, 3, range(3))
    assert met(store, 3, [0, 1], 0.5)[0] == "rank 2 is of another attempt"


def differing(transport):
    try:
        agree(transport, lambda: {"lr": 0.01 if transport.rank < 2 else 0.5, "seed": 0}, "ask for")
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("runner", [run_threads, run_processes])
def test_ranks_that_differ_are_refused_in_the_same_words(runner):
    assert runner(2, differing) == ["", ""]
    told = runner(3, differing)
    assert len(set(told)) == 1
    assert "rank 2 on " in told[0]
    assert "lr is 0.5, not 0.01" in told[0]
    assert "seed" not in told[0]


def in_trouble(transport):
    def about():
        if transport.rank == 1:
            raise InputError("run/config.json does not exist")
        return {}

    with pytest.raises(InputError, match=r"rank 1 on \S+: run/config.json does not exist"):
        agree(transport, about, "read")


def test_the_trouble_of_one_is_everyones():
    run_threads(3, in_trouble)
