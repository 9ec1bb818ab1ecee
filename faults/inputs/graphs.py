"""Mutated .npz graphs: arrays of other types, shapes and values, and edits of the archive itself."""

import io
import json
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import scipy.sparse as sp

from faults.command import difference
from faults.inputs.case import Case, Ended
from faults.inputs.edits import edit_bytes, nonsense_array

Arrays = dict[str, np.ndarray[Any, Any]]
Again = Callable[[list[str], Path], Ended]  # the same command in another folder

NODES, ARCS, WIDTH = 24, 90, 5
PICKLE = b"cposix\nsystem\n(S'touch pwned'\ntR."
SIZES = [0, 1, 3, 100, 2**31 - 1, 2**31, 2**32 - 1]
KNOWN = ("edge_index", "x", "x_data", "x_indices", "x_indptr", "x_shape", "y", "edge_weight",
         "train_mask", "val_mask", "test_mask")  # fmt: skip


def base(random: Random) -> Arrays:
    """Return a small valid graph of any kind."""
    rng = np.random.default_rng(random.randrange(8))
    masks = np.eye(3, dtype=bool)[rng.integers(0, 3, (NODES, random.choice([1, 1, 1, 2])))]
    masks[:3] = np.eye(3, dtype=bool)[:, None, :]
    arrays: Arrays = {
        "edge_index": rng.integers(0, NODES, (2, ARCS)),
        "y": rng.integers(0, 3, NODES),
        **{f"{name}_mask": np.ascontiguousarray(masks[:, :, k]) for k, name in enumerate(("train", "val", "test"))},
    }
    if masks.shape[1] == 1:
        arrays |= {name: value[:, 0].copy() for name, value in arrays.items() if name.endswith("_mask")}
    x = rng.standard_normal((NODES, WIDTH)).astype(random.choice([np.float32, np.float32, np.float64]))
    if random.random() < 0.3:
        rows = sp.csr_array(np.where(rng.random(x.shape) < 0.5, x, 0))
        arrays |= {"x_data": rows.data, "x_indices": rows.indices, "x_indptr": rows.indptr}
        arrays["x_shape"] = np.array(rows.shape)
    else:
        arrays["x"] = x
    if random.random() < 0.3:
        arrays["y"] = rng.integers(0, 2, (NODES, 4)).astype(random.choice([np.uint8, np.float32]))
    if random.random() < 0.3:
        arrays["edge_weight"] = rng.random(ARCS).astype(random.choice([np.float32, np.float64]))
    return arrays


def case(random: Random, here: Path, shared: Path, again: Again) -> Case:
    arrays = base(random)
    path = here / "g.npz"
    edit = random.choice([_arrays, _arrays, _arrays, _members, _members, _bytes, _bytes, _headers, _bombs, _untouched])
    told = edit(arrays, path, random, shared)
    arguments = command(random, arrays)

    def right(ended: Ended) -> None:
        canon = ended.here.with_name("canon")
        canon.mkdir()
        np.savez(canon / "g.npz", **canonical(path))
        other = again(arguments, canon)
        assert other.code == 0, f"numpy's reading of it is refused: {other.err}"
        assert_same(arguments, ended, other)

    must = "right" if edit is _untouched else ""
    return Case(f"graph, {edit.__name__[1:]}: {told}", arguments, right, must)


def command(random: Random, arrays: Arrays) -> list[str]:
    """Return a command that reads the graph, with options that reach different code."""
    parts = ["--parts", str(random.choice([1, 1, 2, 3]))]
    cutter = ["--partitioner", random.choice(["metis", "random", "contiguous", "banded", "metis-cut"])]
    kind = random.choice(["train", "train", "train", "partition", "inspect"])
    if kind == "inspect":
        return ["inspect", "g.npz", *parts, *cutter]
    features = ["--features", random.choice(["none", "none", "row", "standard"])]
    mask = arrays.get("train_mask", np.zeros(1))
    split = ["--split", random.choice(["0", "1"] if mask.ndim == 2 and mask.shape[1] > 1 else ["0"])]
    if kind == "partition":
        return ["partition", "g.npz", "--out", "shards", *parts, *cutter, *features, *split]
    model = ["--model", random.choice(["sage", "sage", "gcn", "gin", "gat"]), "--hidden", "4", "--layers", "2"]
    extra = random.choice([[], [], ["--inductive"], ["--dtype", "float64"], ["--no-precompute"], ["--norm", "batch"],
                           ["--strategy", "none"], ["--strategy", "mixgcn"], ["--strategy", "sylvie-s"]])  # fmt: skip
    more = ["--epochs", "2", "--threads", "1", "--out", "run", "--checkpoint-every", random.choice(["0", "1"])]
    return ["train", "g.npz", *parts, *cutter, *features, *split, *model, *extra, *more]


def canonical(path: Path) -> Arrays:
    """Return numpy's reading of the file, in the simplest types that hold it."""
    arrays: Arrays = {}
    with zipfile.ZipFile(path) as archive:
        for name in KNOWN:
            if f"{name}.npy" in archive.namelist():
                with archive.open(f"{name}.npy") as stream:
                    arrays[name] = np.array(np.lib.format.read_array(stream, allow_pickle=False), order="C")
    if "x" in arrays:
        arrays = {name: value for name, value in arrays.items() if not name.startswith("x_")}
    for name, value in arrays.items():
        if name.endswith("_mask"):
            if value.dtype.kind in "iu" and np.isin(value, (0, 1)).all():
                arrays[name] = value.astype(bool)
            elif value.dtype.kind in "iu":  # a list of node ids
                arrays[name] = np.isin(np.arange(len(arrays["y"])), value)
            assert arrays[name].dtype == bool, f"{name} of type {value.dtype} is no mask"
            continue
        if name in ("x", "x_data", "edge_weight"):
            assert value.dtype.kind in "iubf", f"{name} of type {value.dtype}"
            wide = value.dtype.kind == "f" and value.dtype.itemsize >= 8
            kind: Any = np.float64 if wide else np.float32
        elif name == "y" and value.ndim == 2 and value.dtype.kind in "iubf" and np.isin(value, (0, 1)).all():
            kind = np.float32
        elif name == "y" and value.dtype.kind == "f":  # NaN means unknown
            arrays[name] = value.astype(np.float64 if value.dtype.itemsize >= 8 else np.float32)
            continue
        else:
            assert value.dtype.kind in "iu" or not value.size, f"{name} of type {value.dtype}"
            kind = np.int64
        with np.errstate(over="ignore"):
            arrays[name] = value.astype(kind)
        assert np.isfinite(arrays[name]).all(), f"{name} is not finite"
    return arrays


def assert_same(arguments: list[str], one: Ended, other: Ended) -> None:
    """Check that the outcomes in two folders are bit-identical."""
    if arguments[0] == "inspect":
        assert one.out == other.out, "another table"
    elif arguments[0] == "partition":
        facts = [json.loads((ended.here / "shards" / "manifest.json").read_text()) for ended in (one, other)]
        for name in ("graph", "figures", "parts", "method"):
            assert facts[0][name] == facts[1][name], f"manifests differ in {name}"
        for file in facts[0]["files"]:
            tables = [np.load(ended.here / "shards" / file) for ended in (one, other)]
            assert np.array_equal(*tables), f"{file} differs"
    else:
        differs = difference(other.here / "run", one.here / "run")
        assert not differs, f"other {differs.names}"


def _save(arrays: Arrays, path: Path, random: Random) -> None:
    (np.savez if random.random() < 0.6 else np.savez_compressed)(path, **arrays)


def _untouched(arrays: Arrays, path: Path, random: Random, shared: Path) -> str:
    _save(arrays, path, random)
    return "as it was"


def _arrays(arrays: Arrays, path: Path, random: Random, shared: Path) -> str:
    """Replace, leave out or add arrays."""
    told = []
    for _ in range(random.choice([1, 1, 1, 2])):
        name = random.choice(list(arrays))
        kind = random.choice(["replace"] * 8 + ["remove", "rename", "add", "object"])
        if kind == "remove" and len(arrays) > 1:
            del arrays[name]
        elif kind == "rename":
            arrays[random.choice([name.upper(), f"{name} ", "other", "x", "x_shape", "edge_weight"])] = arrays.pop(name)
        elif kind == "add":
            name = random.choice(["x", "x_data", "x_shape", "edge_weight", "other", "y"])
            arrays.setdefault(name, nonsense_array(random, next(iter(arrays.values()))))
        elif kind == "object":
            arrays[name] = np.array([None, {"a": 1}], dtype=object)
        else:
            arrays[name] = nonsense_array(random, arrays[name])
        told.append(f"{kind} {name}" + (f" by {arrays[name].dtype} {arrays[name].shape}" if name in arrays else ""))
        if name not in arrays and not arrays:
            break
    _save(arrays, path, random)
    return ", ".join(told)


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _headers(arrays: Arrays, path: Path, random: Random, shared: Path) -> str:
    """Write a .npy member whose header makes false claims."""
    victim = random.choice(list(arrays))
    data = _npy(arrays[victim])
    length = struct.unpack("<H", data[8:10])[0]
    header, body = data[10 : 10 + length].decode(), data[10 + length :]
    shape, descr = str(arrays[victim].shape), np.lib.format.dtype_to_descr(arrays[victim].dtype)
    new_shape = random.choice(
        ["()", "(-1,)", "(0,)", f"({10**18},)", f"({2**62}, 8)", "(True,)", "(1.5,)", "('a',)", "(None,)", "3", "[24]",
         f"({NODES},)", f"({NODES}, {2**40})", "(" + "1," * 40 + ")", "(" * 50 + ")" * 50, "(24, 0)", f"({2**64},)"]
    )  # fmt: skip
    new_descr = random.choice(
        ["'|O'", "'>f4'", "'<f16'", "'<V0'", "'|S0'", "'<U999999999'", "'<M8[x]'", "[('a', '<f4')]", "'<f3'", "''",
         "'<i8,<i8'", "None", "3", "'|V" + "9" * 12 + "'", "('<f4', (2, 2))", "'|b1'", "'<c16'", "'<m8[ns]'"]
    )  # fmt: skip
    kind = random.choice(["shape", "descr", "order", "text", "version", "length", "body"])
    if kind == "shape":
        header = header.replace(f"'shape': {shape}", f"'shape': {new_shape}")
    elif kind == "descr":
        header = header.replace(f"'descr': {descr!r}", f"'descr': {new_descr}")
    elif kind == "order":
        header = header.replace("False", random.choice(["True", "3", "None", "'x'"]))
    elif kind == "text":
        header = random.choice(["{}", "", "[]", "{'descr': '<f4'}", "__import__('os').system('touch pwned')",
                                "\x00" * 50, "{" * 2000, "1+" * 3000 + "1", header + "x" * 20000])  # fmt: skip
    elif kind == "body":
        body = random.choice([b"", body[:-1], body + b"\0" * 8, body * 2])
    text = header.encode("latin1", "replace")[:65000] + b"\n"
    version = random.choice([b"\x02\x00", b"\x03\x00", b"\x04\x00", b"\x00\x00", b"\xff\xff"])
    head = b"\x93NUMPY" + (version if kind == "version" else b"\x01\x00")
    if version in (b"\x02\x00", b"\x03\x00") and kind == "version":
        member = head + struct.pack("<I", len(text)) + text + body
    else:
        member = head + struct.pack("<H", len(text) if kind != "length" else random.choice([0, 5, 65535])) + text + body
    _zip(path, {**{name: _npy(value) for name, value in arrays.items()}, victim: member}, random)
    return f"{kind} of {victim}: {header[:100]!r}"


def _zip(path: Path, members: dict[str, bytes], random: Random, method: int | None = None) -> None:
    chosen = random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]) if method is None else method
    with zipfile.ZipFile(path, "w", chosen) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


def _bytes(arrays: Arrays, path: Path, random: Random, shared: Path) -> str:
    """Edit bytes of the archive, mostly in its directory, the only part without a checksum."""
    _save(arrays, path, random)
    data = path.read_bytes()
    start = data.rfind(b"PK\x05\x06")
    directory = struct.unpack("<I", data[start + 16 : start + 20])[0]
    if random.random() < 0.6:
        tail, told = edit_bytes(data[directory:], random)
        data = data[:directory] + tail
    elif random.random() < 0.5:
        local = random.choice([i for i in range(directory) if data[i : i + 4] == b"PK\x03\x04"])
        middle, told = edit_bytes(data[local : local + 40], random)
        data = data[:local] + middle + data[local + 40 :]
    else:
        data, told = edit_bytes(data, random)
    path.write_bytes(data)
    return told


def _members(arrays: Arrays, path: Path, random: Random, shared: Path) -> str:
    """Double, encrypt, overlap, recompress, rename or resize members; add pickles."""
    members = {name: _npy(value) for name, value in arrays.items()}
    victim = random.choice(list(members))
    kind = random.choice(
        ["double", "flags", "method", "size", "compressed size", "crc", "offset", "name", "pickle", "pickle in place",
         "folder", "escape", "many", "lzma", "bzip2", "empty", "comment", "prefix", "version", "long name"]
    )  # fmt: skip
    if kind in ("lzma", "bzip2"):
        _zip(path, members, random, zipfile.ZIP_LZMA if kind == "lzma" else zipfile.ZIP_BZIP2)
        return kind
    if kind == "pickle in place":
        members[victim] = random.choice([PICKLE, b"\x80\x04\x95", _npy(arrays[victim])[:6] + PICKLE])
        if random.random() < 0.5:
            header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
            members[victim] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + PICKLE
    if kind == "empty":
        members[victim] = b""
    _zip(path, members, random)
    if kind in ("double", "pickle", "folder", "escape", "many", "comment", "long name"):
        with zipfile.ZipFile(path, "a") as archive:
            if kind == "double":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # zipfile warns about it
                    archive.writestr(f"{victim}.npy", _npy(nonsense_array(random, arrays[victim])))
            elif kind == "comment":
                archive.comment = random.randbytes(random.choice([10, 60000]))
            elif kind == "many":
                for number in range(300):
                    archive.writestr(f"other{number}.npy", b"")
            else:
                names = {"pickle": "other.npy", "folder": "x/", "escape": "../../pwned.npy"}
                archive.writestr(names.get(kind, "n" * 60000), PICKLE)
        return f"{kind} {victim}"
    data = bytearray(path.read_bytes())
    if kind == "prefix":
        path.write_bytes(random.randbytes(100) + bytes(data))
        return kind
    # (offset in the local header, offset in the directory, format) of a field
    fields = {"version": (4, 6, "<H"), "flags": (6, 8, "<H"), "method": (8, 10, "<H"), "crc": (14, 16, "<I"),
              "compressed size": (18, 20, "<I"), "size": (22, 24, "<I"), "offset": (None, 42, "<I")}  # fmt: skip
    name = f"{victim}.npy".encode()
    local, entry = data.find(name) - 30, data.rfind(name) - 46
    if kind == "name":
        new = random.choice([name.upper(), b"\xff" * len(name), b"\x1b" * len(name), name[::-1], b"\0" * len(name)])
        for place in random.choice([[local + 30], [entry + 46], [local + 30, entry + 46]]):
            data[place : place + len(name)] = new
    elif kind in fields:
        low, high, form = fields[kind]
        most = 2 ** (8 * struct.calcsize(form)) - 1
        value = random.choice([1, 8, 9, 12, 14, 93, 99, 0x800, 0x41]) if form == "<H" else random.choice(SIZES)
        for place in random.choice([[entry + high], [entry + high, None if low is None else local + low]]):
            if place is not None:
                struct.pack_into(form, data, place, min(value, most))
        kind += f" {value}"
    path.write_bytes(bytes(data))
    return f"{kind} of {victim}"


def _bombs(arrays: Arrays, path: Path, random: Random, shared: Path) -> str:
    """Write a small archive whose member unpacks to gigabytes."""
    members = {name: _npy(value) for name, value in arrays.items()}
    victim = random.choice(["other", "x", "edge_index", "train_mask", "x_data", "edge_weight"])
    rows, gib = random.choice([NODES, 2, 1]), random.choice([3, 3, 40])
    columns = (gib << 28) // rows
    header = random.choice([f"({rows}, {columns})", f"({rows}, {columns})", f"({rows * columns},)", "(24, 5)"])
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {header}, }}\n".encode()
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    _zip(path, {name: data for name, data in members.items() if name != victim}, random)
    packed, crc, size = _zeros(head, 4 * rows * columns)
    data = path.read_bytes()
    start = data.rfind(b"PK\x05\x06")
    count, length, directory = struct.unpack("<HII", data[start + 10 : start + 20])
    name = f"{victim}.npy".encode()
    wide = struct.pack("<HHQQ", 1, 16, size, len(packed))
    fixed = struct.pack("<HHHHHIIIHH", 45, 0, 8, 0, 0, crc, 2**32 - 1, 2**32 - 1, len(name), len(wide))
    local = b"PK\x03\x04" + fixed + name + wide + packed
    entry = b"PK\x01\x02" + struct.pack("<H", 45) + fixed + struct.pack("<HHHII", 0, 0, 0, 0, directory) + name + wide
    listed = data[directory : directory + length] + entry
    end = struct.pack("<HHHHIIH", 0, 0, count + 1, count + 1, len(listed), directory + len(local), 0)
    path.write_bytes(data[:directory] + local + listed + b"PK\x05\x06" + end)
    return f"{gib} GiB of {victim} {header} in {len(packed) >> 10} KiB"


def _zeros(head: bytes, length: int) -> tuple[bytes, int, int]:
    """Return (deflated, some checksum, size) of a header and zeros; equal blocks of zeros are packed only once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    last = packer.compress(bytes(length % (1 << 24))) + packer.flush()
    return first + block * (length >> 24) + last, 0, len(head) + length
