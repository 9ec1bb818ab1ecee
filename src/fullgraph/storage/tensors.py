"""Tensors in a safetensors file, with a checksum of names, types, shapes and bytes in its metadata."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fullgraph.errors import Damaged, explain, one_line
from fullgraph.storage.atomic import whole_file

if TYPE_CHECKING:  # a launcher writes no tensors and must start quickly
    from torch import Tensor

CHECKSUM = "crc32"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write named tensors with metadata."""
    from safetensors.torch import save

    kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    about = dict(about or {})
    data = save(kept, {**about, CHECKSUM: str(_checksum(kept, about))})
    with whole_file(path) as staged:
        staged.write_bytes(data)


def read_tensors(path: Path, *, fix: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata that `write_tensors` wrote; raise one line that ends with `fix` otherwise."""
    from safetensors import SafetensorError, safe_open

    try:
        if path.exists() and not path.is_file():  # opening a pipe without a writer would block
            raise Damaged(f"{path} is not a plain file; {fix}")
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # `file` has no iterator
    except Damaged:
        raise
    except OSError as error:
        raise explain(error, path) or Damaged(f"cannot read {path} ({one_line(error)}); {fix}") from None
    except (SafetensorError, ValueError, RuntimeError, TypeError, KeyError, OverflowError) as error:
        raise Damaged(f"{path} is damaged ({one_line(error, 100)}); {fix}") from None
    if about.pop(CHECKSUM, None) != str(_checksum(tensors, about)):
        raise Damaged(f"{path} is damaged (its checksum does not match); {fix}")
    return tensors, about


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> int:
    import torch

    crc = zlib.crc32(json.dumps(dict(sorted(about.items()))).encode())
    for name, value in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), crc)
        if value.numel():
            crc = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
