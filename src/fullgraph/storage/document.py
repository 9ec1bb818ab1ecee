"""JSON documents with a checksum: one object per file, read back completely or refused in one line."""

import json
import math
import os
import re
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from fullgraph.errors import Damaged, InputError, explain, one_line
from fullgraph.storage.atomic import write_whole
from fullgraph.values import read_value

MAX_BYTES = 1 << 28
MAX_DEPTH = 32
CHECKSUM = "checksum"

Tree = dict[str, Any]
T = TypeVar("T")


def write_document(path: Path, tree: Mapping[str, Any], over: str = "") -> None:
    """Write the object and its checksum; refuse numbers that JSON does not have. over: see `whole_file`."""
    write_whole(path, json.dumps(sealed(tree), indent=1, allow_nan=False) + "\n", over)


def read_document(path: Path, *, fix: str) -> Tree:
    """Return the object that `write_document` wrote, without its checksum; `fix` ends every error line."""
    text = read_text(path, fix=fix)
    return unsealed(text, path, fix)


def read_record(kind: type[T], path: Path, *, fix: str) -> T:
    """Return a value from the fields that `write_document` wrote; wrong names, types or ranges count as damage."""
    return record_of(kind, read_document(path, fix=fix), str(path), fix)


def record_of(kind: type[T], tree: Tree, where: str, fix: str) -> T:
    """Convert an object from a file into a value."""
    try:
        return read_value(kind, tree, where)
    except InputError as error:
        raise Damaged(f"{error}; {fix}") from None


def read_text(path: Path, *, fix: str, limit: int = MAX_BYTES) -> str:
    """Return the text of a plain file of at most `limit` bytes."""
    try:
        # Opening a pipe without a writer would block, and reading a device would never end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise InputError(f"{path} is not a plain file; {fix}")
            if about.st_size > limit:
                raise Damaged(f"{path} is larger than the {limit >> 20} MiB that such a file may have; {fix}")
            data = file.read(about.st_size + 1)  # read() allocates its argument, so this is not `limit`
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        known = explain(error, path)
        raise InputError(f"cannot read {known or f'{path} ({one_line(error)})'}; {fix}") from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Damaged(f"{path} is damaged (not text); {fix}") from None


def sealed(tree: Mapping[str, Any]) -> Tree:
    """Return the object with its checksum."""
    return {**tree, CHECKSUM: checksum(tree)}


def unsealed(text: str, path: Path, fix: str) -> Tree:
    """Parse `text`, verify its checksum and remove it."""
    tree = parse_json(text, path, fix)
    if not isinstance(tree, dict) or CHECKSUM not in tree:
        raise Damaged(f"{path} has no checksum: it is damaged, or an older version wrote it; {fix}")
    stored = tree.pop(CHECKSUM)
    if type(stored) is not int or stored != checksum(tree):  # 7.0 equals 7, but no checksum is a float
        raise Damaged(f"{path} is damaged (its checksum does not match); {fix}")
    return tree


def parse_json(text: str, path: Path, fix: str) -> Any:
    """Parse JSON strictly: no NaN, no duplicate keys, no number beyond a float, no very deep nesting."""
    if _depth(text) > MAX_DEPTH:
        raise Damaged(f"{path} is damaged (nested more than {MAX_DEPTH} deep); {fix}")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is not JSON ({one_line(error, 100)}); {fix}") from None


def checksum(tree: Mapping[str, Any]) -> int:
    """Return the same number for equal objects, whatever their layout as text."""
    return zlib.crc32(json.dumps(tree, sort_keys=True).encode())


def _once(pairs: list[tuple[str, Any]]) -> Tree:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise ValueError("a key occurs twice")
    return tree


def _refused(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _depth(text: str) -> int:
    """Return the depth of nested brackets. Brackets inside strings count too, so a file may be refused needlessly."""
    depth = deepest = 0
    for bracket in re.finditer(r"[][{}]", text):
        depth += 1 if bracket[0] in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
