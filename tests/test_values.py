"""Values: every field is checked when a value is made, and when it is read back."""

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import pytest

from fullgraph.errors import InputError
from fullgraph.values import OneOf, Range, Value, read_value


@dataclass(frozen=True, kw_only=True)
class Inner(Value):
    low: Annotated[int, Range(0, 10)] = 1
    high: Annotated[float, Range(0, 1, above=True, below=True)] = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer(Value):
    name: str
    word: Annotated[str, OneOf("a", "b")] = "a"
    yes: bool = False
    maybe: float | None = None
    many: tuple[int, ...] = ()
    named: dict[str, float | None] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    anything: dict[str, Any] = field(default_factory=dict)


GOOD = Outer(name="x", maybe=2.0, many=(1, 2), named={"a": None}, inner=Inner(low=0), anything={"k": [1, {"z": None}]})


def test_a_value_survives_json():
    assert read_value(Outer, json.loads(json.dumps(asdict(GOOD))), "here") == GOOD


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": 3}, "here: name=3: a text"),
        ({"name": None}, "name=None: a text"),
        ({"word": "c"}, "one of a, b"),
        ({"yes": 1}, "true or false"),
        ({"maybe": "x"}, "a finite number or nothing"),
        ({"maybe": True}, "a finite number or nothing"),
        ({"many": [1, 2.5]}, "a whole number"),
        ({"many": 3}, "a list"),
        ({"named": {"a": "x"}}, "a finite number or nothing"),
        ({"named": []}, "an object with names"),
        ({"inner": {"low": 11}}, "here: inner: low=11: at least 0 and at most 10"),
        ({"inner": {"low": True}}, "a whole number"),
        ({"inner": {"high": 1}}, "above 0 and below 1"),
        ({"inner": {"high": 10**400}}, "a finite number"),
        ({"inner": {"lower": 1}}, r"here: inner has unknown keys lower \(did you mean low\?\); known: low, high"),
        ({"inner": 3}, "Inner"),
        ({"more": 1, "ev\x1bil": 2}, r"unknown keys more, ev\\x1bil; known: name"),
    ],
)
def test_wrong_trees_are_one_line(change, text):
    with pytest.raises(InputError, match=text) as caught:
        read_value(Outer, {**asdict(GOOD), "many": [1, 2], **change}, "here")
    assert "\n" not in str(caught.value)


def test_missing_and_foreign_trees():
    with pytest.raises(InputError, match="here lacks name"):
        read_value(Outer, {}, "here")
    for tree in ([], "text", 3, None):
        with pytest.raises(InputError, match="has to be an object"):
            read_value(Outer, tree, "here")


def test_a_value_is_checked_when_it_is_made():
    for wrong in ({"low": -1}, {"low": "1"}, {"high": float("nan")}, {"high": 0.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Inner(**wrong)
