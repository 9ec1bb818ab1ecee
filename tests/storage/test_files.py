"""Files are read back as written; anything else is one line that names the file."""

import json
import os
import subprocess
import sys
from random import Random

import pytest
import torch

from fullgraph.errors import Damaged, InputError
from fullgraph.storage import FolderLock, read_document, read_tensors, write_document, write_tensors

TREE = {"name": "é", "numbers": [1, 2.5, -3], "inner": {"yes": True, "no": None}}
TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.zeros(0, dtype=torch.int64),
    "c": torch.tensor([1, 0, 1], dtype=torch.bool),
    "d": torch.randn(5).to(torch.bfloat16),
    "scalar": torch.tensor(3),
}


def test_documents_come_back(tmp_path):
    write_document(tmp_path / "a.json", TREE)
    assert read_document(tmp_path / "a.json", fix="fix") == TREE
    assert json.loads((tmp_path / "a.json").read_text())["name"] == "é"


def test_a_document_holds_no_number_that_json_lacks(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_document(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"a": 1}', '{"a": NaN, "checksum": 1}', '{"a": 1e999, "checksum": 1}', "[" * 5000,
     '{"a": 1, "a": 2, "checksum": 1}', '{"checksum": "x"}', "\x00", '{"a": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_other_texts_are_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(Damaged, match=r"^[^\n]*a\.json[^\n]*; then do this$"):
        read_document(tmp_path / "a.json", fix="then do this")


def test_a_checksum_of_another_type_is_refused(tmp_path):
    write_document(tmp_path / "a.json", TREE)
    found = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps({**found, "checksum": float(found["checksum"])}))
    with pytest.raises(Damaged, match="its checksum does not match"):
        read_document(tmp_path / "a.json", fix="fix")


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "folder").mkdir()
    for name in ("bytes", "folder", "nothing", "x" * 300, "nul\0"):
        with pytest.raises((InputError, ValueError), match=r"fix|null"):
            read_document(tmp_path / name, fix="fix")


def edited(data, random):
    """Bytes that were changed, cut out, doubled or cut off."""
    data = bytearray(data)
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(data))
        kind = random.choice(["flip", "set", "cut", "double", "truncate"])
        if kind == "flip":
            data[place] ^= 1 << random.randrange(8)
        elif kind == "set":
            data[place] = random.randrange(256)
        elif kind == "cut":
            del data[place : place + random.randint(1, 8)]
        elif kind == "double":
            data[place:place] = data[place : place + random.randint(1, 40)]
        else:
            del data[place:]
        if not data:
            return bytes(data)
    return bytes(data)


def test_no_edit_of_a_document_passes(tmp_path):
    path, random = tmp_path / "a.json", Random(0)
    write_document(path, TREE)
    good = path.read_bytes()
    refused = 0
    for _ in range(1000):
        path.write_bytes(edited(good, random))
        try:
            assert read_document(path, fix="fix") == TREE  # an edit of white space, or one that undid itself
        except Damaged:
            refused += 1
    assert refused > 900


def test_tensors_come_back(tmp_path):
    write_tensors(tmp_path / "a.safetensors", TENSORS, {"epoch": "3"})
    tensors, about = read_tensors(tmp_path / "a.safetensors", fix="fix")
    assert about == {"epoch": "3"}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o644 & ~_umask_bits()


def _umask_bits():
    old = os.umask(0)
    os.umask(old)
    return old


def test_no_edit_of_tensors_passes(tmp_path):
    path, random = tmp_path / "a.safetensors", Random(0)
    write_tensors(path, TENSORS, {"epoch": "3"})
    good = path.read_bytes()
    refused = 0
    for _ in range(1000):
        path.write_bytes(edited(good, random))
        try:
            tensors, about = read_tensors(path, fix="fix")
            assert about == {"epoch": "3"}
            assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
        except Damaged:
            refused += 1
    assert refused > 900


def test_tensors_of_others_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(3)}, tmp_path / "other.safetensors")
    for name in ("other.safetensors", "nothing.safetensors"):
        with pytest.raises(InputError, match=rf"^[^\n]*{name}[^\n]*$"):
            read_tensors(tmp_path / name, fix="fix")


HOLD = """
import sys
from pathlib import Path
from fullgraph.storage import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_holds_a_folder(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"is in use by process {holder.pid} on .*; wait for it"):
            FolderLock(tmp_path)
        holder.kill()
        holder.wait()
        FolderLock(tmp_path).close()
    with FolderLock(tmp_path):
        pass
