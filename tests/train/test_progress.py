"""The display of training: figures of the record, the time left, and ranks that lag."""

from types import SimpleNamespace

from fullgraph.report import EpochRecord
from fullgraph.train import progress
from fullgraph.train.progress import Progress, Ranks


class Heard:
    """A display that records its input."""

    def __init__(self, *, live):
        self.live, self.lines, self.rows, self.quiet = live, [], (), 0.0

    def phase(self, text, total=0):
        self.lines.append(text)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lines.append("end")

    def line(self, text):
        self.lines.append(text)

    def quiet_for(self):
        return self.quiet

    def progress(self, done, total, *, piece="", rows=()):
        self.rows = rows


def accuracy():
    pass


def trainer(seconds, epochs=4, epoch=0):
    config, task = SimpleNamespace(epochs=epochs), SimpleNamespace(metric=accuracy)
    return SimpleNamespace(config=config, task=task, epoch=epoch, rank_seconds=seconds)


def record(epoch, **scores):
    return EpochRecord(epoch=epoch, loss=0.5, lr=0.1, epoch_s=0.01, wait_s=0.002, bytes=12345, grad_bytes=1, **scores)


def told(display, monkeypatch, seconds, records, *, epoch=0):
    """Every epoch takes ten seconds."""
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: float(next(now)))
    monkeypatch.setattr(progress, "metric_name", lambda task: task.metric.__name__)
    watcher = Progress(display, trainer(seconds, epoch=epoch))
    for one in records:
        watcher(trainer(seconds), one)
    watcher.close()
    return display


def test_a_log_has_a_line_for_every_score_and_after_silence(monkeypatch):
    display = Heard(live=False)
    told(display, monkeypatch, [[0.01, 0.0]], [record(1), record(2, val=0.5), record(3)])
    assert display.lines == [
        "training 4 epochs",
        "epoch 2/4  loss 0.5000  val accuracy 0.5000  10.0 ms  wait 2.0 ms  12.3 kB  10 s left",
        "end",
    ]
    display = Heard(live=False)
    display.quiet = 20.0
    told(display, monkeypatch, [[0.01, 0.0]], [record(3)], epoch=2)
    assert display.lines[:2] == [
        "training epochs 3 to 4",
        "epoch 3/4  loss 0.5000  10.0 ms  wait 2.0 ms  12.3 kB  10 s left",
    ]


def test_the_table_keeps_the_last_score(monkeypatch):
    display = told(Heard(live=True), monkeypatch, [[0.01, 0.0]], [record(1, val=0.25), record(2)])
    assert display.rows == (
        ("epoch", "loss", "val accuracy", "epoch time", "waiting", "bytes", "left"),
        ("2/4", "0.5000", "0.2500", "10.0 ms", "2.0 ms", "12.3 kB", "20 s"),
    )


def test_ranks_are_shown_where_one_lags(monkeypatch):
    display = told(Heard(live=True), monkeypatch, [[0.1, 0.0], [0.1, 0.08]], [record(1)])
    assert [row[0] for row in display.rows[2:]] == ["rank 0", "rank 1"]
    assert display.rows[2][3:5] == ("100.0 ms", "0.0 ms")
    assert display.rows[2][-1] == "lags: 1.7x"
    assert display.rows[3][-1] == ""
    display = told(Heard(live=False), monkeypatch, [[0.1, 0.0], [0.1, 0.08]], [record(1, val=0.1), record(2, val=0.2)])
    assert sum("rank 0 lags: 100.0 ms of work per epoch, 1.7x the mean" in line for line in display.lines) == 1


def test_who_lags():
    ranks = Ranks()
    ranks.add([[0.1, 0.05], [0.1, 0.045]])
    assert ranks.lagging() is None
    for _ in range(20):
        ranks.add([[0.2, 0.1], [0.2, 0.0]])
    assert ranks.lagging()[0] == 1
    assert ranks.changes()[0].startswith("rank 1 lags")
    assert ranks.changes() == []
    for _ in range(40):
        ranks.add([[0.1, 0.0], [0.1, 0.0]])
    assert ranks.changes() == ["no rank lags any more"]
    ranks = Ranks()
    ranks.add([[0.004, 0.0], [0.001, 0.0]])
    assert ranks.lagging() is None  # three milliseconds need no message
    ranks = Ranks()
    ranks.add([[1.0, 0.0]])
    assert ranks.lagging() is None


def test_of_many_ranks_the_slowest_are_shown():
    ranks = Ranks()
    ranks.add([[0.1 + (rank == 50), 0.0] for rank in range(64)])
    rows = ranks.rows()
    assert len(rows) == progress.MOST_RANKS
    assert any(row[0] == "rank 50" for row in rows)
