"""The one error a user's input may raise."""

import errno
import re
from pathlib import Path


class InputError(ValueError):
    """The user's input is wrong; the text is one line that says what and how to fix it."""


_STORAGE = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EACCES: "no permission to write; choose another folder",
    errno.EPERM: "no permission to write; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EEXIST: "a file of that name is in the way; choose another folder",
    errno.ENOTDIR: "a part of this path is a file, not a folder; choose another folder",
}


def storage_error(error: BaseException | None, folder: Path) -> InputError | None:
    """An InputError where a failure comes down to the folder that is written to, else None."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        number = error.errno if isinstance(error, OSError) else None
        # Libraries below Python report only a text, numpy only how much it wrote.
        if number is None and re.search(r"No space left on device|\d+ requested and \d+ written", str(error)):
            number = errno.ENOSPC
        if number in _STORAGE:
            return InputError(f"cannot write to {folder}: {_STORAGE[number]}")
        error = error.__cause__ or error.__context__
    return None
