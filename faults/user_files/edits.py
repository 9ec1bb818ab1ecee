"""Edits of a user's file: cut, misspelt, wrongly encoded, or changed to raise or return something else."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from faults.user_files.files import Kind

ERRORS = (
    "ValueError('a reason')", "KeyError('key')", "RuntimeError('two\\nlines \\x1b[31m')", "1 / 0", "AssertionError",
    "StopIteration",
    "OSError(2, 'No such file', 'a.txt')", "SystemExit(0)",
    "SystemExit('no')", "NotImplementedError()",
    "UnicodeDecodeError('utf-8', b'\\xff', 0, 1, 'bad')", "_Own()",
    "ExceptionGroup('two', [ValueError(1), TypeError(2)])",
    "ValueError('x' * 5000)", "_again()", "[][1]", "undefined_name", "int('five')", "_Own.missing", "KeyError()",
    "TypeError('later') from ValueError('before')", "ConnectionResetError(104, 'Connection reset by peer')",
)  # fmt: skip
EXTRA = """

class _Own(Exception):
    def __str__(self):
        raise ValueError("no text")


def _again():
    return _again()


_calls = []
"""


@dataclass(frozen=True)
class Edited:
    """A changed file; `wrong`: every run with it must fail."""

    what: str
    data: bytes
    wrong: bool


def edited(random: Random, kind: Kind) -> Edited:
    """Make one random change."""
    ways: list[Callable[[Random, Kind], Edited]] = [_loose] * 3
    functions = _functions(kind.text)
    ways += [_raising] * 4 if functions else []
    ways += [_returning] * 4 if kind.wrong else []
    ways += [_swapped] * 3 if kind.swaps else []
    ways += [_arity, _deleted] if functions else []
    return random.choice(ways)(random, kind)


def _raising(random: Random, kind: Kind) -> Edited:
    """Raise at the first call of a function, at a later call, or during the import."""
    name, error = random.choice([*_functions(kind.text), ""]), random.choice(ERRORS)
    statement = f"raise {error}" if re.match(r"\w+(\(|$)", error) and "_again" not in error else error
    statement = "undefined_name" if error == "undefined_name" else statement
    if not name:
        return Edited(f"{statement} at the end", f"{kind.text}{EXTRA}{statement}\n".encode(), True)
    after = random.choice([0, 0, 1, 3])
    if after:
        statement = f"_calls.append(1)\nif len(_calls) > {after}: {statement}"
    text = _begun(kind.text, name, statement) + EXTRA
    return Edited(f"{name}: {statement!r}", text.encode(), not after)


def _returning(random: Random, kind: Kind) -> Edited:
    name = random.choice(list(kind.wrong))
    value = random.choice(kind.wrong[name])
    return Edited(f"{name} returns {value}", _begun(kind.text, name, f"return {value}").encode(), True)


def _swapped(random: Random, kind: Kind) -> Edited:
    old, new = random.choice(kind.swaps)
    assert old in kind.text, old
    return Edited(f"{old!r} -> {new!r}", kind.text.replace(old, new, 1).encode(), False)


def _arity(random: Random, kind: Kind) -> Edited:
    """Add a parameter to a function, or remove one."""
    name = random.choice(list(_functions(kind.text)))
    head = re.search(rf"def {name}\((.*?)\):", kind.text)
    assert head, name
    words = [word.strip() for word in head[1].split(",")]
    words = words[:-1] if random.random() < 0.5 else [*words[:1], "another", *words[1:]]
    new = f"def {name}({', '.join(words)}):"
    return Edited(f"{head[0]} -> {new}", kind.text.replace(head[0], new, 1).encode(), False)


def _deleted(random: Random, kind: Kind) -> Edited:
    """Remove a function, or replace it by a number."""
    name, node = random.choice(list(_functions(kind.text).items()))
    lines = kind.text.splitlines(keepends=True)
    first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)]) - 1
    instead = f"{' ' * node.col_offset}{random.choice([f'{name} = 3', 'pass', f'{name} = None'])}\n"
    lines[first : node.end_lineno] = [instead]
    return Edited(f"{name} replaced by {instead.strip()!r}", "".join(lines).encode(), False)


def _loose(random: Random, kind: Kind) -> Edited:
    """Change bytes, lines or words, whatever their meaning."""
    text, data = kind.text, kind.text.encode()
    lines = text.splitlines(keepends=True)
    at, spot = random.randrange(len(lines)), random.randrange(len(data))
    words = list(re.finditer(r"[A-Za-z_]\w+", text))
    word = random.choice(words)
    brackets = [m.start() for m in re.finditer(r"[()\[\]:,=\"]", text)]
    mark = random.choice(brackets)
    ways: list[tuple[str, bytes, bool]] = [
        ("a line is gone", "".join(lines[:at] + lines[at + 1 :]).encode(), False),
        ("a line twice", "".join(lines[: at + 1] + lines[at:]).encode(), False),
        ("two lines swapped", "".join(lines[:at] + lines[at : at + 2][::-1] + lines[at + 2 :]).encode(), False),
        ("a line with another indent", "".join([*lines[:at], "   " + lines[at], *lines[at + 1 :]]).encode(), False),
        ("a tab", "".join([*lines[:at], "\t" + lines[at], *lines[at + 1 :]]).encode(), False),
        ("cut short", data[:spot], False),
        ("a mark is gone", (text[:mark] + text[mark + 1 :]).encode(), False),
        ("a mark twice", (text[:mark] + text[mark] + text[mark:]).encode(), False),
        ("a word misspelt", (text[: word.start()] + word[0] + "x" + text[word.end() :]).encode(), False),
        ("a word is gone", (text[: word.start()] + text[word.end() :]).encode(), False),
        ("latin-1", data[:spot] + b"\xe9\xff" + data[spot:], False),
        ("utf-16", text.encode("utf-16"), True),
        ("a null byte", data[:spot] + b"\0" + data[spot:], False),
        ("an unknown encoding", b"# -*- coding: klingon -*-\n" + data, False),
        ("a mark of byte order", b"\xef\xbb\xbf" + data, False),
        ("empty", b"", False),
        ("a byte changed", data[:spot] + bytes([random.randrange(256)]) + data[spot + 1 :], False),
        ("an import of nothing", b"import not_installed_anywhere\n" + data, True),
        ("a merge's marks", data[:spot] + b"\n<<<<<<< HEAD\n" + data[spot:], False),
    ]
    return Edited(*random.choice(ways))


def _begun(text: str, name: str, statement: str) -> str:
    """Insert a statement at the beginning of a function's body."""
    node = _functions(text)[name]
    indent = " " * (node.col_offset + 4)
    lines = text.splitlines(keepends=True)
    lines[node.body[0].lineno - 1 : node.body[0].lineno - 1] = [f"{indent}{line}\n" for line in statement.split("\n")]
    return "".join(lines)


def _functions(text: str) -> dict[str, ast.FunctionDef]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # options
        return {}
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
