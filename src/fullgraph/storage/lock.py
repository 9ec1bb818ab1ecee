"""One writer a folder: the lock that a run holds on its folder, and that goes with its last process."""

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fullgraph.errors import InputError, one_line

FILE = ".lock"


class FolderLock:
    """Holds `folder` until it is closed, or until this process and all that inherited `handle` are gone.

    It is the kernel's own lock on a file in the folder, so it needs no cleaning up and never outlives its holders. The
    file says who holds it, for the others' error line.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            os.close(self.handle)
            raise InputError(f"{folder} is in use{holder}; wait for it to end, or choose another folder") from None
        except OSError as error:  # a file system without locks: one writer is then the user's own promise
            del error
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.truncate(self.handle, 0)
        os.pwrite(self.handle, json.dumps(about).encode(), 0)

    def _holder(self) -> str:
        with suppress(ValueError, KeyError, TypeError, OSError):
            about = json.loads(os.pread(self.handle, 1000, 0))
            text = one_line(f"process {about['pid']} on {about['host']} since {about['since']}")
            return f" by {text}"
        return ""

    def close(self) -> None:
        os.close(self.handle)

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
