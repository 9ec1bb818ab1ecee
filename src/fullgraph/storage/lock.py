"""One writer a folder: the lock that a run holds on its folder, and that goes with its last process."""

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from fullgraph.errors import InputError, one_line

FILE = ".fullgraph.lock"


class FolderLock:
    """Holds `folder` until it is closed, or until this process and all that inherited `handle` are gone.

    It is the kernel's own lock on a file in the folder, so it needs no cleaning up and never outlives its holders. The
    file says who holds it, and what that one noted, for whoever comes next.
    """

    def __init__(self, folder: Path) -> None:
        self.handle = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o644)
        self.before = self._read()  # what the last holder noted
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.handle)
            raise InputError(
                f"{folder} is in use{self._holder()}; wait for it to end, or choose another folder"
            ) from None
        except OSError:  # a file system without locks: that nobody else writes here is then the user's own promise
            pass
        else:
            self.before = self._read()
        self.note()

    def note(self, creating: str = "") -> None:
        """Say who holds the folder, and the name of what this process is creating in it."""
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        text = json.dumps({**about, "creating": creating}).encode()
        os.pwrite(self.handle, text, 0)
        os.truncate(self.handle, len(text))

    def _read(self) -> dict[str, Any]:
        with suppress(ValueError, OSError):
            about = json.loads(os.pread(self.handle, 4000, 0))
            return about if isinstance(about, dict) else {}
        return {}

    def _holder(self) -> str:
        about = self.before
        text = one_line(f"process {about.get('pid')} on {about.get('host')} since {about.get('since')}")
        return f" by {text}" if about else ""

    def close(self) -> None:
        os.close(self.handle)

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
