"""Workspaces: temporary folders beside final names. Nothing outside a workspace is ever removed.

    .fullgraph-TOKEN/       TOKEN: 128 random bits; mode 01700, which no other program sets on a folder
        .fullgraph          the mark: TOKEN again; every process that uses the workspace holds a lock on it
        new, old, gone      the new path, the path that it replaces, a path to be removed

A path is moved into a workspace before it is removed. `_clear` is the only code that removes files: it needs an open
folder of this user with our mark, its own token and no living holder. The kernel drops the lock when a process dies,
however it dies, so `sweep` can tell a dead process's files from those that a living process uses.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

MARK = ".fullgraph"
NEW, OLD, GONE = "new", "old", "gone"
_NAME = re.compile(r"\.fullgraph-([0-9a-f]{32})")
_BORN = stat.S_ISVTX | stat.S_IRWXU
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
_TRIES = 100


@contextmanager
def workspace(folder: Path, token: str = "", *, owner: bool = True) -> Iterator[Path]:
    """Yield a workspace inside `folder`; its owner removes it with all its contents.

    token: the shared name if several processes use one workspace; empty: a new name. owner: whether this process
    removes the workspace; the owner leaves last, unless it fails.
    """
    path, handle, mark = _enter(folder, token)
    done = False
    try:
        yield path
        done = True
    finally:
        with suppress(OSError):  # `sweep` removes it later
            if owner and (done or _lock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB) or not token):
                _clear(path, handle, mark)
        _close(mark, handle)


def _enter(folder: Path, token: str) -> tuple[Path, int, int]:
    """Create or join a workspace; return its path, the open folder and its open mark."""
    for _ in range(_TRIES):
        path = folder / f".fullgraph-{token or uuid4().hex}"
        try:
            os.mkdir(path, _BORN)
        except FileExistsError:
            if not token:
                continue
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder)) from None
        handle = mark = -1
        try:
            handle = os.open(path, _FOLDER)
            if os.fstat(handle).st_uid != os.geteuid():
                raise PermissionError(1, "it belongs to another user", str(path))
            mark = os.open(MARK, _FILE | os.O_CREAT, 0o600, dir_fd=handle)
            _lock(mark, fcntl.LOCK_SH)
            # A sweep may have removed it meanwhile: write the token only while holding the lock.
            if os.fstat(mark).st_nlink:
                os.pwrite(mark, path.name[-32:].encode(), 0)
                return path, handle, mark
        except FileNotFoundError:
            pass
        except BaseException:
            _close(handle, mark)
            raise
        _close(handle, mark)
    raise OSError(f"{folder}: no workspace could be created there")


def _close(*handles: int) -> None:
    for handle in handles:
        if handle >= 0:
            os.close(handle)


def _lock(mark: int, kind: int) -> bool:
    try:
        fcntl.flock(mark, kind)
    except OSError:  # some network file systems have no locks; `sweep` then removes nothing
        return False
    return True


def sweep(folder: Path) -> None:
    """Remove workspaces of dead processes in `folder`, and complete swaps that were cut short."""
    with suppress(OSError):
        names = [entry.name for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
        for name in names:
            with suppress(OSError):
                _sweep_one(folder / name)


def _sweep_one(path: Path) -> None:
    handle, mark = os.open(path, _FOLDER), -1
    try:
        about = os.fstat(handle)
        if about.st_uid != os.geteuid():
            return
        born = stat.S_IMODE(about.st_mode) & ~stat.S_ISGID == _BORN
        inside = os.listdir(handle)
        if MARK not in inside:
            if born and not inside:  # killed before the mark was written, or after it was removed
                os.rmdir(path)
            return
        if not stat.S_ISREG(os.stat(MARK, dir_fd=handle, follow_symlinks=False).st_mode):
            return
        mark = os.open(MARK, _FILE, dir_fd=handle)
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if born and inside == [MARK] and not os.fstat(mark).st_size:  # killed before the token was written
            os.pwrite(mark, path.name[-32:].encode(), 0)
        _clear(path, handle, mark)
    finally:
        _close(handle, mark)


def _clear(path: Path, handle: int, mark: int) -> None:
    """Remove the workspace with the open folder `handle` if its open mark holds the token in `path`."""
    about, named = os.fstat(mark), _NAME.fullmatch(path.name)
    ours = stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and about.st_uid == os.geteuid()
    if not (ours and named and os.pread(mark, 100, 0) == named[1].encode()):
        return
    _bring_back(path, handle)
    _empty(handle)
    if os.listdir(handle) == [MARK]:
        os.unlink(MARK, dir_fd=handle)
        os.rmdir(path)  # fails unless the folder is empty


def _empty(handle: int) -> None:
    """Remove everything but the mark from the open folder of a workspace.

    Inner folders move up into the workspace before they are opened, so that few descriptors are enough for any depth.
    Every call names its folder by a descriptor: nobody can put a link in the place of a folder meanwhile.
    """
    while names := [name for name in os.listdir(handle) if name != MARK]:
        for name in names:
            if not _is_folder(name, handle):
                os.unlink(name, dir_fd=handle)
                continue
            folder = os.open(name, _FOLDER, dir_fd=handle)
            try:
                for inner in os.listdir(folder):
                    if _is_folder(inner, folder):
                        os.rename(inner, uuid4().hex, src_dir_fd=folder, dst_dir_fd=handle)
                    else:
                        os.unlink(inner, dir_fd=folder)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=handle)


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _bring_back(path: Path, handle: int) -> None:
    """Restore the names of paths that were moved away, unless the names are in use."""
    with suppress(OSError):
        for name in os.listdir(path / OLD):
            if not os.path.lexists(path.parent / name):
                os.rename(f"{OLD}/{name}", path.parent / name, src_dir_fd=handle)
