"""A fast sample of every fault campaign; `make campaign` runs them in full."""

import os
import shutil

import pytest

from faults import (
    belongings,
    crashes,
    disks,
    hosts,
    kills,
    links,
    ports,
    restarts,
    signals,
    slurm,
    soak,
    stalls,
    stops,
    threads,
)
from faults.trials import Campaign, Outcome, carry_out, read, table
from tests.reliability.broken_trial import broken

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts and small disks need root")
NEEDS_STRACE = pytest.mark.skipif(not shutil.which("strace"), reason="crash points need strace")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.mark.parametrize("number", [2, 6])
def test_kills(number, shared):
    assert kills.trial(number, shared).startswith("killed")


@pytest.mark.cold  # ranks of forked commands are in another process group
@pytest.mark.parametrize("number", [1, 2, 3])
def test_signals(number, shared):
    """To a rank, to the group, and by closing a terminal; tests/reliability/test_endings.py tests the launcher."""
    assert signals.trial(number, shared).startswith(signals.TARGETS[number])


@pytest.mark.timeout(300)
def test_stalls(shared, monkeypatch):
    monkeypatch.setattr(stalls, "BUSY", 6)
    assert stalls.trial(1, shared, runs=2) == "2 finished and identical"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["threads", "asyncio"])
def test_threads(how, shared, monkeypatch):
    monkeypatch.setattr(threads, "LIMIT_S", 250.0)
    assert threads.run(how, shared, 8) == f"8 trained from {how}"


@NEEDS_STRACE
@pytest.mark.parametrize("number", [2, 5])
def test_crashes(number, shared):
    assert crashes.trial(number, shared)


@NEEDS_ROOT
@pytest.mark.parametrize("number", [1, 2])
def test_disks(number, shared):
    assert disks.trial(number, shared)


@NEEDS_ROOT
@pytest.mark.parametrize("number", [52, 37])
def test_links(number, shared):
    """A link that is cut, and one that fails in one direction, between two hosts, after epochs 4 and 6 of 60."""
    assert links.trial(number, shared) in ("cut: both stopped", "one way: both stopped")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["rates", "resumes", "code", "apart"])
def test_hosts_that_differ_are_refused_in_words(kind, tmp_path):
    assert hosts.refused(kind, tmp_path) == "refused"


@pytest.mark.cold
@pytest.mark.timeout(300)
def test_ranks_that_torchrun_starts_again_meet_again(tmp_path):
    assert hosts.started_again(1, tmp_path) == "met again"


@pytest.mark.cold
@pytest.mark.timeout(240)
def test_ranks_that_torchrun_starts_again_take_no_other_run(tmp_path):
    assert hosts.another_run(tmp_path) == "another run stayed"


@pytest.mark.timeout(300)
def test_soak(shared, monkeypatch):
    monkeypatch.setattr(soak, "WARM", 200)
    monkeypatch.setattr(soak, "EPOCHS", 700)
    monkeypatch.setattr(soak, "MORE", 50)
    assert soak.trial(2, shared) == "flat"


def test_a_campaign_goes_on_where_it_stopped(tmp_path):
    campaign = Campaign(broken, 6, "promise", jobs=1)
    carry_out("c", campaign, range(2), tmp_path / "r.jsonl", tmp_path)
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"campaign": "c", "num')  # killed while writing
    outcomes = carry_out("c", campaign, range(6), tmp_path / "r.jsonl", tmp_path)
    assert [outcome.good for outcome in outcomes] == [True, True, True, False, True, True]
    assert "three is too many" in outcomes[3].text
    assert (tmp_path / "broken.txt").read_text().startswith("=== c 3\nbroken: three is too many")
    assert isinstance(read(tmp_path / "r.jsonl")[0], Outcome)
    assert "| c | promise | 6 | 1 | 3 even, 2 odd |" in table({"c": outcomes}, {"c": "promise"})


def test_every_campaign_says_what_it_promises():
    modules = (
        belongings, crashes, disks, hosts, kills, links, ports, restarts, signals, slurm, soak, stalls, stops, threads,
    )  # fmt: skip
    for module in modules:
        assert module.CAMPAIGN.promise
        assert module.CAMPAIGN.trials > 0
