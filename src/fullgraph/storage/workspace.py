"""A folder of our own beside what we write. Files on their way lie in it, and nothing outside one is ever removed.

    .fullgraph-TOKEN/       TOKEN: 128 random bits; mode 01700, which nobody else gives a folder
        .fullgraph          the mark: TOKEN again; every process that works here holds a lock on it
        new, old, gone      what is on its way in, what it replaces, what is to be removed

Whatever is to be removed is first moved into such a folder. `_clear` is the only code that removes files: it takes an
open folder of this user's with our mark, its own token and no living holder. The kernel drops the lock when a process
dies, however it dies, so `sweep` can tell what a dead process left behind from what a living one works on.
"""

import fcntl
import os
import re
import shutil
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
    """A workspace inside `folder`; it is removed with all that is in it when its owner leaves.

    token: of one that several processes share, each of which names it; it is a new one otherwise. owner: whether this
    process is the one to remove it; it leaves last, unless it fails.
    """
    path, handle, mark = _enter(folder, token)
    done = False
    try:
        yield path
        done = True
    finally:
        with suppress(OSError):  # then `sweep` does it
            if owner and (done or _lock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB) or not token):
                _clear(path, handle, mark)
        _close(mark, handle)


def _enter(folder: Path, token: str) -> tuple[Path, int, int]:
    """Make or join a workspace: its path, the open folder, and its open mark."""
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
            # It may have been swept between these lines: the token is written under the lock alone.
            if os.fstat(mark).st_nlink:
                os.pwrite(mark, path.name[-32:].encode(), 0)
                return path, handle, mark
        except FileNotFoundError:
            pass
        except BaseException:
            _close(handle, mark)
            raise
        _close(handle, mark)
    raise OSError(f"{folder}: no folder of our own could be made there")


def _close(*handles: int) -> None:
    for handle in handles:
        if handle >= 0:
            os.close(handle)


def _lock(mark: int, kind: int) -> bool:
    try:
        fcntl.flock(mark, kind)
    except OSError:  # some network file systems have no locks; `sweep` then leaves everything alone
        return False
    return True


def sweep(folder: Path) -> None:
    """Remove workspaces that dead processes left in `folder`, and finish a swap that was cut short."""
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
            if born and not inside:  # killed before it was marked, or when only the folder itself was left
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
    """Remove a workspace: the open folder `handle`, if its open mark says that it is the one that `path` names."""
    about, named = os.fstat(mark), _NAME.fullmatch(path.name)
    ours = stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and about.st_uid == os.geteuid()
    if not (ours and named and os.pread(mark, 100, 0) == named[1].encode()):
        return
    _bring_back(path, handle)
    for name in os.listdir(handle):
        if name != MARK:
            if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=handle)
            else:
                os.unlink(name, dir_fd=handle)
    if os.listdir(handle) == [MARK]:
        os.unlink(MARK, dir_fd=handle)
        os.rmdir(path)  # which takes an empty folder only


def _bring_back(path: Path, handle: int) -> None:
    """Give what was moved away to be replaced its name again, where nothing has taken that."""
    with suppress(OSError):
        for name in os.listdir(path / OLD):
            if not os.path.lexists(path.parent / name):
                os.rename(f"{OLD}/{name}", path.parent / name, src_dir_fd=handle)
