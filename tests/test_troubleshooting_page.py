"""The code can print every message on docs/troubleshooting.md."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
LEAST = 10  # letters that are the same in all messages of a kind; fewer would match anything


@cache
def texts():
    """Every text in the source, in pieces; None stands for the values in an f-string."""
    found = []
    for path in (ROOT / "src" / "fullgraph").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append([part.value if isinstance(part, ast.Constant) else None for part in node.values])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append([node.value])
    return found


@pytest.fixture(scope="module")
def known():
    """The texts as patterns."""
    enough = [text for text in texts() if len(re.findall("[a-z]", "".join(filter(None, text)))) >= LEAST]
    patterns = ["".join(".+" if piece is None else re.escape(piece) for piece in text) for text in enough]
    return [re.compile(pattern) for pattern in patterns]


@pytest.fixture(scope="module")
def pieces():
    return {piece for text in texts() for piece in text if piece is not None}


def messages():
    """Lines of the blocks that show output, without what the command adds before and after."""
    lines = "".join(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    told = [re.sub(r"^fullgraph: (error|note): (net\.py:\d+, [^:]+: )?", "", line) for line in lines]
    return [re.sub(r"; to go on: fullgraph train --resume \S+$", "", line) for line in told]


def fragments():
    """The first column of the tables that name a part of a line."""
    tables = re.findall(r"\n\| the line (?:says|ends with) \|.*?\n\n", PAGE, re.DOTALL)
    return [row.split("`")[1] for table in tables for row in table.strip().splitlines()[2:]]


@pytest.mark.parametrize("message", messages())
def test_a_message_is_one_of_the_source(message, known):
    assert any(pattern.fullmatch(message) or pattern.fullmatch(f"{message}\n") for pattern in known)


@pytest.mark.parametrize("fragment", fragments())
def test_a_part_of_a_message_is_in_the_source(fragment, pieces):
    assert any(fragment in piece for piece in pieces)


def test_the_page_has_messages():
    assert len(messages()) > 20
    assert len(fragments()) > 20
