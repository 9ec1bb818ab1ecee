"""`fullgraph watch`: the page of a run that goes on, on loopback only, read-only, and closed when the run ends."""

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fullgraph.errors import InputError
from fullgraph.lab.html import live, read_run
from fullgraph.lab.html.one import page
from fullgraph.report import MetricsLog
from fullgraph.storage import FolderLock, in_use
from tests.report.test_pages import made, record


def holder(folder):
    """A process that holds the folder's lock, as a run does."""
    code = "import sys\nfrom pathlib import Path\nfrom fullgraph.storage import FolderLock\n"
    code += "lock = FolderLock(Path(sys.argv[1]))\nprint('locked', flush=True)\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)  # fmt: skip
    assert child.stdout.readline() == "locked\n"
    return child


@pytest.fixture
def going_on(tmp_path):
    """A run's folder with three of four epochs, whose lock is held."""
    made(tmp_path / "run", [record(1), record(2, 0.5), record(3)], task="classification")
    child = holder(tmp_path / "run")
    yield tmp_path / "run", child
    child.stdin.close()
    child.wait(20)
    child.stdout.close()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="no /proc/locks")
def test_a_lock_is_seen_without_being_taken(tmp_path):
    assert not in_use(tmp_path)
    lock = FolderLock(tmp_path)
    assert in_use(tmp_path)
    lock.close()
    assert not in_use(tmp_path)


def test_a_run_that_goes_on_is_not_said_to_have_stopped(going_on):
    folder, child = going_on
    text = page(read_run(folder))
    assert "It is training now: epoch 3 of 4" in text
    assert "It stopped" not in text
    assert "Score: accuracy" in text
    assert "Score: score" not in text
    child.stdin.close()
    child.wait(20)
    assert "It stopped after epoch 3 of 4" in page(read_run(folder))


def test_the_page_that_a_stopped_run_writes_says_so(going_on):
    """The rank that writes it still holds the lock."""
    folder, _ = going_on
    assert "It stopped after epoch 3 of 4" in page(read_run(folder, read_run(folder).records))


def get(port, path, host=None, method="GET"):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        link.request(method, path, headers={"Host": host} if host else {})
        answer = link.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        link.close()


def test_it_is_watched_until_it_ends(going_on, monkeypatch):
    folder, child = going_on
    monkeypatch.setattr(live, "POLL_S", 0.1)
    monkeypatch.setattr(live.Server, "timeout", 0.1)
    monkeypatch.setattr(os, "nice", lambda more: 0)  # this process runs the other tests
    told = []
    watching = threading.Thread(target=live.watch, args=([folder],), kwargs={"told": told.append})
    watching.start()
    while not told:
        time.sleep(0.02)
    port, path = re.search(r"http://127\.0\.0\.1:(\d+)(/\S+/) ", told[0]).groups()
    status, headers, text = get(int(port), path)
    assert status == 200
    assert int(headers["Refresh"]) >= 5
    assert "It is training now: epoch 3 of 4" in text
    assert get(int(port), "/")[0] == 404
    assert get(int(port), path + "../../etc/passwd")[0] == 404
    assert get(int(port), path, host="evil.example")[0] == 404  # a name that leads to this machine
    assert get(int(port), path, method="POST")[0] == 501
    child.stdin.close()
    child.wait(20)
    while True:  # the page is made again a few seconds later at most
        status, headers, text = get(int(port), path)
        if "Refresh" not in headers:
            break
        monkeypatch.setattr(live, "REFRESH_S", 0)
        time.sleep(0.05)
    assert "It stopped after epoch 3 of 4" in text
    watching.join(20)
    assert not watching.is_alive()
    assert told[-1].endswith("report.html")


def test_it_listens_on_loopback_only(going_on, monkeypatch):
    monkeypatch.setattr(os, "nice", lambda more: 0)
    seen = []

    class Watched(live.Server):
        def __init__(self, address, handler):
            super().__init__(address, handler)
            seen.append(self.socket.getsockname()[0])
            self.shown_last = True  # serve nothing

    monkeypatch.setattr(live, "Server", Watched)
    live.watch([going_on[0]], told=lambda line: None)
    assert seen == ["127.0.0.1"]


def test_a_run_that_ended_is_not_watched(tmp_path):
    made(tmp_path / "run", [record(1)])
    with pytest.raises(InputError, match=r"not training now; `fullgraph report`"):
        live.watch([tmp_path / "run"])


def test_making_pages_takes_a_hundredth_of_a_core(going_on, monkeypatch):
    clock = iter([10.0, 10.4])  # a page takes 0.4 s
    monkeypatch.setattr(live.time, "process_time", lambda: next(clock))
    pages = live.Pages([going_on[0]])
    pages.text()
    assert pages.refresh_s == 41  # rounded up: 10.4 - 10.0 is a bit more than 0.4


def test_epochs_are_read_once(going_on, monkeypatch):
    from fullgraph.report import record as records

    read, unsealed = [], records.unsealed
    monkeypatch.setattr(records, "unsealed", lambda line, *more: read.append(line) or unsealed(line, *more))
    folder, _ = going_on
    pages = live.Pages([folder])
    pages.text()
    log = MetricsLog(folder / "metrics.jsonl", [record(1), record(2, 0.5), record(3), record(4)])
    log.close()
    assert "epoch 4 of 4" in pages.text()
    assert len(read) == 4


def test_the_page_is_made_once_for_the_same_files(going_on, monkeypatch):
    folder, _ = going_on
    pages, made_of = live.Pages([folder]), []
    monkeypatch.setattr(live, "read_run", lambda one, **more: made_of.append(one) or read_run(one, **more))
    assert pages.text() == pages.text()
    assert len(made_of) == 1
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text() + '{"epoch": 4, "lo')  # half a line
    assert "epoch 3 of 4" in pages.text()
    assert len(made_of) == 2
