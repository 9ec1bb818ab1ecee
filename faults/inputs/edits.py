"""Edits of bytes, of JSON trees and of tensor files, all drawn from one random generator."""

import json
import math
import struct
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from fullgraph.storage.document import sealed

NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**18, 10**40, 10**400,
    -(2**31), -(2**63), 0.0, -0.0, 0.5, 1e-320, 1e-9, 1.5, 1e6, 1e18, 1e38, 1e39, 1e308, -1e308,
]  # fmt: skip
WORDS = [
    "", " ", "a", "None", "nan", "inf", "-inf", "true", "0", "-1", "1e400", "1_000", "0x10", "é", "\uff41\uff11",
    "\u202e", "\ud800",
    "\x00", "\x1b[31mred\x1b[0m", "a\nb", "a\rb", "\u2028", "[/red]", "[bold]x[/bold]", "%s%n", "{0}", "{config}",
    "../..", "/", "/etc/passwd", "~", "a" * 5000, "\u0661\u0662",
]  # fmt: skip


def edit_bytes(data: bytes, random: Random) -> tuple[bytes, str]:
    """Change, cut, double, swap, truncate or add a few bytes."""
    edited, told = bytearray(data), []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        place = random.randrange(len(edited)) if edited else 0
        kind = random.choice(["flip", "set", "cut", "double", "truncate", "append", "zero", "swap", "empty"])
        if kind == "empty" and random.random() < 0.8:
            kind = "flip"
        told.append(f"{kind} at {place}")
        if kind in ("flip", "set", "swap") and not edited:
            continue
        if kind == "flip":
            edited[place] ^= 1 << random.randrange(8)
        elif kind == "set":
            edited[place] = random.choice([0, 255, 0x7F, 0x80, random.randrange(256)])
        elif kind == "cut":
            del edited[place : place + random.randint(1, 64)]
        elif kind == "double":
            edited[place:place] = edited[place : place + random.randint(1, 200)]
        elif kind == "truncate":
            del edited[place:]
        elif kind == "append":
            edited += random.randbytes(random.randint(1, 64))
        elif kind == "zero":
            end = min(len(edited), place + random.randint(1, 256))
            edited[place:end] = bytes(end - place)
        elif kind == "swap":
            other = random.randrange(len(edited))
            edited[place], edited[other] = edited[other], edited[place]
        else:
            edited.clear()
    return bytes(edited), ", ".join(told)


def spaced(text: str, random: Random) -> str:
    """Return the same JSON with different white space and order of keys."""
    tree = json.loads(text)
    if isinstance(tree, dict) and random.random() < 0.5:
        keys = list(tree)
        random.shuffle(keys)
        tree = {key: tree[key] for key in keys}
    return json.dumps(tree, indent=random.choice([None, 0, 3, "\t"]), ensure_ascii=random.random() < 0.5)


def any_value(random: Random, depth: int = 2) -> Any:
    """Return any value that JSON can represent, and some that it cannot."""
    kinds: list[Callable[[], Any]] = [
        lambda: random.choice(NUMBERS), lambda: random.choice(NUMBERS), lambda: random.choice(WORDS),
        lambda: None, lambda: True, lambda: False, list, dict,
        lambda: math.nan, lambda: math.inf, lambda: random.uniform(-10, 10),
    ]  # fmt: skip
    if depth:
        kinds += [
            lambda: [any_value(random, depth - 1) for _ in range(random.randint(1, 3))],
            lambda: {random.choice(WORDS)[:50]: any_value(random, depth - 1) for _ in range(random.randint(1, 3))},
        ]
    return random.choice(kinds)()


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every (object or list, key or index) in a tree."""
    found = []
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        found.append((tree, key))
        found += places(value)
    return found


def edit_tree(tree: Any, random: Random) -> str:
    """Make one structural edit of a JSON tree, in place."""
    owner, key = random.choice(places(tree) or [(tree, None)])
    if key is None:
        tree["new"] = any_value(random)
        return "add new"
    kind = random.choice(["replace", "replace", "replace", "remove", "add", "nudge", "wrap", "type", "swap"])
    if kind == "remove":
        del owner[key]
    elif kind == "add" and isinstance(owner, dict):
        name = random.choice(["new", "schema", "epoch", "name", *WORDS])[:60]
        owner[name] = any_value(random)
        return f"add {name!r}"
    elif kind == "nudge" and isinstance(owner[key], int | float) and not isinstance(owner[key], bool):
        owner[key] += random.choice([1, -1, 0.5, 1e-9])
    elif kind == "wrap":
        owner[key] = random.choice([[owner[key]], {"value": owner[key]}])
    elif kind == "type":
        old = owner[key]
        owner[key] = random.choice([str(old), bool(old), [old], None if old is not None else 0])
    elif kind == "swap":
        other, name = random.choice(places(tree))
        try:
            owner[key], other[name] = other[name], owner[key]
            json.dumps(tree)
        except (ValueError, KeyError, IndexError):  # it contains itself now
            owner[key] = None
    else:
        owner[key] = any_value(random)
    return f"{kind} {key!r}" + ("" if kind == "remove" else f" -> {str(owner[key])[:60]!r}")


def edit_json(text: str, random: Random, *, repair: bool) -> tuple[str, str]:
    """Edit the structure of one of our documents; update its checksum if `repair`."""
    tree = json.loads(text)
    if repair:
        tree.pop("checksum", None)
    told = ", ".join(edit_tree(tree, random) for _ in range(random.choice([1, 1, 1, 2])))
    if repair:
        tree = sealed(tree)
    return json.dumps(tree, indent=random.choice([None, 1])), told + (", checksum repaired" if repair else "")


def torture_json(text: str, random: Random) -> tuple[str, str]:
    """Return a text that is hard to parse for a JSON reader."""
    kind = random.choice(["deep", "deep objects", "twice", "digits", "constant", "lone", "exponent", "bom", "list"])
    body = text.strip()[1:]
    made = {
        "deep": "[" * random.choice([33, 1000, 100_000]),
        "deep objects": '{"a":' * 5000 + "1" + "}" * 5000,
        "twice": '{"epoch": 1, "name": "a", "name": "b", ' + body,
        "digits": '{"epoch": ' + "9" * random.choice([400, 5000]) + ", " + body,
        "constant": '{"epoch": ' + random.choice(["NaN", "Infinity", "-Infinity"]) + ", " + body,
        "lone": '{"a": "\\ud800", ' + body,
        "exponent": '{"epoch": 1e99999, ' + body,
        "bom": "\ufeff" + text,
        "list": "[" + text + "]",
    }
    return made[kind], kind


def same_json(one: bytes, other: bytes) -> bool:
    """Whether two texts hold the same object, with numbers of the same type."""
    try:
        trees = [json.loads(text) for text in (one, other)]
    except (ValueError, RecursionError):
        return False
    return json.dumps(trees[0], sort_keys=True) == json.dumps(trees[1], sort_keys=True)


def split_tensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file, and its numbers."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join_tensors(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def same_tensors(one: bytes, other: bytes) -> bool:
    """Whether two files hold the same names, types, shapes, numbers and texts."""
    try:
        return _content(one) == _content(other)
    except Exception:
        return False


def _content(data: bytes) -> Any:
    header, body = split_tensors(data)
    texts = header.pop("__metadata__", {})
    return texts, {
        name: (about["dtype"], about["shape"], body[slice(*about["data_offsets"])]) for name, about in header.items()
    }


def edit_tensors(data: bytes, random: Random) -> tuple[bytes, str]:
    """Make one structural edit of a tensor file; its checksum stays the same."""
    header, body = split_tensors(data)
    names = [name for name in header if name != "__metadata__"]
    kind = random.choice(["drop", "rename", "reshape", "dtype", "about", "offsets", "length", "value", "swap", "shape"])
    if not names and kind not in ("about", "length"):
        kind = "about"
    name = random.choice(names) if names else ""
    if kind == "drop":
        del header[name]
    elif kind == "rename":
        header[random.choice(["other", "__metadata__", *WORDS])] = header.pop(name)
    elif kind == "reshape":
        header[name]["shape"] = header[name]["shape"][::-1] if random.random() < 0.5 else [*header[name]["shape"], 1]
    elif kind == "shape":
        header[name]["shape"] = [random.choice(NUMBERS) for _ in range(random.randint(0, 3))]
    elif kind == "dtype":
        header[name]["dtype"] = random.choice(["F16", "F32", "I32", "U8", "BOOL", "F8_E4M3", "C64", "X", 3, None])
    elif kind == "about":
        header.setdefault("__metadata__", {})[random.choice(["epoch", "rank", "ranks", "crc32", "x"])] = random.choice(
            ["0", "1", "2", "x", "", 3, None, "\x1b[31m", "9" * 100]
        )
    elif kind == "offsets":
        header[name]["data_offsets"] = random.choice([[0, 0], [0, 2**63], [8, 4], [-1, 4], [0], "x"])
    elif kind == "value" and body:
        place = random.randrange(len(body))
        body = body[:place] + bytes([body[place] ^ random.randint(1, 255)]) + body[place + 1 :]
    elif kind == "swap" and len(names) > 1:
        other = random.choice(names)
        header[name], header[other] = header[other], header[name]
    else:
        made = join_tensors(header, body)
        return struct.pack("<Q", random.choice([0, 1, 2**20, 2**40, 2**63, 2**64 - 1])) + made[8:], "length"
    try:
        return join_tensors(header, body), f"{kind} {name}"
    except (TypeError, ValueError):
        return data[:-1], "truncate"


def nonsense_array(random: Random, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of another type, shape or content in place of `like`."""
    rows = like.shape[0] if like.ndim else 1
    types: list[Any] = [">f4", ">f8", ">i4", ">i8", ">u2", "<f2", ">f2", "f8", "f4", "i1", "u1", "i2", "u8", "i4", "i8",
                        "?", "g", ">g", "c8", "c16", "S7", "U5"]  # fmt: skip
    others: list[Any] = ["M8[s]", "m8[D]", "V4", "S0", [("a", "i4"), ("b", "f8")]]
    shapes: list[Callable[[], np.ndarray[Any, Any]]] = [
        lambda: like.reshape(-1), lambda: like[None], lambda: like[..., None], lambda: like.T,
        lambda: like[:0], lambda: like[:-1], lambda: np.concatenate([like, like[:1]]),
        lambda: np.array(0), lambda: np.array(3.5), lambda: np.empty((0,)), lambda: np.empty((0, 0)),
        lambda: np.zeros((rows, 0)), lambda: np.zeros((0, rows)), lambda: np.zeros((2, 0), np.int64),
        lambda: np.zeros((rows, 2, 2), like.dtype), lambda: np.full((1,) * 32, 1.0),
        lambda: np.asfortranarray(like), lambda: like[::-1],
    ]  # fmt: skip
    values: list[Callable[[], np.ndarray[Any, Any]]] = [
        lambda: _with_value(like, random), lambda: _with_value(like.astype(random.choice(types[:-2])), random),
        lambda: np.zeros_like(like), lambda: np.ones_like(like), lambda: like * 0 - 1 if like.dtype != bool else ~like,
    ]  # fmt: skip
    kinds: list[Callable[[], np.ndarray[Any, Any]]] = [
        lambda: like.astype(random.choice(types)), lambda: np.zeros(like.shape, random.choice(others)),
        lambda: random.choice(shapes)(), lambda: random.choice(values)(), lambda: random.choice(values)(),
    ]  # fmt: skip
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return random.choice(kinds)()
        except (TypeError, ValueError, IndexError, OverflowError):
            return _with_value(like, random)


def _with_value(like: np.ndarray[Any, Any], random: Random) -> np.ndarray[Any, Any]:
    """Return the array with one entry changed, in a type that can hold it."""
    strange: list[Any] = [math.nan, math.inf, -math.inf, -1, -2, 10**9, 2**31, 2**40, -(2**63), 2**63 - 1, 1e38, 1e300]
    strange += [0.5, np.longdouble("1e4000")]
    value = random.choice(strange)
    out = like.copy()
    if not out.size:
        return out
    place = random.randrange(out.size)
    try:
        out.reshape(-1)[place] = value
    except (ValueError, OverflowError):
        if out.dtype.kind in "iub":
            out = out.astype(np.float64)
            out.reshape(-1)[place] = value
    return out
