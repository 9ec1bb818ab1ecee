"""The display: another process draws it, even while a library holds the interpreter, and no process waits for it."""

import json
import os
import sys
import time

import pytest

from fullgraph.display import Display, Shown, painter, shown
from fullgraph.words import duration, milliseconds, size
from tests.display.screen import Screen, watch


@pytest.fixture
def written(monkeypatch):
    """The output of a painter in this process."""
    found = []
    monkeypatch.setattr(painter, "write", found.append)
    return found


def state(**changed):
    return json.loads(json.dumps(Shown(**changed).__dict__))


# The painter.


def test_a_log_gets_a_line_after_ten_quiet_seconds_and_no_more(written):
    lines = painter.Lines()
    lines.update(state(doing="cutting", since=100.0, said=100.0))
    for now in range(100, 131):
        lines.draw(float(now))
    assert written == ["cutting: 10 s\n", "cutting: 20 s\n", "cutting: 30 s\n"]
    lines.update(state(doing="writing", since=131.0, said=131.0, done=3, total=4))
    lines.draw(140.0)
    assert len(written) == 3
    lines.draw(141.0)
    assert written[3] == "writing: 75%, 10 s\n"
    lines.update(state(said=141.0))
    lines.draw(1000.0)
    assert len(written) == 4  # nothing is going on


def test_a_region_is_drawn_over_itself_and_lines_stay_above(written, monkeypatch):
    live = painter.Live(painter.SIGNS["ascii"])
    rows = (("epoch", "loss"), ("1/4", "0.5"))
    live.update(state(doing="training", since=0.0, done=1, total=4, rows=rows))
    for now in (0.0, 0.2, 0.4):
        live.draw(now)
    seen = Screen().feed("".join(written).replace("\n", "\r\n"))
    assert seen.lines == [" epoch  loss", "   1/4   0.5", " ######------------------  25%  training  0 s"]
    assert (seen.row, seen.column) == (0, 0)  # what others print begins here
    seen.feed("\r\x1b[Ja note\r\n")
    written.clear()
    live.update(state(doing="training", since=0.0, done=2, total=4, rows=rows, lines=("half",)))
    live.draw(0.6)
    seen.feed("".join(written).replace("\n", "\r\n"))
    assert seen.lines[:3] == ["a note", "half", " epoch  loss"]
    written.clear()
    live.close()
    seen.feed("".join(written).replace("\n", "\r\n"))
    assert seen.lines == ["a note", "half", " epoch  loss", "   1/4   0.5", ""]


def test_a_phase_without_an_end_shows_its_seconds(written):
    live = painter.Live(painter.SIGNS["live"])
    live.update(state(doing="cutting", since=10.0))
    live.draw(75.0)
    assert "cutting  1 min 05 s" in written[-1]


def test_ctrl_c_is_seen_at_once(written, monkeypatch):
    """The working process may notice it much later."""
    monkeypatch.setattr(painter, "ASKED", [True])
    live = painter.Live(painter.SIGNS["live"])
    live.update(state(doing="cutting", since=10.0))
    live.draw(11.0)
    assert "cutting  1 s  stopping soon" in written[-1]


def test_a_region_is_no_wider_and_no_higher_than_the_terminal(written, monkeypatch):
    monkeypatch.setattr(painter.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((20, 3)))
    live = painter.Live(painter.SIGNS["live"])
    live.update(state(doing="x" * 50, rows=[["y" * 50]] * 9))
    live.draw(0.0)
    lines = Screen().feed(written[-1].replace("\n", "\r\n")).lines
    assert len(lines) == 2
    assert max(map(len, lines)) < 20


# The working process.


def test_a_log_has_a_line_for_every_phase_and_none_for_one_inside(capfd):
    with Display("lines") as display:
        with display.phase("one"), display.phase("inside"):
            pass
        with display.phase("two"):
            display.line("between")
        with display.phase(""):
            pass
    assert capfd.readouterr().out == "one\ntwo\nbetween\n"


def test_a_silent_display_says_nothing_and_starts_nothing(capfd):
    with Display() as display:
        with display.phase("one", at_once=True) as told:
            told(1, 2)
        display.line("word")
        assert display._painter is None
    assert capfd.readouterr().out == ""


def test_only_rank_0_is_heard(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert shown().mode == "silent"
    monkeypatch.setenv("RANK", "0")
    assert shown().mode == "lines"


def test_a_painter_that_does_not_read_holds_nobody_up():
    """Its pipe fills; further updates are lost."""
    with Display("live") as display, display.phase("working"):
        display._painter.send_signal(19)  # SIGSTOP
        try:
            start = time.perf_counter()
            for number in range(3000):
                display._send(Shown(doing="working", done=number, rows=(("x" * 60,) * 10,)))
            assert time.perf_counter() - start < 5
        finally:
            display._painter.send_signal(18)


def test_a_painter_that_is_gone_is_not_missed(capfd):
    with Display("live") as display, display.phase("working") as told:
        display._painter.kill()
        display._painter.wait()
        told(1, 2)
        display.line("still here")
    assert "still here" in capfd.readouterr().out


def test_without_processes_there_are_still_lines(monkeypatch, capfd):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Display("lines") as display, display.phase("working", at_once=True) as told:
        told(1, 2)
    assert capfd.readouterr().out == "working\n"


def test_most_calls_cost_next_to_nothing():
    """A table for every epoch takes about 20 microseconds on an idle machine."""
    with Display("live") as display, display.phase("training", 1000):
        rows = (("epoch", "loss"), ("1", "2"))
        start = time.perf_counter()
        for number in range(2000):
            display.progress(number, 2000, rows=rows)
        assert (time.perf_counter() - start) / 2000 < 2e-3


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.6, "1 min 00 s"), (7800, "2 h 10 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_figures():
    assert (size(999), size(1234567), size(999_900)) == ("999 B", "1.23 MB", "1 MB")
    assert (milliseconds(0.0123), milliseconds(4.5)) == ("12.3 ms", "4.50 s")


# Whole commands.

HOLD = """
import ctypes
from dataclasses import dataclass
from fullgraph.partition.simple import Contiguous

@dataclass(frozen=True)
class Hold:
    seconds: int = 18

    def assign(self, graph, parts, *, seed):
        ctypes.PyDLL(None).sleep(self.seconds)  # as METIS does: no thread of this process runs meanwhile
        return Contiguous().assign(graph, parts, seed=seed)
"""
LARGE = "sbm:nodes=20000,edges=300000,features=4"
SMALL = ("--hidden", 4, "--threads", 1, "--out", "run")


@pytest.mark.parametrize("terminal", ["", "dumb"])
def test_a_log_is_never_silent_for_more_than_ten_seconds(tmp_path, terminal):
    """In a pipe, and on a terminal that cannot draw; while a library holds the interpreter."""
    (tmp_path / "hold.py").write_text(HOLD)
    command = ["train", LARGE, "--parts", 2, "--epochs", 2, "--partitioner", "hold.py:Hold", *SMALL]
    seen = watch(command, tmp_path, terminal=terminal)
    assert seen.code == 0, seen.text
    assert "\x1b" not in seen.text
    lines = seen.text.replace("\r", "").splitlines()
    begun = ["starting", "reading", "cutting", "writing", "starting 2 ranks", "placing", "training", "predicting"]
    places = [next(number for number, line in enumerate(lines) if line.startswith(word)) for word in begun[:4]]
    assert places == sorted(places)
    assert all(any(line.startswith(word) for line in lines) for word in begun)
    assert sum("with hold.py:Hold:" in line for line in lines) == 1
    assert seen.longest_silence < 15  # ten seconds, plus delays of a busy machine
    assert seen.pieces[0][0] < 15  # the first word


def test_a_terminal_shows_a_table_that_is_drawn_over(tmp_path):
    seen = watch(["train", "demo", "--parts", 2, "--epochs", 40, *SMALL], tmp_path, terminal="xterm")
    assert seen.code == 0, seen.text
    for word in ("epoch", "loss", "val accuracy", "epoch time", "waiting", "bytes", "left", "training 40 epochs"):
        assert word in seen.text
    lines = [line.rstrip() for line in Screen().feed(seen.text).lines if line.strip()]
    assert sum(line.split()[:2] == ["epoch", "loss"] for line in lines) == 1  # one table, however often it was drawn
    assert any(line.split()[0] == "40/40" for line in lines)
    assert "run folder: run" in lines
    assert not any("━" in line or "⠋" in line for line in lines)  # no bar is left
    assert any("fullgraph predict run" in line for line in lines)


def test_ctrl_c_says_what_was_kept_and_how_to_go_on(tmp_path):
    command = ["train", "demo", "--parts", 2, "--epochs", 100000, *SMALL]
    seen = watch(command, tmp_path, terminal="xterm", after="val accuracy", typed="\x03")
    assert seen.code == 130, seen.text
    lines = [line for line in Screen().feed(seen.text).lines if line.startswith("fullgraph: error")]
    assert len(lines) == 1
    assert "interrupted by SIGINT: a checkpoint of epoch" in lines[0]
    assert lines[0].endswith("to go on: fullgraph train --resume run")


def test_ctrl_c_before_training_leaves_nothing(tmp_path):
    (tmp_path / "hold.py").write_text(HOLD)
    options = ["--partitioner", "hold.py:Hold", "-p", "seconds=6"]
    command = ["train", LARGE, "--parts", 2, *options, *SMALL]
    seen = watch(command, tmp_path, terminal="xterm", after="with hold.py", typed="\x03")
    assert seen.code == 130, seen.text
    assert "nothing was kept" in seen.text
    assert not (tmp_path / "run").exists()
