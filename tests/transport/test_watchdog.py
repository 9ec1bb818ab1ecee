"""The watchdog: the judge's verdicts beat by beat, and real processes that are stopped, slow or cut off."""

import threading
import time
from dataclasses import replace

import pytest
import torch

from fullgraph.testing import run_processes
from fullgraph.transport import Key, PeerLost
from fullgraph.transport.watchdog import FolderBoard, Heartbeat, LivenessJudge, Watchdog

WORKS, WAITS = Heartbeat(host="h", pid=7), Heartbeat(host="h", pid=7, waiting=True, doing="halo/layer1")


def judged(beats, *, limit=5, patience=100, contact=lambda beat: beat, is_working=lambda sign: None):
    """The first verdict of rank 0 among three, and its beat; beats(beat, rank) is a rank's heartbeat."""
    judge = LivenessJudge(0, 3, limit, patience, is_working)
    for beat in range(200):
        signs = {rank: sign for rank in (1, 2) if (sign := beats(beat, rank)) is not None}
        verdict = judge.tick(signs, contact(beat))
        if verdict:
            return beat, verdict
    return None


def test_a_silent_rank_is_dead():
    beat, verdict = judged(lambda beat, rank: replace(WORKS, beat=beat if rank == 1 else min(beat, 10)))
    assert beat == 15
    assert verdict == "rank 2 on h (pid 7) gives no sign of life (last: starting)"


def test_a_rank_that_never_began_is_dead():
    assert judged(lambda beat, rank: replace(WORKS, beat=beat) if rank == 1 else None) == (
        4, "rank 2 gives no sign of life (last: nothing, it never began)",
    )  # fmt: skip


def test_a_rank_at_work_is_only_slow_until_patience_ends():
    assert judged(lambda beat, rank: replace(WORKS, beat=beat)) == (
        99, "rank 1 on h (pid 7) has been at work too long; rank 2 on h (pid 7) has been at work too long",
    )  # fmt: skip


def test_one_rank_at_work_excuses_all():
    assert judged(lambda beat, rank: replace(WORKS if rank == 1 else WAITS, beat=beat))[0] == 99


def test_a_rank_that_said_so_may_be_silent():
    assert judged(lambda beat, rank: replace(WORKS, beat=beat) if rank == 1 else replace(WORKS, away=True))[0] == 99


def test_a_rank_that_said_so_and_was_stopped_is_dead():
    """The kernel sees that it does nothing; a rank on another machine would be waited for."""
    away = lambda beat, rank: replace(WORKS, beat=beat) if rank == 1 else replace(WORKS, away=True)  # noqa: E731
    assert judged(away, is_working=lambda sign: True)[0] == 99
    beat, verdict = judged(away, is_working=lambda sign: False)
    assert beat == 5
    assert verdict == "rank 2 on h (pid 7) gives no sign of life (last: starting)"


def test_ranks_that_all_wait_have_lost_messages():
    beat, verdict = judged(lambda beat, rank: replace(WAITS, beat=beat))
    assert beat == 5
    assert verdict.startswith("messages are lost, the link between them is down or broken: rank 1 on h (pid 7) waits")


def test_ranks_that_wait_now_and_then_still_move():
    assert judged(lambda beat, rank: replace(WAITS, beat=beat, moves=beat // 4)) is None


def test_old_signs_condemn_nobody_but_oneself():
    beat, verdict = judged(lambda beat, rank: replace(WORKS, beat=min(beat, 10)), contact=lambda beat: min(beat, 10))
    assert beat == 15
    assert verdict == "rank 0 has lost touch with all others: its network is down"


def test_of_many_ranks_a_few_are_named():
    judge = LivenessJudge(0, 500, 3, 100)
    while not (verdict := judge.tick({}, judge.waited)):
        pass
    assert verdict.count("gives no sign of life") == 4
    assert verdict.endswith("; and 495 more")


class SlowBoard(FolderBoard):
    """A folder of which a call takes longer than the timeout, as on a machine with many more ranks than cores."""

    def read(self):
        time.sleep(1.5)
        return super().read()


def test_a_busy_machine_is_no_broken_network(tmp_path):
    """The other rank posts; this one's own thread is slow to read."""
    mine, other = (
        Watchdog(SlowBoard(tmp_path, 2), 0, 2, timeout=1.0),
        Watchdog(FolderBoard(tmp_path, 2), 1, 2, timeout=1.0),
    )
    end = time.monotonic() + 4
    mine.wait(lambda seconds: time.sleep(seconds) or time.monotonic() > end, "halo from rank 1")
    mine.close()
    other.close()


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    mine = Watchdog(FolderBoard(tmp_path / "boards", 1), 0, 1, timeout=1.0)
    with pytest.raises(PeerLost, match="its folder of heartbeats cannot be used: look for a full disk"):
        mine.wait(lambda seconds: time.sleep(seconds), "halo")
    mine.close()


def test_a_rank_that_the_kernel_sees_at_work_is_only_slow():
    """Its heartbeats stop at beat 10, as on a machine where the thread that posts them gets no core."""
    starved = lambda beat, rank: replace(WAITS if rank == 1 else WORKS, beat=min(beat, 10))  # noqa: E731
    assert judged(starved)[0] == 15
    assert judged(starved, is_working=lambda sign: True)[0] == 99
    stopped = judged(starved, is_working=lambda sign: not sign.waiting)
    assert stopped == (15, "rank 1 on h (pid 7) gives no sign of life (last: halo/layer1)")


def test_a_short_silence_is_forgiven():
    assert judged(lambda beat, rank: replace(WORKS, beat=beat - beat % 4))[0] >= 99


@pytest.fixture
def watch(tmp_path):
    watches = [Watchdog(FolderBoard(tmp_path, 2), rank, 2, timeout=2.0) for rank in range(2)]
    yield watches[0], watches[1]
    for one in watches:
        one.close()


def test_a_silent_peer_is_named_in_time(watch):
    mine, other = watch
    time.sleep(0.5)
    other.close()
    start = time.monotonic()
    with pytest.raises(PeerLost, match=r"rank 0 on \S+ waited \d s for halo from rank 1; rank 1 on .*no sign of life"):
        mine.wait(lambda seconds: time.sleep(seconds), "halo from rank 1")
    assert time.monotonic() - start < 3


def test_a_slow_peer_is_waited_for(watch, capsys):
    over = threading.Event()
    threading.Timer(4.0, over.set).start()
    watch[0].wait(over.wait, "halo from rank 1")
    assert "rank 1 is slow: rank 0" in capsys.readouterr().err


def test_two_that_wait_for_one_another_stop(watch):
    seen = []

    def wait(one):
        with pytest.raises(PeerLost, match="messages are lost") as caught:
            one.wait(lambda seconds: time.sleep(seconds), "halo")
        seen.append(str(caught.value))

    threads = [threading.Thread(target=wait, args=(one,)) for one in watch]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(seen) == 2
    assert time.monotonic() - start < 4


def starved(transport):
    """Rank 1's heartbeats stop, and it computes on for twice the timeout."""
    if transport.rank == 1:
        transport.inner.watch.close()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            pass
    return transport.all_reduce(Key("weights", 3), torch.ones(1)).wait()


def test_a_rank_that_computes_is_not_dead_however_long_its_signs_have_not_come():
    assert [float(total) for total in run_processes(2, starved, silence=2.0)] == [2.0, 2.0]


def test_one_whose_own_thread_gets_no_core_has_lost_nobody(tmp_path):
    """Between beats, and not in a call to the board: its heartbeats are old, and say nothing about the network."""
    watches = [Watchdog(FolderBoard(tmp_path, 2), rank, 2, timeout=2.0) for rank in range(2)]
    pulse, over = watches[0], threading.Event()
    pulse._over.wait = lambda seconds: time.sleep(6) or pulse._over.is_set()  # its next beat comes late
    time.sleep(0.5)
    threading.Timer(4.5, over.set).start()
    pulse.wait(over.wait, "halo from rank 1")
    for watch in watches:
        watch.close()


def late(transport):
    if transport.rank == 1:
        with transport.away("in METIS"):
            time.sleep(4)
    return transport.all_reduce(Key("weights", 3), torch.ones(1)).wait()


def test_a_rank_at_work_for_longer_than_the_timeout_is_waited_for():
    assert [float(total) for total in run_processes(2, late, silence=2.0)] == [2.0, 2.0]
