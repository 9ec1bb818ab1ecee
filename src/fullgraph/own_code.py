"""Show errors in users' files as the user's: one line with file and line, then only the user's frames.

with own_code(loss):                     # an exception in this block becomes an OwnCodeError if it passed
    found = loss(logits, target)         # through a user's file, or if `loss` is the user's
if found is None:
    raise unfit(loss, "returned nothing: return one number per row")
"""

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial, wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from fullgraph.errors import InputError, PeerLost, RankFailed, lacks_memory, one_line

P = ParamSpec("P")
R = TypeVar("R")
PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Folders that hold no user files: this package, Python's library, installed packages.
LIBRARIES = (PACKAGE, *{os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")})
INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
CONSOLES = ("<stdin>", "<ipython")  # code typed there has no file, and is the user's
DEFINITION = "own_definition"  # attribute of a class that describes a user's class
MOST_TRACE = 8_000  # characters

_named: set[str] = set()  # files of installed modules that a user named as a model, loss, ...


class OwnCodeError(InputError):
    """Something in a user's file is wrong. The text begins with file and line; `trace` holds the user's frames."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace
        if trace:
            self.add_note(trace.rstrip("\n"))  # Python prints it below the line
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = _print


@contextmanager
def own_code(*things: object, fix: str = "", torch_alone: bool = False) -> Iterator[None]:
    """Raise errors of users' files as OwnCodeError, and all others unchanged.

    things: the objects called in the block. An error that passed through no user file belongs to the first of them that
    is a user's; with torch_alone, only if torch raised it. fix: text to add to the error's line.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        own = as_own(error, () if torch_alone and not _of_torch(error) else things, fix)
        if own is None or own is error:
            raise
        raise own from None


def in_users_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that users call: errors of their files leave it as OwnCodeErrors, without frames inside."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with own_code():
                return function(*args, **kwargs)
        except OwnCodeError as error:
            raise error.with_traceback(None) from None

    return call


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that nobody caught; of an OwnCodeError only the frames of users' files."""
    if isinstance(error, OwnCodeError):
        own = None
        for frame, line in reversed(list(traceback.walk_tb(trace))):
            if is_own_file(frame.f_code.co_filename):
                own = TracebackType(own, frame, frame.f_lasti, line)
        trace = own
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def as_own(error: BaseException, things: Iterable[object] = (), fix: str = "") -> OwnCodeError | None:
    """The error as an OwnCodeError if it comes from a user's code; else None."""
    if isinstance(error, OwnCodeError):
        return error
    if isinstance(error, PeerLost | RankFailed) or lacks_memory(error) or _is_of_ranks(error):
        return None
    frames = own_frames(error)
    theirs = next((thing for thing in things if not is_ours(thing)), None)
    if not frames and isinstance(error, SystemExit):
        frames = [f for f in traceback.extract_tb(error.__traceback__)[-1:] if not f.filename.startswith(PACKAGE)]
    if not frames and theirs is None:
        return None
    place = _at(frames[-1].filename, frames[-1].lineno) if frames else place_of(theirs)
    return OwnCodeError(
        _told(place, error, fix), _printable("".join(traceback.StackSummary.from_list(frames).format()))
    )


def unfit(thing: object, problem: str, label: str = "") -> InputError:
    """The error for a user's object, or its return value, that breaks a rule; `label`: its name in the text."""
    line = f"{label or label_of(thing)} {problem}"
    return InputError(line) if is_ours(thing) else OwnCodeError(f"{place_of(thing)}: {line}")


def told(found: object) -> str:
    """Describe a returned value in a few words."""
    shape = getattr(found, "shape", None)
    if found is None or shape is None:
        return "None" if found is None else f"a {type(found).__name__}"
    return f"a {type(found).__name__} of {found.dtype}, {tuple(shape)}".replace("torch.", "")  # type: ignore[attr-defined]


def told_by_rank(text: str, trace: str) -> InputError:
    """The InputError that another process reported."""
    return OwnCodeError(text, trace) if trace else InputError(text)


def name_file(file: str | None) -> None:
    """Treat an installed file as a user's own, because a run names something in it."""
    if (
        file is not None
        and not file.startswith(PACKAGE)
        and not any(f"{place}torch{os.sep}" in file for place in INSTALLED)
    ):
        _named.add(file)


def own_frames(error: BaseException | None) -> list[traceback.FrameSummary]:
    """The frames of users' files that an error, or the errors that caused it, passed through; the last is innermost."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        walked = [(f, line) for f, line in traceback.walk_tb(error.__traceback__) if is_own_file(f.f_code.co_filename)]
        if walked:
            return list(traceback.StackSummary.extract(iter(walked), capture_locals=False))
        error = error.__cause__
    return []


def is_ours(thing: object) -> bool:
    """Whether a class, function or value is defined in this package or built into Python."""
    home = getattr(_definition(thing), "__module__", None)
    return home is None or home.partition(".")[0] in ("fullgraph", "builtins")


def label_of(thing: object) -> str:
    """The user's name for an object."""
    found = _definition(thing)
    return one_line(getattr(found, "__qualname__", type(found).__name__), 60)


def place_of(thing: object) -> str:
    """The file and line where a user's object is defined."""
    found = _definition(thing)
    file, line = _defined(found)
    if file and not is_own_file(file):
        return f"{found.__module__}.{label_of(thing)}"  # an object of torch, for example
    return _at(file, line)


def _defined(found: Any) -> tuple[str, int]:
    code = getattr(found, "__code__", None)
    if code is not None:
        return code.co_filename, code.co_firstlineno
    with suppress(OSError, TypeError, SyntaxError, ValueError):
        return inspect.getsourcefile(found) or "", inspect.findsource(found)[1] + 1
    methods = [method.__code__ for method in vars(found).values() if hasattr(method, "__code__")]
    if methods:  # a notebook's class, in a process that has only its code
        first = min(methods, key=lambda code: code.co_firstlineno)
        return first.co_filename, first.co_firstlineno
    return str(getattr(sys.modules.get(found.__module__), "__file__", None) or ""), 1


def _definition(thing: object) -> Any:
    """The class or function behind a value, a bound method, a partial, or a value that describes a module."""
    if isinstance(thing, partial):
        return _definition(thing.func)
    if inspect.ismethod(thing):
        return thing.__func__
    found = thing if inspect.isroutine(thing) or isinstance(thing, type) else type(thing)
    return getattr(found, DEFINITION, found)


def _is_of_ranks(error: BaseException) -> bool:
    """Whether simulated ranks detected a disagreement; such an error is asked for by its type."""
    return isinstance(error, AssertionError) and _raised_in(error).startswith("fullgraph.transport")


def _of_torch(error: BaseException) -> bool:
    """Whether torch itself raised the error: in a backward pass, no frame tells whose operation failed."""
    return _raised_in(error).partition(".")[0] == "torch"


def _raised_in(error: BaseException) -> str:
    """The name of the module that raised the error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")) if frames else ""


def is_own_file(file: str) -> bool:
    """Whether a file is a user's: not ours, not Python's, not installed."""
    if file.startswith("<"):
        return file.startswith(CONSOLES)
    if file in _named:
        return True
    return not file.startswith(LIBRARIES) and not _is_installed(file)


@cache
def _is_installed(file: str) -> bool:
    """Return whether a file lies where packages are installed: such a folder of sys.path holds their *.dist-info."""
    return any(folder in file for folder in INSTALLED) or any(
        file.startswith(os.path.join(folder, "")) and _holds_packages(folder) for folder in sys.path if folder
    )


@cache
def _holds_packages(folder: str) -> bool:
    with suppress(OSError):
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    return False


def _at(file: str, line: int | None) -> str:
    """FILE:LINE, with a path relative to the current folder if the file lies below it."""
    with suppress(OSError, ValueError):
        here = os.path.join(os.getcwd(), "")
        file = file.removeprefix(here)
    return f"{one_line(file, 200)}:{line or 1}"


def _told(place: str, error: BaseException, fix: str) -> str:
    if isinstance(error, InputError):
        text = str(error)
    elif isinstance(error, SystemExit):
        text = f"SystemExit({error.code!r}): code that a run calls must not end the process"
    elif isinstance(error, SyntaxError):
        text = f"{type(error).__name__}: {one_line(error.msg, 200)}"
    else:
        kind, text = type(error).__name__, one_line(error, 300)
        text = kind if text in ("", kind) else f"{kind}: {text}"
    return f"{place}: {text}{f'; {fix}' if fix else ''}"


def of_file(error: BaseException, file: str) -> OwnCodeError | None:
    """The error for a user's file or module that could not run, at the line that caused it."""
    own = as_own(error)
    if isinstance(error, InputError):
        return own
    if isinstance(error, SyntaxError):  # the file did not begin to run
        pointed = "".join(traceback.format_exception_only(error)[:-1])
        own = OwnCodeError(_told(_at(error.filename or file, error.lineno), error, ""), _printable(pointed))
    if own is None and file.endswith(".py"):  # the file could not even be read as Python
        own = OwnCodeError(_told(_at(file, None), error, ""))
    return own and OwnCodeError(f"{own}; the file cannot be run", own.trace)


def _printable(lines: str) -> str:
    """A user's lines, made safe for a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in lines[-MOST_TRACE:])
