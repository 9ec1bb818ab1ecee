"""One writer a folder: the lock that a run holds on its folder, and that goes with its last process."""

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
from types import TracebackType
from typing import Any

from fullgraph.errors import InputError, one_line
from fullgraph.storage.atomic import discard, refuse_link
from fullgraph.storage.workspace import NEW, workspace

FILE = ".fullgraph.lock"
SAYS = {"pid", "host", "since"}  # what every lock says
_TRIES = 100


class FolderLock:
    """Holds `folder` until it is closed, or until this process and all that inherited `handle` are gone.

    It is the kernel's own lock on a file in the folder, so it never outlives its holders. Only this user can open the
    file, so nobody else can hold it. It says who holds the folder, and what its commands have written there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for _ in range(_TRIES):
            self.handle, self.made = self._open()
            self.before = _first_object(self.handle)  # what the last holder noted
            try:
                fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self.handle)
                raise InputError(
                    f"{folder} is in use{self._holder()}; wait for it to end, or choose another folder"
                ) from None
            except OSError:  # a file system without locks: that nobody else writes here is then the user's own promise
                break
            if os.fstat(self.handle).st_nlink:  # else its holder removed it just now
                self.before = _first_object(self.handle)
                break
            os.close(self.handle)
        wrote = self.before.get("wrote")
        self.wrote = [str(name) for name in wrote] if isinstance(wrote, list) else []
        self.note()

    def _open(self) -> tuple[int, bool]:
        """The lock's file, made or found; a file of that name that is not ours is refused, and not changed."""
        path = self.folder / FILE
        for _ in range(_TRIES):
            with suppress(FileExistsError, FileNotFoundError):  # another process was faster to make or to remove it
                return (self._found(path), False) if os.path.lexists(path) else (self._new(path), True)
        raise InputError(f"{path} is made and removed all the time; choose another folder")

    def _new(self, path: Path) -> int:
        """It gets its name when it says that it is ours, so that no file of the user's is ever taken for it."""
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

    def _found(self, path: Path) -> int:
        refuse_link(path)
        foreign = InputError(f"{path} is not a lock of ours; move it away, or choose another folder")
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise foreign
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        about = os.fstat(handle)
        owned = about.st_uid == os.geteuid() or os.geteuid() == 0
        if not stat.S_ISREG(about.st_mode) or not owned or not _first_object(handle).keys() >= SAYS:
            os.close(handle)
            raise foreign
        if stat.S_IMODE(about.st_mode) & 0o077:  # an older version let others open it, and so hold it
            os.fchmod(handle, 0o600)
        return handle

    def claim(self, names: Iterable[str], known: Iterable[str] = ()) -> None:
        """Refuse where one of these names is there that no command of ours wrote; note the others as ours from now on.

        known: names that are ours although the lock does not say so.
        """
        names = list(names)
        older = bool(self.before) and "wrote" not in self.before  # a version that did not note them wrote here
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
        """Say who holds the folder, and what this process is creating in it."""
        self._write(self.handle, self.wrote, **creating)

    @staticmethod
    def _write(handle: int, wrote: list[str], **creating: Any) -> None:
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        text = json.dumps({**about, "wrote": wrote, **creating}).encode() + b"\n"
        os.pwrite(handle, text, 0)
        os.truncate(handle, len(text))

    def _holder(self) -> str:
        about = self.before
        text = one_line(f"process {about.get('pid')} on {about.get('host')} since {about.get('since')}")
        return f" by {text}" if about else ""

    def remove(self) -> None:
        """Take away the file, if this process made it."""
        if self.made:
            mine = os.fstat(self.handle).st_ino
            discard(self.folder / FILE, lambda path: "" if os.lstat(path).st_ino == mine else "another lock")

    def close(self) -> None:
        os.close(self.handle)

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _first_object(handle: int) -> dict[str, Any]:
    """What a lock says; behind it there may be the rest of a longer text."""
    with suppress(ValueError, OSError, RecursionError):
        about, _ = json.JSONDecoder().raw_decode(os.pread(handle, 8000, 0).decode())
        return about if isinstance(about, dict) else {}
    return {}
