"""References to a user's classes and functions, `my_file.py:Name` or `package.module:Name`, which any process can find.

A file is run once per process, and only if it is named. A class of a notebook or of a script's main file is
`__main__:Name`: only processes that received it can find it.
"""

import base64
import importlib
import importlib.util
import inspect
import itertools
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from fullgraph.copied import copied
from fullgraph.errors import InputError, explain, one_line
from fullgraph.own_code import is_own_file, name_file, of_file

BEGUN = time.time()  # no user's file was run by name before
_files: dict[Path, ModuleType] = {}  # files that this process has run
_running: list[Path] = []  # files that are running now
_handed: dict[str, Any] = {}  # classes and functions that no file holds, by reference
_lock = threading.RLock()


MAIN = "__main__"
LARGE = {"torch_geometric": "torch_geometric.nn"}  # libraries whose import takes seconds, and the module to import


def load(reference: str) -> Any:
    """The object that `my_file.py:Name` or `package.module:Name` names; the file or module is run once per process."""
    place, _, name = reference.rpartition(":")
    if place == MAIN:
        return _of_no_file(reference)
    found: Any = _run(Path(place)) if place.endswith(".py") else _imported(place)
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        names = vars(found) if hasattr(found, "__dict__") else {}
        there = ", ".join(key for key, value in names.items() if callable(value) and not key.startswith("_")) or "none"
        raise InputError(f"{one_line(place, 100)} has no {one_line(name, 60)}; it has {one_line(there, 120)}") from None
    return found


def is_reference(text: str) -> bool:
    """Whether a text names something in a file, or in a module that can be imported."""
    place, _, name = text.rpartition(":")
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    if place.endswith(".py"):
        return True
    top = place.partition(".")[0]
    here = os.path.isdir(top) or os.path.isfile(f"{top}.py")
    return top.isidentifier() and (here or importlib.util.find_spec(top) is not None)


def reference_of(kind: Any) -> str:
    """The reference by which `load` finds a class or function, in any process."""
    module, name = sys.modules.get(kind.__module__), kind.__qualname__
    known = next((reference for reference, thing in _handed.items() if thing is kind), None)
    if known is not None:
        return known
    handed = f"{MAIN}:{kind.__name__}"  # a class that was sent is known by its last name only
    if handed in _handed and _handed[handed].__module__ == kind.__module__:
        return handed
    if "<" in name or module is None:
        raise InputError(f"{name} is defined inside a function; define it at the top of a file, where ranks find it")
    spec = getattr(module, "__spec__", None)
    if module.__name__ == "__main__" and spec is not None:  # python -m package.module
        return f"{spec.name}:{name}"
    file = getattr(module, "__file__", None)
    if file is None and module.__name__ == "__main__":
        raise InputError(f"{name} is defined in no file; put it into one, where ranks find it")
    # A module outside packages is found by this process's path alone; every process can find its file.
    if file is not None and "." not in module.__name__ and file.endswith(".py") and not hasattr(module, "__path__"):
        return f"{Path(file).resolve()}:{name}"
    return f"{module.__name__}:{name}"


def has_a_file(kind: Any) -> bool:
    """Whether other processes can find a class or function by name; False inside a notebook, a script or a function."""
    found: Any = sys.modules.get(kind.__module__)
    if found is None or getattr(found, "__file__", None) is None:
        return False
    if found.__name__ == MAIN and getattr(found, "__spec__", None) is None:
        return False
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def hand_over(kind: Any) -> str:
    """Register a class or function that no file holds under a reference, in this process and in the ranks it starts."""
    if not isinstance(kind, type) and inspect.isfunction(kind):  # lambdas get a number each
        known = next((name for name, thing in _handed.items() if thing is kind), None)
        stem = f"{MAIN}:{kind.__name__.strip('<>')}"
        names = (stem if not number else f"{stem}_{number}" for number in itertools.count())
        reference = known or next(name for name in names if name not in _handed)
    else:
        reference = f"{MAIN}:{kind.__name__}"
    _handed[reference] = kind
    return reference


def packed(tree: Any) -> str:
    """Serialise the classes in a JSON tree that no file holds, as a text for ranks; empty if there are none.

    The text goes to ranks through a pipe and is never written: a file of such bytes could run any code when it is read.
    """
    kinds = {text: _of_no_file(text) for text in texts_in(tree) if text.startswith(f"{MAIN}:")}
    if not kinds:
        return ""
    name = next(iter(kinds.values())).__name__
    try:
        import cloudpickle
    except ImportError:
        fix = "pip install 'fullgraph[notebook]', or put the class into a file"
        raise InputError(
            f"{name} is a class of a notebook or script, or a function, and sending it to ranks needs a package: {fix}"
        ) from None
    modules = {sys.modules.get(kind.__module__) for kind in kinds.values()} - {None, sys.modules.get(MAIN)}
    made_up = [module for module in modules if module is not None and _is_made_up(module)]
    try:
        for module in made_up:  # no rank can import it
            cloudpickle.register_pickle_by_value(module)
        return base64.b64encode(cloudpickle.dumps(kinds)).decode()
    except Exception as error:
        told = f"{type(error).__name__}: {one_line(error, 160)}"
        raise InputError(f"{name} cannot be sent to ranks ({told}); put the class into a file") from error
    finally:
        for module in made_up:
            cloudpickle.unregister_pickle_by_value(module)


def _is_made_up(module: ModuleType) -> bool:
    """Whether ranks may be unable to import a module: it has no file, or a file of the user's."""
    file = getattr(module, "__file__", None)
    return file is None or is_own_file(file)


def unpack(text: str) -> None:
    """Register the classes that the parent process packed."""
    if text:
        import cloudpickle

        _handed.update(cloudpickle.loads(base64.b64decode(text)))


def _of_no_file(reference: str) -> Any:
    if reference not in _handed:
        name = one_line(reference.rpartition(":")[2], 60)
        raise InputError(
            f"{name} was a class of a notebook or script, in no file that could be read again; pass it once more: "
            f"fg.resume(folder, model={name}) or fg.predict(folder, model={name})"
        )
    return _handed[reference]


def texts_in(tree: Any) -> set[str]:
    """All texts in the values of a JSON tree."""
    if isinstance(tree, Mapping):
        return set().union(*map(texts_in, tree.values()))
    if isinstance(tree, list):
        return set().union(*map(texts_in, tree))
    return {tree} if isinstance(tree, str) else set()


def files_in(tree: Any) -> set[str]:
    """The files that names in a JSON tree refer to."""
    places = {text.rpartition(":")[0] for text in texts_in(tree)}
    return {place for place in places if place.endswith(".py")}


def libraries_in(tree: Any) -> list[str]:
    """Large libraries that files named in a JSON tree import, as far as their text tells: no user's file runs."""
    found = {text.partition(".")[0] for text in texts_in(tree)} & LARGE.keys()
    for place in files_in(tree):
        with suppress(OSError):
            text = Path(place).read_bytes() if os.path.isfile(place) else b""
            found |= {name for name in LARGE if name.encode() in text}
    return [LARGE[name] for name in sorted(found)]


def checksum_of(path: str) -> int:
    """CRC-32 of a file's contents."""
    try:
        if not os.path.isfile(path):
            raise FileNotFoundError(2, os.strerror(2), path)
        return zlib.crc32(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise explain(error, Path(path)) or error from None


def refuse_while_running() -> None:
    """Refuse to train while a named file is being run: ranks run that file too, and would start training without
    end.
    """
    if _running:
        raise InputError(f"{_running[-1]} trains when it is imported; put that under: if __name__ == '__main__':")


def _run(path: Path) -> ModuleType:
    """The module of a file; runs the file the first time."""
    checksum_of(str(path))  # refuses a path that is no readable file
    path = path.resolve()
    with _lock:
        if path not in _files:
            name = f"own_{zlib.crc32(str(path).encode()):08x}"
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            _running.append(path)
            try:
                spec.loader.exec_module(module)
            except BaseException as error:
                del sys.modules[name]
                _refuse(error, str(path))
            finally:
                _running.pop()
            _files[path] = module
        return _files[path]


def _imported(name: str) -> ModuleType:
    """An installed module, or one below the current folder."""
    try:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        module = importlib.import_module(name)
    except BaseException as error:
        _refuse(error, name)
    name_file(getattr(module, "__file__", None))
    return module


def _refuse(error: BaseException, place: str) -> NoReturn:
    if not isinstance(error, Exception | SystemExit):
        raise error
    if (told := of_file(error, place)) is not None:
        raise told from None
    if isinstance(error, InputError):
        raise error
    raise InputError(
        f"{one_line(place, 100)} cannot be run ({type(error).__name__}: {one_line(error, 160)})"
    ) from error


class Factory:
    """Builds a model: calls a function, or copies a module, whose weights are then the initial weights."""

    def __init__(self, function: Callable[..., Any], name: str, home: str, signature: inspect.Signature) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = name
        self.__module__ = home
        self.__signature__ = signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @classmethod
    def of_module(cls, module: Any) -> "Factory":
        """Copy a module at each call."""
        kind = type(module)
        return cls(partial(copied, module), kind.__name__, kind.__module__, inspect.Signature())

    @classmethod
    def of_function(cls, function: Callable[..., Any]) -> "Factory":
        """Wrap a function without a name, such as a lambda."""
        inner = function.func if isinstance(function, partial) else function
        name = getattr(inner, "__name__", type(inner).__name__).strip("<>")
        return cls(function, name, inner.__module__, inspect.signature(function))


def reference_to(thing: Any) -> str:
    """The reference by which ranks find a class, function or module; an object that no file holds is sent to them."""
    if hasattr(thing, "named_parameters") and not isinstance(thing, type):
        return hand_over(Factory.of_module(thing))
    if isinstance(thing, type) or (inspect.isfunction(thing) and has_a_file(thing)):
        return reference_of(thing) if has_a_file(thing) else hand_over(thing)
    return hand_over(Factory.of_function(thing))
