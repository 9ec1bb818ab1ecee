"""Read, write and lock the package's files: the only code that renames, syncs or parses them."""

from fullgraph.storage.atomic import (
    discard,
    open_to_append,
    refuse_foreign,
    refuse_link,
    scratch,
    settle,
    whole_file,
    whole_folder,
    write_whole,
)
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
from fullgraph.storage.lock import FolderLock, in_use
from fullgraph.storage.tensors import read_tensors, write_tensors
from fullgraph.storage.workspace import NEW, sweep, workspace

__all__ = [
    "NEW",
    "FolderLock",
    "checksum",
    "discard",
    "in_use",
    "open_to_append",
    "parse_json",
    "read_document",
    "read_record",
    "read_tensors",
    "read_text",
    "record_of",
    "refuse_foreign",
    "refuse_link",
    "scratch",
    "sealed",
    "settle",
    "sweep",
    "unsealed",
    "whole_file",
    "whole_folder",
    "workspace",
    "write_document",
    "write_tensors",
    "write_whole",
]
