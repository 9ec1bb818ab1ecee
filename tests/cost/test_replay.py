"""Simulated steps: small programs whose seconds can be computed by hand."""

import dataclasses

import pytest

from fullgraph.lab.cost.cluster import Cluster, Link
from fullgraph.lab.cost.network import Shared, Timeline
from fullgraph.lab.cost.predict import continued
from fullgraph.lab.cost.replay import Replay
from fullgraph.lab.cost.script import Post, Step, Sum, Wait, Work
from fullgraph.transport import Key

NO_LINK = Link(bits_per_s=8e9, latency_s=0.0, message_s=0.0)  # one byte per nanosecond


def second(work):
    return float(work.sizes[0])


def work(seconds):
    return Work("pass", (seconds,))


def post(step, *, to, size, channel="halo", encode=(), decode=(), lane=0):
    sent, come = {to: size}, {to: size}
    return Post(Key(channel, step, use="rows"), sent, come, tuple(encode), tuple(decode), lane)


def cluster(machines=2, **changed):
    return Cluster(**{"machines": machines, "cores": 1, "crowding": 0.0, "link": NO_LINK, "inside": NO_LINK, **changed})


def taken(programs, there=None, **options):
    """programs[rank]: a function of the step that returns its events."""
    steps = [[Step(tuple(program(step)), 0) for step in range(6)] for program in programs]
    return Replay(there or cluster(len(programs)), second, **options).run(steps)


def test_work_alone_takes_what_it_takes():
    found = taken([lambda step: [work(2), work(1)]])
    assert found.epoch_s == pytest.approx(3)
    assert found.compute_s == pytest.approx(3)
    assert found.wait_s == 0


def in_step(rank):
    def program(step):
        sent = post(step, to=1 - rank, size=4_000_000_000)
        return [sent, work(1), Wait(sent), work(2)]

    return program


def test_who_needs_a_message_waits_for_what_its_work_does_not_hide():
    found = taken([in_step(0), in_step(1)])
    assert found.epoch_s == pytest.approx(4 + 2)  # four seconds on the wire, one of them overlaps with work
    assert found.wait_s == pytest.approx(3)
    assert found.link_s == pytest.approx(4)
    assert found.bytes == 8_000_000_000


def late(rank):
    def program(step):
        sent, before = post(step, to=1 - rank, size=4_000_000_000), post(step - 1, to=1 - rank, size=4_000_000_000)
        return [sent, work(3), *([Wait(before)] if step else []), work(2)]

    return program


def test_a_late_message_hides_behind_a_whole_step():
    # the work of a step, because four seconds fit under it
    assert taken([late(0), late(1)]).epoch_s == pytest.approx(5)


def test_a_link_that_is_slower_than_the_work_is_what_an_epoch_takes():
    slow = cluster(link=Link(bits_per_s=4e9, latency_s=0.0, message_s=0.0))
    assert taken([late(0), late(1)], slow).epoch_s == pytest.approx(8)


def test_ranks_on_one_core_take_turns():
    together = cluster(2, together=True)
    assert taken([lambda step: [work(1)]] * 2, together).epoch_s == pytest.approx(2)
    assert taken([lambda step: [work(1)]] * 2, cluster(2, together=True, cores=2)).epoch_s == pytest.approx(1)


def test_taking_turns_on_a_core_costs_more_where_it_is_crowded():
    programs = [lambda step: [work(1)], lambda step: [work(1)]]
    there = cluster(1, ranks_per_machine=2)
    assert taken(programs, there).epoch_s == pytest.approx(2)
    assert taken(programs, dataclasses.replace(there, crowding=0.5)).epoch_s == pytest.approx(2 * 1.25)


def test_messages_of_one_connection_cross_one_after_the_other():
    """The first of two messages arrives after half of the time; on separate lanes both take all of it."""

    def programs(lane):
        def ends(to):
            def program(step):
                sent = [post(step, to=to, size=1_000_000_000, channel=c, lane=k) for c, k in (("a", 0), ("b", lane))]
                return [*sent, Wait(sent[0]), work(1), Wait(sent[1])]

            return program

        return [ends(1), ends(0)]

    assert taken(programs(0)).epoch_s == pytest.approx(2)  # the work overlaps with the second message
    assert taken(programs(1)).epoch_s == pytest.approx(3)


def test_two_messages_share_a_port():
    def program(step):
        if step == 0:
            return [work(1)]
        both = [post(step, to=1, size=2_000_000_000, channel="a"), post(step, to=1, size=2_000_000_000, channel="b")]
        return [*both, *map(Wait, both)]

    def other(step):
        if step == 0:
            return [work(1)]
        both = [post(step, to=0, size=2_000_000_000, channel="a"), post(step, to=0, size=2_000_000_000, channel="b")]
        return [*both, *map(Wait, both)]

    assert taken([program, other]).epoch_s == pytest.approx(4)


def test_encoding_is_beside_the_step_and_takes_a_core():
    def program(rank):
        def events(step):
            sent = post(step, to=1 - rank, size=1, encode=[work(2)], decode=[work(1)])
            return [sent, work(1), Wait(sent)]

        return events

    programs = [program(0), program(1)]
    assert taken(programs, cluster(2, cores=2)).epoch_s == pytest.approx(3)
    assert taken(programs, cluster(2, cores=1)).epoch_s == pytest.approx(4)  # one second of work delays the encoding


def test_queues_of_two_lanes_do_not_hold_one_another_up():
    def program(rank, lanes):
        def events(step):
            large = post(step, to=1 - rank, size=3_000_000_000, channel="a", decode=[work(4)], lane=0)
            small = post(step, to=1 - rank, size=1, channel="b", lane=lanes - 1)
            return [large, small, Wait(small), work(5), Wait(large)]

        return events

    one = taken([program(0, 1), program(1, 1)], cluster(2, cores=4))
    two = taken([program(0, 2), program(1, 2)], cluster(2, cores=4))
    assert one.epoch_s == pytest.approx(3 + 4 + 5)
    assert two.epoch_s == pytest.approx(3 + 4, abs=0.1)


def test_a_sum_waits_for_the_slowest_and_takes_a_ring():
    there = cluster(4, link=Link(bits_per_s=8e9, latency_s=0.5, message_s=0.0))

    def program(rank):
        return lambda step: [work(1 + rank), total := weights(step), Wait(total)]

    # six passes of a quarter of the bytes
    assert taken([program(rank) for rank in range(4)], there).epoch_s == pytest.approx(4 + 6 * (1 + 0.5))


def test_sums_go_on_under_work_one_after_the_other():
    """Two sums of 9 s each: beside 10 s of work, only the last 8 s of the second sum are waited for."""
    there = cluster(4, link=Link(bits_per_s=8e9, latency_s=0.5, message_s=0.0))

    def program(step):
        sums = [weights(step, chunk) for chunk in (0, 1)]
        return [sums[0], sums[1], work(10), *map(Wait, sums)]

    found = taken([program] * 4, there)
    assert found.epoch_s == pytest.approx(18)
    assert found.wait_s == pytest.approx(8)


def weights(step, chunk=0):
    return Sum(Key("weights", step, chunk=chunk, use="weights"), 4_000_000_000)


def test_one_rank_stands_for_all_that_are_alike():
    def program(rank, ranks):
        def events(step):
            peers = [peer for peer in range(ranks) if peer != rank]
            sent = Post(Key("halo", step, use="rows"), dict.fromkeys(peers, 10**9), dict.fromkeys(peers, 10**9), (), ())
            return [sent, work(1), Wait(sent)]

        return events

    there = cluster(2, ranks_per_machine=2, cores=2)
    every = taken([program(rank, 4) for rank in range(4)], there)
    steps = [[Step(tuple(program(0, 4)(step)), 0) for step in range(6)]]
    one = Replay(there, second, alike=True).run(steps)
    assert one.epoch_s == pytest.approx(every.epoch_s, rel=0.01)
    assert one.bytes == every.bytes


def test_scripts_that_do_not_fit_are_found():
    with pytest.raises(AssertionError, match="wait forever"):
        taken([in_step(0), lambda step: [work(1)]])


def test_steps_go_on_as_the_last_ones_did():
    steps = [Step((post(step, to=1, size=step), Wait(post(step - 1, to=1, size=step))), 0) for step in range(3)]
    more = continued(steps, 1)
    assert [step.events[0].key.step for step in more] == list(range(len(more)))
    assert [step.events[1].on.key.step for step in more] == [step - 1 for step in range(len(more))]


def test_users_of_a_thing_get_even_shares():
    timeline, ends = Timeline(), []
    shared = Shared(timeline, 1)
    shared.use(1.0, lambda: ends.append(timeline.now))
    shared.use(2.0, lambda: ends.append(timeline.now))
    timeline.at(0.5, lambda: shared.use(0.25, lambda: ends.append(timeline.now)))
    timeline.run()
    # Half speed, then a third of it: the short one is done after 3 x 0.25 s.
    assert ends == pytest.approx([1.25, 2.25, 3.25])
    assert shared.busy == pytest.approx(3.25)
