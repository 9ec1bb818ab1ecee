"""Pages as text: complete, escaped, without requests; and their content equals the run's files."""

import json
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fullgraph as fg
from fullgraph.errors import InputError
from fullgraph.lab.html import read_run, write_report
from fullgraph.lab.html.charts import Line, lines
from fullgraph.lab.html.document import SCRIPT_HASH, Safe, tag
from fullgraph.lab.html.many import front, page, worth_of
from fullgraph.lab.html.numbers import log_ticks, percent, seconds, thinned, ticks
from fullgraph.partition import cut_parts
from fullgraph.report import EpochRecord, MetricsLog, read_metrics
from fullgraph.report.terminal import tolerated
from fullgraph.train.config import TrainConfig
from fullgraph.train.profiler import Profiler
from fullgraph.train.tracing import Tracer
from fullgraph.transport import SingleRank
from fullgraph.words import size
from tests.support import random_graph
from tests.support.bodies import trainer_of
from tests.support.cases import CASES

LIMIT = 5_000_000  # bytes of a page


class Page(HTMLParser):
    """Elements, attributes and words of a page; every element is closed where it should be."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes
        if name not in ("meta", "br"):
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, text):
        self.words.append(text)


def fullgraph(*words, cwd):
    command = [sys.executable, "-m", "fullgraph", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=110)


def test_every_text_is_escaped():
    assert tag("p", "<b>&", Safe("<i></i>"), class_='"x"') == '<p class="&quot;x&quot;">&lt;b&gt;&amp;<i></i></p>'
    assert tag("input", disabled=True, value=None, tabindex=0) == '<input disabled tabindex="0"></input>'


def test_a_run_has_its_page_when_it_ends(runs, evil):
    for folder in runs.values():
        text = (folder / "report.html").read_text()
        page = Page(text)
        assert len(text) < LIMIT
        assert not {"img", "link", "iframe", "object", "b"} & set(page.tags)
        assert page.tags.count("script") == 1
        assert f"script-src 'sha256-{SCRIPT_HASH}'" in dict(page.attributes)["content"] + "".join(
            value for name, value in page.attributes if name == "content"
        )
        outside = [value for name, value in page.attributes if name in ("href", "src", "xlink:href", "action")]
        assert all(value.startswith(("#", "data:text/csv;")) for value in outside)
        assert "url(" not in text
        assert evil in "".join(page.words)
        assert str(folder) in "".join(page.words)


def test_its_numbers_are_those_of_the_run(runs):
    folder = runs["sylvie-a"]
    result = json.loads((folder / "result.json").read_text())
    words = "".join(Page((folder / "report.html").read_text()).words)
    assert f"{result['test']:.4f}" in words
    assert size(result["bytes_per_epoch"]) in words
    assert size(result["grad_bytes_per_epoch"]) in words
    assert size(result["bytes_per_epoch"] + result["grad_bytes_per_epoch"]) in words
    for version in result["versions"].values():
        assert version in words
    assert "halo/layer1 forward" in words
    assert "halo/layer2 backward" in words


def test_the_command_on_the_page_does_the_same_again(runs):
    folder = runs["sylvie-a"]
    words = shlex.split(read_run(folder).command)
    assert words[0] == "fullgraph"
    done = fullgraph(*words[1:], cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    again = Path(words[words.index("--out") + 1])
    losses = [[record.loss for record in read_metrics(f / "metrics.jsonl")] for f in (folder, again)]
    assert losses[0] == losses[1]


@pytest.mark.cold
def test_several_runs_from_the_command_line(runs, tmp_path):
    done = fullgraph("report", *runs.values(), "--out", tmp_path / "many.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "many.html").read_text()
    page = Page(text)
    charts = [value for name, value in page.attributes if name == "role" and value == "img"]
    assert len(charts) == 8  # two of them show scores against costs
    assert len(text) < LIMIT
    words = "".join(page.words)
    assert all(strategy in words for strategy in runs)
    (tmp_path / "one.html").write_text((tmp_path / "many.html").read_text())
    assert fullgraph("report", runs["vanilla"], "--out", "one.html", cwd=tmp_path).returncode == 0
    assert (tmp_path / "one.html").read_text() == (runs["vanilla"] / "report.html").read_text()


def test_what_is_no_run_is_one_line(tmp_path):
    done = fullgraph("report", tmp_path / "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "name the folder of a run" in done.stderr


def test_a_damaged_profile_is_refused_by_name(runs, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "metrics.jsonl", "result.json", "profile.json"):
        (copy / name).write_bytes((runs["vanilla"] / name).read_bytes())
    write_report(copy)
    (copy / "profile.json").write_text((copy / "profile.json").read_text().replace('"nodes"', '"knots"', 1))
    with pytest.raises(InputError, match=r"profile\.json is damaged"):
        write_report(copy)
    (copy / "profile.json").unlink()
    words = "".join(Page(write_report(copy).read_text()).words)
    assert "Did it learn?" in words
    assert "The cut" not in words


def test_a_run_that_is_not_finished_has_a_page(tmp_path):
    """The state after a signal ended the run: no result, a record, a profile."""
    run = fg.train(random_graph(), epochs=6, eval_every=2, parts=2, out=tmp_path / "run")
    (run.folder / "result.json").unlink()
    words = "".join(Page(write_report(run.folder).read_text()).words)
    assert "not finished" in words
    assert f"fullgraph train --resume {run.folder}" in words
    assert "Where the time went" in words


def test_an_interrupted_run_leaves_its_page(tmp_path):
    command = [sys.executable, "-m", "fullgraph", "train", "sbm:nodes=300", "--parts", "2", "--epochs", "1000000",
               "--eval-every", "5", "--out", str(tmp_path / "run")]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        while "epoch 10/" not in child.stdout.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        child.stdout.read()
        said = child.stderr.read()
        assert child.wait(60) == 128 + signal.SIGINT, said
    words = "".join(Page((tmp_path / "run" / "report.html").read_text()).words)
    assert "not finished" in words
    assert "Where the time went" in words


def test_what_cannot_be_written_costs_no_run(tmp_path, capsys):
    """There is a folder in place of each of the files."""
    for name in ("report.html", "profile.json", "trace.json"):
        (tmp_path / name / "in the way").mkdir(parents=True)
    config = TrainConfig(epochs=2, trace=True, trace_skip=0, trace_epochs=1)
    trainer = trainer_of(SingleRank(), CASES["undirected"], fg.nn.GCN(layers=2, hidden=4), config)
    looks = [Profiler(trainer, cut_parts(*CASES["undirected"](1), 0), tmp_path), Tracer(trainer, tmp_path)]
    assert trainer.fit(looks)
    for look in looks:
        look.finish()
    with tolerated(tmp_path / "report.html"):
        write_report(tmp_path)
    said = capsys.readouterr().err.splitlines()
    assert [name for line in said for name in ("report.html", "profile.json", "trace.json") if name in line] == [
        "trace.json", "profile.json", "report.html",
    ]  # fmt: skip


def test_one_rank_has_a_page(tmp_path):
    run = fg.train(random_graph(), epochs=3, eval_every=1, out=tmp_path / "run")
    words = "".join(Page((run.folder / "report.html").read_text()).words)
    assert "Nothing crosses between ranks in an epoch." in words


def record(epoch, val=None, epoch_s=1.0, nbytes=10):
    return EpochRecord(
        epoch=epoch, loss=1 / epoch, lr=0.1, epoch_s=epoch_s, wait_s=0.1, bytes=nbytes, grad_bytes=1, val=val
    )


def made(folder, records, strategy="vanilla", graph="g", **loop):
    """A run's folder, written without a run."""
    from fullgraph.storage import write_document

    folder.mkdir()
    loop = {"epochs": 4, "lr": 0.1, **loop}
    tree = {"graph": graph, "parts": 2, "strategy": {"name": strategy}, "model": {"name": "sage"}, "train": loop}
    write_document(folder / "config.json", tree)
    log = MetricsLog(folder / "metrics.jsonl", records)
    log.close()
    return read_run(folder)


def test_the_front_is_of_runs_that_no_other_one_beats(tmp_path):
    made_of = {
        "good and slow": (0.9, 2.0, 10),
        "poor and fast": (0.8, 1.0, 10),
        "good, slow, few bytes": (0.9, 2.0, 5),  # beats the first
        "worse than all": (0.7, 3.0, 20),
    }
    runs = [
        made(tmp_path / name, [record(1, None, s, b), record(2, val, s, b)], lr=number)
        for number, (name, (val, s, b)) in enumerate(made_of.items())
    ]
    unscored = made(tmp_path / "no score", [record(1)], lr=9)
    assert front([worth_of(run) for run in [*runs, unscored]]) == [False, True, True, False, False]
    text = page([*runs, unscored])
    assert text.count('class="best"') == 2


def test_a_long_run_has_a_small_page(tmp_path):
    records = [record(epoch, 0.5 if epoch % 10 == 0 else None) for epoch in range(1, 5001)]
    run = replace(made(tmp_path / "long", [record(1)]), records=records)
    assert write_report(run.folder, records=records).stat().st_size < 300_000
    assert len(page([run] * 5)) < 1_000_000


def test_more_runs_than_can_be_told_apart(tmp_path):
    run = made(tmp_path / "one", [record(1)])
    with pytest.raises(InputError, match="name at most 24"):
        page([run] * 25)


def test_ticks_are_round_and_inside():
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(3, 3) == [3]
    for low, high in ((0.013, 0.0171), (-5, 320), (1e6, 1.1e6)):
        found = ticks(low, high)
        assert 3 <= len(found) <= 11
        assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)
    assert log_ticks(3, 200) == [5, 10, 20, 50, 100, 200]
    assert log_ticks(1, 1e6) == [1, 10, 100, 1000, 1e4, 1e5, 1e6]


def test_numbers_read_well():
    said = [seconds(v) for v in (0, 2e-6, 0.0123, 4.56, 1234)]
    assert said == ["0 s", "2 \N{MICRO SIGN}s", "12.3 ms", "4.56 s", "1,234 s"]
    assert [size(v) for v in (0, 999, 6.14e6, 3e12)] == ["0 B", "999 B", "6.14 MB", "3 TB"]
    assert [percent(v) for v in (0, 0.004, 0.82, 1)] == ["0 %", "0.4 %", "82 %", "100 %"]
    assert thinned([(i, i) for i in range(100)], 3) == [(0, 0), (50, 50), (99, 99)]


def test_a_name_in_csv_is_no_formula():
    chart = lines([Line("=HYPERLINK(1)", [(1.0, -2.0)], 0)], title="t", x="x", y="y")
    assert chart.csv.splitlines() == ["series,x,y", "'=HYPERLINK(1),1,-2"]


def test_a_curve_of_one_point_is_drawn():
    text = lines([Line("one", [(1.0, 0.0)], 0)], title="t", x="x", y="y", log_x=True)
    assert "nan" not in text.lower().replace("nano", "")
    places = [float(value) for value in re.findall(r'c[xy]="([^"]+)"', text)]
    assert all(0 <= place <= 480 for place in places)
