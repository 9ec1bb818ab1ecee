"""Cached properties: computed once, and without a lock that instances share."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from fullgraph.cached import cached_property


class Rank:
    def __init__(self, meeting: Barrier) -> None:
        self.meeting, self.computed = meeting, 0

    @cached_property
    def rows(self) -> int:
        """How often it was computed, after all ranks have arrived."""
        self.meeting.wait(timeout=10)
        self.computed += 1
        return self.computed


def test_ranks_that_are_threads_may_meet_inside_of_a_property():
    """functools.cached_property of Python 3.11 has one lock for all instances: the second thread would never enter."""
    meeting = Barrier(3)
    ranks = [Rank(meeting) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda rank: rank.rows, ranks)) == [1, 1, 1]
    assert [rank.rows for rank in ranks] == [1, 1, 1]


def test_the_class_has_its_description():
    assert Rank.rows.__doc__ == "How often it was computed, after all ranks have arrived."
