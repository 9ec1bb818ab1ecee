"""How files of ours are written whole, locked, and read back: the only code that renames, syncs or parses them."""

from fullgraph.storage.document import (
    checksum,
    parse_json,
    read_document,
    read_record,
    read_text,
    record_of,
    sealed,
    unsealed,
    write_document,
)
from fullgraph.storage.lock import FolderLock
from fullgraph.storage.tensors import read_tensors, write_tensors
from fullgraph.storage.whole import (
    held,
    remove_if_dead,
    remove_whole,
    scratch,
    settle,
    sweep,
    whole_file,
    whole_folder,
    write_whole,
)

__all__ = [
    "FolderLock",
    "checksum",
    "held",
    "parse_json",
    "read_document",
    "read_record",
    "read_tensors",
    "read_text",
    "record_of",
    "remove_if_dead",
    "remove_whole",
    "scratch",
    "sealed",
    "settle",
    "sweep",
    "unsealed",
    "whole_file",
    "whole_folder",
    "write_document",
    "write_tensors",
    "write_whole",
]
