"""One writer per folder: a run locks its folder, and the lock ends with the run's last process."""

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fullgraph.errors import InputError, one_line
from fullgraph.storage.atomic import discard, refuse_link
from fullgraph.storage.workspace import NEW, workspace

FILE = ".fullgraph.lock"
SAYS = {"pid", "host", "since"}  # fields of every lock
_TRIES = 100


class FolderLock:
    """Locks `folder` until it is closed, or until this process and all that inherited `handle` have ended.

    It is the kernel's lock on a file in the folder, so it never outlives its holders. Only this user can open the
    file, so no other user can hold it. The file names the lock's holder and the files that its commands wrote.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for _ in range(_TRIES):
            self.handle, self.made = self._open()
            self.before = _first_object(self.handle)  # the previous holder's text
            try:
                fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self.handle)
                raise InputError(
                    f"{folder} is in use{self._holder()}; wait for it to end, or choose another folder"
                ) from None
            except OSError:  # the file system has no locks: the user must make sure that there is one writer
                break
            if os.fstat(self.handle).st_nlink:  # otherwise its holder just removed it
                self.before = _first_object(self.handle)
                break
            os.close(self.handle)
        wrote = self.before.get("wrote")
        self.wrote = [str(name) for name in wrote] if isinstance(wrote, list) else []
        self.note()

    def _open(self) -> tuple[int, bool]:
        """Open or create the lock's file; refuse, and do not change, a file of that name that is not a lock."""
        path = self.folder / FILE
        for _ in range(_TRIES):
            with suppress(FileExistsError, FileNotFoundError):  # another process created or removed it first
                return (self._open_existing(path), False) if os.path.lexists(path) else (self._create(path), True)
        raise InputError(f"{path} is created and removed again and again; choose another folder")

    def _create(self, path: Path) -> int:
        """Create the file under another name and fill it first, so that a user's file is never taken for a lock."""
        with workspace(self.folder) as work:
            handle = os.open(work / NEW, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                self._write(handle, [])
                with suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.link(work / NEW, path)
            except FileExistsError:
                os.close(handle)
                raise
            except OSError as error:
                os.close(handle)
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                return self._new_without_links(path)
            return handle

    def _new_without_links(self, path: Path) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._write(handle, [])
        return handle

    def _open_existing(self, path: Path) -> int:
        refuse_link(path)
        foreign = InputError(f"{path} is not a fullgraph lock; move it away, or choose another folder")
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise foreign
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        record = os.fstat(handle)
        owned = record.st_uid == os.geteuid() or os.geteuid() == 0
        if not stat.S_ISREG(record.st_mode) or not owned or not _first_object(handle).keys() >= SAYS:
            os.close(handle)
            raise foreign
        if stat.S_IMODE(record.st_mode) & 0o077:  # an older version let other users open it, and therefore lock it
            os.fchmod(handle, 0o600)
        return handle

    def claim(self, names: Iterable[str], known: Iterable[str] = ()) -> None:
        """Refuse if one of these names exists and no command of fullgraph wrote it; then record all names as written.

        known: names that fullgraph wrote although the lock does not record them.
        """
        names = list(names)
        older = bool(self.before) and "wrote" not in self.before  # an older version, which did not record names
        ours = {*self.wrote, *known, *(names if older else ())}
        taken = [name for name in names if os.path.lexists(self.folder / name) and name not in ours]
        if taken:
            self.remove()
            raise InputError(
                f"{self.folder} holds {', '.join(taken)}, which this would overwrite; choose another folder, or move "
                f"{'it' if len(taken) == 1 else 'them'} away"
            )
        self.wrote = list(dict.fromkeys([*self.wrote, *names]))
        self.note()

    def note(self, **creating: Any) -> None:
        """Record the holder, and the file that this process is creating."""
        self._write(self.handle, self.wrote, **creating)

    @staticmethod
    def _write(handle: int, wrote: list[str], **creating: Any) -> None:
        record = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        text = json.dumps({**record, "wrote": wrote, **creating}).encode() + b"\n"
        os.pwrite(handle, text, 0)
        os.truncate(handle, len(text))

    def _holder(self) -> str:
        record = self.before
        text = one_line(f"process {record.get('pid')} on {record.get('host')} since {record.get('since')}")
        return f" by {text}" if record else ""

    def remove(self) -> None:
        """Remove the file if this process created it."""
        if self.made:
            mine = os.fstat(self.handle).st_ino
            discard(self.folder / FILE, lambda path: "" if os.lstat(path).st_ino == mine else "another lock")

    def close(self) -> None:
        os.close(self.handle)

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def in_use(folder: Path) -> bool:
    """Whether a process of this machine holds the folder's lock. Reads the kernel's table, so it disturbs nobody."""
    try:
        inode = os.lstat(folder / FILE).st_ino
        held = Path("/proc/locks").read_text().split("\n")
    except OSError:
        return False
    fields = (line.split() for line in held)
    return any(len(one) > 5 and one[1] == "FLOCK" and one[5].rpartition(":")[2] == str(inode) for one in fields)


def _first_object(handle: int) -> dict[str, Any]:
    """Return the first object of a lock; the rest of a longer old text may follow it."""
    with suppress(ValueError, OSError, RecursionError):
        record, _ = json.JSONDecoder().raw_decode(os.pread(handle, 8000, 0).decode())
        return record if isinstance(record, dict) else {}
    return {}
