"""Errors that users meet, and the one place that turns another library's error into one line."""

import difflib
import errno
import re
import signal
from collections.abc import Iterable
from pathlib import Path


class InputError(ValueError):
    """The user's input is wrong; the text is one line that says what is wrong and how to fix it."""


class Damaged(InputError):
    """A file of fullgraph has changed since it was written; the text names the file and the fix."""


class Diverged(InputError):
    """Training left the range of numbers; the text names the step and the likely cause."""


class RankFailed(RuntimeError):
    """A rank died; the text is one line that names it."""


class PeerLost(RuntimeError):
    """A message never arrived, or its connection broke; the text names the ranks and the message."""


class Interrupted(BaseException):
    """A signal asked the run to stop; the text says what was saved and how to continue.

    It is no Exception: code that catches all failures of a library must let it pass, as it lets KeyboardInterrupt pass.
    """

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number  # the signal's number


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGTERM or SIGRTMIN+5: Python names only the first and last real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = getattr(signal, "SIGRTMIN", number + 1)
        return f"SIGRTMIN+{number - first}" if number > first else f"signal {number}"


def text_of(error: object) -> str:
    """The error's text; a user's exception may fail to produce one."""
    try:
        return str(error)
    except Exception as trouble:
        return f"{type(error).__name__}, whose text fails with {type(trouble).__name__}"


def printable(text: object) -> str:
    """The text on one line, with control characters escaped, so that no terminal interprets them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def one_line(error: object, limit: int = 300) -> str:
    """A text, or an exception's text, on one printable line, shortened to `limit`.

    Control characters are escaped: names inside a user's file may hold terminal commands.
    """
    text = " ".join(text_of(error).split()) or ("" if isinstance(error, str) else type(error).__name__)
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def nearest(name: object, known: Iterable[str]) -> str:
    """` (did you mean NAME?)` if a known name looks like the unknown one; else an empty text."""
    by_lower = {word.lower(): word for word in known}
    near = difflib.get_close_matches(str(name).lower()[:100], by_lower, n=1, cutoff=0.6)
    return f" (did you mean {one_line(by_lower[near[0]], 100)}?)" if near else ""


FOLDER = "choose another folder"
_ERRNO = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would be larger than allowed; raise `ulimit -f`",
    errno.EACCES: f"no permission; {FOLDER}",
    errno.EPERM: f"no permission; {FOLDER}",
    errno.EROFS: f"the file system is read-only; {FOLDER}",
    errno.EEXIST: f"a file of that name is in the way; {FOLDER}",
    errno.ENOTEMPTY: f"a folder of that name is in the way; {FOLDER}",
    errno.ENOTDIR: f"a part of this path is a file, not a folder; {FOLDER}",
    errno.EISDIR: "it is a folder; name a file",
    errno.ENOENT: "it does not exist; correct the path",
    errno.ENAMETOOLONG: "the path is too long; choose a shorter one",
    errno.EINVAL: "the path is not a valid one; choose another",
    errno.ELOOP: "its symbolic links go in circles; choose another path",
    errno.EIO: "the disk reports an error; check it, or choose another one",
    errno.ESTALE: "the network file system lost it; mount it again",
    errno.EMFILE: "too many open files; raise `ulimit -n`",
    errno.ENFILE: "too many open files on this machine; close some programs",
    errno.ENOMEM: "out of memory; use more --parts over more machines, or a larger one",
    errno.EAGAIN: "no more processes or threads are allowed; raise `ulimit -u`, or use fewer --parts or --threads",
}
# Errors that libraries below Python report only in words.
_WORDS = [
    (r"No space left on device|\d+ requested and \d+ written", errno.ENOSPC),
    (r"can't allocate memory|Unable to allocate|std::bad_alloc|out of memory|Cannot allocate memory", errno.ENOMEM),
    (r"failed to map segment from shared object", errno.ENOMEM),  # from the loader of libraries
    (r"Too many open files", errno.EMFILE),
    (r"embedded null (byte|character)", errno.EINVAL),
    (r"can't start new thread|Resource temporarily unavailable", errno.EAGAIN),
]
_NETWORK = [
    (
        r"[Uu]nable to find (?:address for|interface)|[Uu]nknown interface|ENODEV|No such device|ifa != nullptr",
        "no network interface of the name in GLOO_SOCKET_IFNAME; set it to one that `ip link` lists",
    ),
    (
        r"EADDRINUSE|Address already in use|EADDRNOTAVAIL|Cannot assign requested address",
        "no free port: another program holds MASTER_PORT, or every port is in use; choose another or close some",
    ),
]


def lacks_memory(error: BaseException) -> bool:
    """Whether a library ran out of memory."""
    told = text_of(error)
    return isinstance(error, MemoryError) or any(n == errno.ENOMEM and re.search(words, told) for words, n in _WORDS)


def explain(error: BaseException, where: Path | None = None) -> InputError | None:
    """The line for an error that comes from the user's machine or input; None for any other error.

    where: the folder that was being written, if the error names no file.
    """
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        if isinstance(cause, InputError):
            return cause
        text = text_of(cause)
        for pattern, line in _NETWORK:
            if re.search(pattern, text) and not (isinstance(cause, OSError) and cause.filename):
                return InputError(line)
        number = cause.errno if isinstance(cause, OSError) else None
        if isinstance(cause, MemoryError):
            number = errno.ENOMEM
        for pattern, known in _WORDS:
            if number is None and re.search(pattern, text):
                number = known
        if number in _ERRNO:
            # For a file that was being written, use its final name, not its temporary name.
            name = cause.filename2 or cause.filename if isinstance(cause, OSError) else None
            place = name if isinstance(name, str) else None if number in (errno.ENOMEM, errno.EAGAIN) else where
            return InputError(_ERRNO[number] if place is None else f"{place}: {_ERRNO[number]}")
        cause = cause.__cause__ or cause.__context__
    return None
