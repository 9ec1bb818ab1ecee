"""Codecs of one's own that remember, or ask facts of rows."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fullgraph as fg
from fullgraph.codec import Full, LowBit, Memory
from fullgraph.errors import InputError
from fullgraph.exchange import Wire
from fullgraph.recipes import STRATEGIES
from fullgraph.reference import load
from fullgraph.testing import assert_size_law, run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Key
from tests.support import (
    CASES,
    assert_same,
    coded,
    dense_trace,
    differing,
    random_graph,
    resumed_epochs,
    stale_trace,
    train_trace,
)

DIFFERENCE = f"{Path(__file__).resolve().parents[2] / 'docs' / 'extending' / 'difference.py'}:Difference"
SAGE = fg.nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True)
CASE, STEPS = CASES["directed"], 6


class Remembered:
    """The equation, for one reader of every message: x'_t = x'_{t-1} + Q(x_t - x'_{t-1})."""

    def __init__(self, bits):
        self.step, self.last = LowBit(bits), {}

    def encode(self, x, key):
        return self.step.encode(x - self.last.get((key.channel, key.way, key.ends), 0), key)

    def decode(self, wire, shape, dtype, key):
        name = key.channel, key.way, key.ends
        self.last[name] = self.step.decode(wire, shape, dtype, key) + self.last.get(name, 0)
        return self.last[name]


def strategy(**options):
    return STRATEGIES.make("free", codec=DIFFERENCE, bits="2", **options)


def body(transport, options):
    return train_trace(transport, CASE, SAGE, STEPS, strategy=strategy(**options))


def oracle(ranks, lag=0):
    graph, assignment = CASE(ranks)
    part = torch.from_numpy(assignment.part.copy())
    cross = coded(graph, part, Remembered(2), Remembered(2))
    if not lag:
        return dense_trace(graph, SAGE, STEPS, part=part, seen=cross)
    read = lambda step: step - lag if step >= lag else None  # noqa: E731
    return stale_trace(graph, part, SAGE, read, STEPS, narrow_first=False, cross=cross)


@pytest.mark.parametrize("options", [{"schedule": "sync"}, {"lag": 1}, {"lag": 2}], ids=str)
def test_a_codec_that_remembers_equals_its_equation(options):
    assert_same(run_threads(3, body, options), *oracle(3, options.get("lag", 0)))


@pytest.mark.parametrize("options", [{"schedule": "sync"}, {"lag": 1}], ids=str)
def test_it_equals_its_equation_in_processes(options):
    assert_same(run_processes(2, body, options), *oracle(2, options.get("lag", 0)))


def test_without_memory_it_is_a_codec():
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    kind = load(DIFFERENCE)
    torch.testing.assert_close(
        assert_size_law(kind(bits=2), x, Key("law", 0)), assert_size_law(LowBit(2), x, Key("law", 0))
    )


@pytest.mark.parametrize(
    "options", [{}, {"share": 0.6, "turns": 2, "feedback": True}, {"bound": 1.0, "schedule": "sync"}], ids=str
)
def test_a_run_resumed_is_the_same_run(options):
    """Rows that were drawn out, or not sent, stay in the memory as they were."""
    config = TrainConfig(epochs=4, checkpoint_every=1, lr=0.01, seed=3)
    run = config, strategy(**options).wires(epochs=4, layers=3)
    for (losses, saved), *others in run_threads(2, resumed_epochs, CASE, SAGE, *run):
        assert any(".last." in name for name in saved[-1][0])
        for start, (again, kept) in enumerate(others):
            assert again == losses[start:]
            assert differing(kept[-1], saved[-1]) == []


# --- facts of rows


@dataclass(frozen=True)
class Telling(Full):
    """Sends the facts of rows beside the rows; the reader compares them with its own."""

    graded = True

    def for_channel(self, facts):
        return Told(facts)


class Told(Memory):
    def __init__(self, facts):
        self.facts = {"ids": facts.ids, "grades": facts.grades, "squares": facts.squares}

    def codec(self, message):
        return Beside({name: known and known[message.side][message.peer] for name, known in self.facts.items()})


@dataclass(frozen=True)
class Beside:
    facts: dict

    def told(self):
        return torch.cat(
            [known.contiguous().view(-1).view(torch.uint8) for known in self.facts.values() if known is not None]
        )

    def encode(self, x, key):
        assert len(self.facts["ids"]) == len(x)
        assert (self.facts["squares"] is None) == (key.way == "backward")
        return torch.cat([Full().encode(x, key), self.told()])

    def decode(self, wire, shape, dtype, key):
        split = Full().nbytes(shape, dtype, key)
        assert torch.equal(wire[split:], self.told())
        return Full().decode(wire[:split].clone(), shape, dtype, key)

    def nbytes(self, shape, dtype, key):
        return Full().nbytes(shape, dtype, key) + len(self.told())


@pytest.mark.parametrize("ranks", [2, 3])
def test_both_ends_know_the_same_facts(ranks):
    want = run_threads(ranks, train_trace, CASE, SAGE, 3, Wire())
    got = run_threads(ranks, train_trace, CASE, SAGE, 3, Wire(codec=Telling()))
    assert_same(got, want[0]["losses"], want[0]["grads"])


# --- from the shell, and what is wrong


WRONG = {
    "return 3": "Wrong.for_channel returned a int: return a fullgraph.codec.Memory",
    "return {}['x']": "KeyError: 'x'",
    "return Bad()": "NotImplementedError",
    "return Late()": "ZeroDivisionError",
    "return Elsewhere()": "Elsewhere keeps 'latest', but its tables are none: add it there",
}


@pytest.mark.parametrize("body", WRONG)
def test_what_is_wrong_is_the_users_own(body, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text(f"""
from dataclasses import dataclass
from fullgraph.codec import LowBit, Memory

class Bad(Memory):
    pass

class Late(Bad):
    def codec(self, message):
        return LowBit(2)

    def note(self, message, wire):
        1 / 0

class Elsewhere(Late):
    def note(self, message, wire):
        self.keep("latest", message, wire)

@dataclass(frozen=True)
class Wrong(LowBit):
    def for_channel(self, facts):
        {body}
""")
    wrong = fg.recipes.free(codec=load("wrong.py:Wrong")())
    with pytest.raises(InputError) as caught:
        fg.train(random_graph(), strategy=wrong, parts=2, epochs=2, out="run")
    assert str(caught.value).startswith("wrong.py:")
    assert WRONG[body] in str(caught.value)
