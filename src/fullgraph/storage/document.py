"""JSON documents of ours: one object with a checksum in it, read back whole or refused in one line."""

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
    """Write the object and its checksum; numbers that JSON does not have are refused. over: as of `whole_file`."""
    write_whole(path, json.dumps(sealed(tree), indent=1, allow_nan=False) + "\n", over)


def read_document(path: Path, *, fix: str) -> Tree:
    """The object that `write_document` wrote, without its checksum; `fix` ends every error line."""
    text = read_text(path, fix=fix)
    return unsealed(text, path, fix)


def read_record(kind: type[T], path: Path, *, fix: str) -> T:
    """The value whose fields `write_document` wrote; fields of another name, type or range are damage too."""
    return record_of(kind, read_document(path, fix=fix), str(path), fix)


def record_of(kind: type[T], tree: Tree, where: str, fix: str) -> T:
    """The value that an object of a file of ours holds."""
    try:
        return read_value(kind, tree, where)
    except InputError as error:
        raise Damaged(f"{error}; {fix}") from None


def read_text(path: Path, *, fix: str, limit: int = MAX_BYTES) -> str:
    """The text of a plain file that is not larger than `limit`."""
    try:
        # A pipe without a writer would never open, and a device never end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise InputError(f"{path} is no plain file; {fix}")
            if about.st_size > limit:
                raise Damaged(f"{path} is larger than the {limit >> 20} MiB that such a file may have; {fix}")
            data = file.read(about.st_size + 1)  # a larger number would take so much memory at once
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
    """The object with its checksum."""
    return {**tree, CHECKSUM: checksum(tree)}


def unsealed(text: str, path: Path, fix: str) -> Tree:
    """The object in `text`, its checksum compared and taken out."""
    tree = parse_json(text, path, fix)
    if not isinstance(tree, dict) or CHECKSUM not in tree:
        raise Damaged(f"{path} has no checksum: it is damaged, or of an older version; {fix}")
    found = tree.pop(CHECKSUM)
    if type(found) is not int or found != checksum(tree):  # 7.0 equals 7, and nobody wrote it
        raise Damaged(f"{path} is damaged (its checksum does not match); {fix}")
    return tree


def parse_json(text: str, path: Path, fix: str) -> Any:
    """JSON without its traps: no NaN, no key twice, no number beyond a float, no depth that ends the interpreter."""
    if _depth(text) > MAX_DEPTH:
        raise Damaged(f"{path} is damaged (nested more than {MAX_DEPTH} deep); {fix}")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is not JSON as it should be ({one_line(error, 100)}); {fix}") from None


def checksum(tree: Mapping[str, Any]) -> int:
    """The same for equal objects, however their text is laid out."""
    return zlib.crc32(json.dumps(tree, sort_keys=True).encode())


def _once(pairs: list[tuple[str, Any]]) -> Tree:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise ValueError("a key stands twice")
    return tree


def _refused(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _depth(text: str) -> int:
    """How deep brackets are nested; those inside strings count too, which can only refuse more."""
    depth = deepest = 0
    for bracket in re.finditer(r"[][{}]", text):
        depth += 1 if bracket[0] in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
