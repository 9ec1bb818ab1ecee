"""Remember which models have passed the self-check, so that a second run of an unchanged model does not repeat it.

A passed check is kept under a digest of everything that it depends on: the sources of the user's files and of this
package, versions, all options of the run, the parts of the graph, and the rank. It is not kept if the user's code may
read anything else, such as a file or the time.
"""

import ast
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch

from fullgraph.errors import InputError
from fullgraph.own_code import is_own_file
from fullgraph.reference import BEGUN, MAIN, texts_in
from fullgraph.storage import read_document, write_document

GENERATED = ("_propagate", "_edge_updater")  # ends of the names of PyG's generated modules
MOST = 200  # passed checks that are kept; the oldest go first
EARLIER_S = 0.1  # a file that changed later than this before the process began may not be the one that was imported
# Modules of which code may be used, since their results depend on their arguments alone, ...
PURE = frozenset((
    "__future__", "abc", "collections", "copy", "dataclasses", "enum", "fullgraph", "functools", "itertools", "math",
    "numpy", "operator", "torch", "torch_geometric", "typing", "typing_extensions", "warnings",
))  # fmt: skip
# ... except under these names, which read files, the machine or what was drawn before, or run text as code.
OUTSIDE = frozenset((
    "__builtins__", "__import__", "compile", "datasets", "default_rng", "device_count", "environ", "eval", "exec",
    "from_file", "fromfile", "genfromtxt", "get_num_threads", "get_rng_state", "getenv", "globals", "hash", "hub", "id",
    "initial_seed", "input", "is_available", "library", "load", "load_inline", "load_library", "loadtxt", "locals",
    "mem_get_info", "memmap", "memory_allocated", "open", "ops", "random", "read_text", "seed", "show_config", "vars",
))  # fmt: skip


@dataclass(frozen=True)
class PassedChecks:
    """The passed checks of models such as a run's. about: the run and the parts of its graph, as a JSON tree."""

    about: Mapping[str, Any]

    def report(self, check: Callable[[], str], **facts: Any) -> str:
        """The report of a check that passed, or `check()`. facts: further ones that the check depends on."""
        key = self._key(facts)
        known = _read().get(key) if key else None
        if isinstance(known, str) and _passed(known):
            return known
        found = check()
        if key and key == self._key(facts):
            _keep(key, found)
        return found

    def _key(self, facts: Mapping[str, Any]) -> str:
        """The digest of everything that the check depends on; empty: not everything is known."""
        code = _sources_of_user()
        if code is None or not all(map(_is_known, texts_in(self.about))):
            return ""
        known = {"about": self.about, "code": code, "package": _sources_of_package(), "versions": _versions(), **facts}
        return sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _passed(report: str) -> bool:
    """Whether a text is the report of a check that passed: [true, why all rows are computed, two counts]."""
    try:
        found = json.loads(report)
    except ValueError:
        return False
    return isinstance(found, list) and [type(one) for one in found] == [bool, str, int, int] and found[0] is True


def _is_known(text: str) -> bool:
    """Whether a name of a class or function refers to code of which the digest knows everything."""
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier() or place.endswith(".py"):
        return True
    module = sys.modules.get(place)
    return place != MAIN and (module is None or _is_own(place, module) or place.partition(".")[0] in PURE)


def _keep(key: str, report: str) -> None:
    kept = list(_read().items())[1 - MOST :]
    with suppress(OSError, InputError):  # the folder is not writable: the next run checks again
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_document(_file(), {**dict(kept), key: report})


def _file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fullgraph" / "checked.json"


def _read() -> dict[str, Any]:
    try:
        return read_document(_file(), fix="")
    except (OSError, InputError, RuntimeError):  # none yet, damaged, or no home folder
        return {}


@cache
def _sources_of_package() -> str:
    """A digest of this package's own sources: a version may be a checkout that changes."""
    found = sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    for name in ("numpy", "torch_geometric", "numba", "scipy"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _sources_of_user() -> dict[str, str] | None:
    """Digests of the user's files that this process has imported, by module; None: they may read other things."""
    own = {name: module for name, module in list(sys.modules.items()) if _is_own(name, module)}
    found = {}
    for name, module in own.items():
        try:
            place = str(module.__file__)
            source = Path(place).read_bytes()
            if os.stat(place).st_ctime > BEGUN - EARLIER_S or not _is_loaded(module, source):
                return None
            if not all(_is_pure(node, name, own) for node in ast.walk(ast.parse(source))):
                return None
        except (OSError, ValueError, SyntaxError, AttributeError, ImportError):
            return None
        found[name] = sha256(source).hexdigest()
    return found


def _is_own(name: str, module: Any) -> bool:
    """Whether a module is the user's. PyG generates modules for layers, which depend on the layer's class alone."""
    place = getattr(module, "__file__", None)
    if not isinstance(place, str) or name.startswith(("torch.", "torch_geometric.")):
        return False
    return is_own_file(place) and not (name.endswith(GENERATED) and os.path.dirname(place) == gettempdir())


def _is_loaded(module: Any, source: bytes) -> bool:
    """Whether Python would import this source; it may keep an older one's code under the same time and size."""
    loader, name = module.__spec__.loader, module.__spec__.name
    return bool(loader.get_code(name) == loader.source_to_code(source, module.__file__))


def _is_pure(node: ast.AST, module: str, own: Mapping[str, Any]) -> bool:
    """Whether a piece of code, as far as it names anything, uses only its arguments."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return all(name in own or name.partition(".")[0] in PURE for name in _imported(node, module)) and not any(
            OUTSIDE & {*alias.name.split(".")} for alias in node.names
        )
    if isinstance(node, ast.Name):
        return node.id not in OUTSIDE
    return not (isinstance(node, ast.Attribute) and node.attr in OUTSIDE)


def _imported(node: ast.Import | ast.ImportFrom, module: str) -> Iterator[str]:
    """The full names of the modules that a line imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif not node.level:
        yield node.module or ""
    else:
        package = sys.modules[module].__package__ or ""
        parts = package.split(".")[: len(package.split(".")) - node.level + 1]
        yield ".".join([*parts, *([node.module] if node.module else [])])
