"""Write a file or a folder atomically: it exists completely or not at all, even after a kill or a power cut.

    1. write it inside a workspace beside its final name      .fullgraph-TOKEN/new
    2. sync every byte of it
    3. rename it to its final name
    4. sync the folder that holds the name

A final name that is a symbolic link is refused: the link's target does not belong to the package.
"""

import ctypes
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fullgraph.errors import InputError
from fullgraph.storage.workspace import GONE, NEW, OLD, sweep, workspace

_HERE, _RENAME_EXCHANGE = -100, 2  # Linux's AT_FDCWD, and a flag of renameat2
_HEAD = 4096  # bytes at the beginning of a file that are searched for `over`

Foreign = Callable[[Path], str]  # names the contents of a path that fullgraph did not write; empty if there are none


def nothing_foreign(path: Path) -> str:
    """For paths that can only hold files of fullgraph."""
    return ""


@contextmanager
def whole_file(path: str | Path, over: str = "") -> Iterator[Path]:
    """Yield a new, empty file. It gets the name `path` if the block succeeds, and is removed otherwise.

    over: for names that users choose: an existing file is replaced only if its beginning contains this text.
    """
    final = _final(path)
    _check_file(final, over)
    with workspace(final.parent) as work, _naming(work / NEW, final):
        staged = work / NEW
        os.close(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        yield staged
        settle(staged, final)


@contextmanager
def whole_folder(path: str | Path, foreign: Foreign) -> Iterator[Path]:
    """Like `whole_file`, for a folder. An existing folder is replaced in one step if it holds nothing foreign."""
    final = _final(path)
    with workspace(final.parent) as work, _naming(work / NEW, final):
        (work / NEW).mkdir()
        yield work / NEW
        settle(work / NEW, final, foreign)


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder inside `folder`. It is removed after the block, or swept if its writer dies."""
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    with workspace(folder) as work:
        (work / NEW).mkdir()
        yield work / NEW


def write_whole(path: Path, data: str | bytes, over: str = "") -> None:
    with whole_file(path, over) as staged:
        staged.write_bytes(data.encode(errors="backslashreplace") if isinstance(data, str) else data)


def settle(staged: Path, final: Path, foreign: Foreign = nothing_foreign) -> None:
    """Move a path out of a workspace to its final name; the previous owner of the name goes with the workspace."""
    refuse_link(final)
    sync(staged)
    if staged.is_dir() and os.path.lexists(final):
        refuse_foreign(final, foreign)
        _exchange(staged, final, foreign)
    else:
        os.replace(staged, final)
    _sync_one(final.parent)


def discard(path: Path, foreign: Foreign) -> bool:
    """Remove a path that holds nothing foreign. A kill meanwhile leaves nothing under its name."""
    if not os.path.lexists(path) or foreign(path):
        return False
    with workspace(path.parent) as work:
        gone = work / GONE
        os.rename(path, gone)
        if foreign(gone):  # a foreign file appeared between the two lines
            os.rename(gone, path)
            return False
    return True


def open_to_append(path: Path) -> int:
    """Open a plain file with one name for appending, creating it if missing; refuse links and pipes."""
    refuse_link(path)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
        os.close(handle)
        raise InputError(f"{path} is not a plain file with a single name; move it away, or choose another folder")
    return handle


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise InputError(f"{path} is a symbolic link; name its target instead")


def _final(path: str | Path) -> Path:
    """Resolve the folders before a name, but not the name: a link's target must not be written."""
    path = Path(path)
    if path.name in ("", ".."):
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent)) / path.name


def _check_file(final: Path, over: str) -> None:
    try:
        about = os.lstat(final)
    except OSError:
        return
    target = os.stat(final) if os.path.exists(final) else about
    if not (stat.S_ISREG(target.st_mode) or stat.S_ISDIR(target.st_mode) or stat.S_ISLNK(target.st_mode)):
        raise InputError(f"{final} is a device, pipe or socket and is not replaced; choose another name")
    refuse_link(final)
    if over and stat.S_ISREG(about.st_mode):
        handle = os.open(final, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if over.encode() not in os.pread(handle, _HEAD, 0):
                raise InputError(f"{final} exists and is not of this command; move it away, or choose another name")
        finally:
            os.close(handle)


@contextmanager
def _naming(staged: Path, final: Path) -> Iterator[None]:
    """Replace the staged path by the final path in errors of the system."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str) and error.filename.startswith(str(staged)):
            error.filename = str(final) + error.filename[len(str(staged)) :]
        raise


def refuse_foreign(path: Path, foreign: Foreign, name: Path | None = None) -> None:
    contents = foreign(path)
    if contents:
        raise InputError(f"{name or path} holds {contents}; move that away, or choose another name")


def sync(path: Path) -> None:
    """Write every byte below `path` to the disk, names included."""
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


def _exchange(staged: Path, final: Path, foreign: Foreign) -> None:
    """Swap two names in one step. Systems without such a call need two steps; `sweep` completes a swap cut short."""
    if _swap_at_once(staged, final):
        try:
            refuse_foreign(staged, foreign, final)
        except InputError:
            _swap_at_once(staged, final)
            raise
        return
    retired = staged.with_name(OLD) / final.name
    retired.parent.mkdir()
    os.rename(final, retired)
    try:
        refuse_foreign(retired, foreign, final)
        os.rename(staged, final)
    except BaseException:
        os.rename(retired, final)
        raise


def _swap_at_once(one: Path, other: Path) -> bool:
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Python does not offer this call
    return rename is not None and not rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE)
