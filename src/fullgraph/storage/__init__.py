"""How files of ours are written whole, locked, and read back: the only code that renames, syncs or parses them."""

from fullgraph.storage.document import parse_json, read_document, read_text, sealed, unsealed, write_document
from fullgraph.storage.lock import FolderLock
from fullgraph.storage.tensors import read_tensors, write_tensors
from fullgraph.storage.whole import (
    held,
    remove_if_dead,
    remove_whole,
    settle,
    sweep,
    whole_file,
    whole_folder,
    write_whole,
)

__all__ = [
    "FolderLock",
    "held",
    "parse_json",
    "read_document",
    "read_tensors",
    "read_text",
    "remove_if_dead",
    "remove_whole",
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
