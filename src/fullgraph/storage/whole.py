"""Write a file or a folder so that it is there whole or not at all, also after a kill or a power cut.

    1. write under a staged name beside the final one      .NAME.3f9a1c02.new
    2. sync every byte of it
    3. rename it to its final name
    4. sync the folder that holds the name

The writer holds a lock on what it stages. The kernel drops that lock when the writer dies, however it dies, so `sweep`
can tell what a dead writer left behind from what a living one is still writing.
"""

import ctypes
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from fullgraph.errors import InputError

_STAGED = re.compile(r"\..+\.[0-9a-f]{8}\.new")
_HERE, _RENAME_EXCHANGE = -100, 2  # Linux's AT_FDCWD, and the flag of renameat2


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A new, empty file to write to; it takes the name `path` when the block ends well, and vanishes otherwise."""
    with _staged(Path(path), folder=False) as staged:
        yield staged


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """The same for a folder; a folder that stands at `path` stays until then, and is replaced in one step."""
    with _staged(Path(path), folder=True) as staged:
        yield staged


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder inside `folder` for what is on its way; it vanishes with the block, or is swept if the writer dies."""
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    staged = _name(folder / "scratch")
    staged.mkdir()
    try:
        with held(staged):
            yield staged
    finally:
        _remove(staged)


def write_whole(path: Path, data: str | bytes) -> None:
    with whole_file(path) as staged:
        staged.write_bytes(data.encode(errors="backslashreplace") if isinstance(data, str) else data)


@contextmanager
def _staged(final: Path, *, folder: bool) -> Iterator[Path]:
    final = Path(os.path.realpath(final))
    if os.path.exists(final) and not (final.is_file() or final.is_dir()):
        raise InputError(f"{final} is a device, pipe or socket, which a file must not replace; name another")
    staged = _name(final)
    staged.mkdir() if folder else staged.touch(exist_ok=False)
    try:
        with held(staged):
            yield staged
            settle(staged, final)
    finally:
        _remove(staged)


def _name(final: Path) -> Path:
    return final.with_name(f".{final.name[:200]}.{uuid4().hex[:8]}.new")


def settle(staged: Path, final: Path) -> None:
    """Give what is staged its final name, for good; what had that name takes the staged one and is removed."""
    sync(staged)
    if staged.is_dir() and os.path.lexists(final):
        _exchange(staged, final)
    else:
        os.replace(staged, final)
    _sync_one(final.parent)
    _remove(staged)


def remove_whole(path: Path) -> None:
    """Remove a folder so that a kill on the way leaves nothing under its name."""
    retired = _name(path)
    os.rename(path, retired)
    _remove(retired)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock that tells others that this process still writes `path`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks; `sweep` then leaves everything alone
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def sweep(folder: Path, name: str = "*") -> None:
    """Remove what dead writers of `name` left staged in `folder`, and finish a swap that was cut short."""
    for path in folder.glob(f".{name}.*.new"):
        if _STAGED.fullmatch(path.name):
            remove_if_dead(path)
    for retired in folder.glob(f".{name}.old"):
        final = retired.with_name(retired.name[1 : -len(".old")])
        if os.path.lexists(final):
            _remove(retired)
        else:
            os.rename(retired, final)


def remove_if_dead(path: Path) -> None:
    """Remove a file or folder whose writer is gone; leave it where nobody can tell."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    except OSError:
        pass
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Have every byte below `path` on the disk, names included."""
    if path.is_dir():
        for inner in path.iterdir():
            sync(inner)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(staged: Path, final: Path) -> None:
    """Swap two names in one step; where the system cannot, in two, and `sweep` finishes what a kill cut short."""
    if _swap_at_once(staged, final):
        return
    retired = final.with_name(f".{final.name}.old")
    os.rename(final, retired)
    try:
        os.rename(staged, final)
    except OSError:
        os.rename(retired, final)
        raise
    _remove(retired)


def _swap_at_once(one: Path, other: Path) -> bool:
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Python has no name for it
    return rename is not None and not rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
