"""Imports point one way: the table below is the architecture, and every module of the package is parsed against it.

`python tests/test_imports.py` prints the table beside what the source really imports.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fullgraph"

# A folder may import itself and the names on its right; `x+` is x and all that x may import, and a dotted name allows
# only
# that module. The folders of the lab have rows of their own; only the command line may import them.
ARROWS = """
errors    : -
own_code  : errors
version   : -
words     : -
cached    : -
copied    : -
compiled  : -
display   : errors words
values    : own_code+ words
graph_types: values+
environ   : values+
device    : environ+
cgroup    : -
proc      : -
model_options: values+
resources : errors cgroup words device
reference : own_code+ copied
named     : reference+ values+
described : own_code+
axes      : named+ described
storage   : values+
data      : storage+ axes+ graph_types resources proc words cached compiled
ops       : errors proc cached compiled device
report    : storage+ values graph_types display words device
nn        : ops+ axes+ graph_types model_options device
partition : data+ axes+ compiled
cutting   : partition+ report+
plan      : ops+ partition+
transport : report+ environ proc
codec     : ops+ axes+ transport.key
exchange  : codec+ plan+ transport+
placement : exchange+ nn+
tasks     : placement+
train     : tasks+ version device
recipes   : train+
run       : recipes+
remarks   : run+
testing   : exchange+
own_model : run+
worker    : own_model+ remarks
predicting: worker+ cutting
preparing : worker+ cutting
recutting : preparing+
jobs      : recutting+
api       : jobs+ predicting
options   : api+
commands  : options+
__init__  : api+
lab       : -
lab.html  : report+
lab.cost  : lab.html+ run+
lab.doctor: run+ version
lab.bench : preparing+ lab.cost+
lab.commands: commands+ lab.doctor lab.bench+
cli       : lab.commands+
__main__  : cli
"""


def expand(rows: dict[str, list[str]], name: str) -> set[str]:
    """All names that a row allows."""
    allowed: set[str] = set()
    for word in rows[name]:
        plain = word.removesuffix("+")
        allowed |= {plain} | (expand(rows, plain) if word.endswith("+") else set())
    return allowed - {"-"}


ROWS = {row.split(":")[0].strip(): row.split(":")[1].split() for row in ARROWS.strip().splitlines()}
TABLE = {name: expand(ROWS, name) for name in ROWS}

# The only folder that may name torch.distributed.
MAY_IMPORT_DISTRIBUTED = ("transport/",)
OPTIONAL = {"numba", "pymetis", "kaminpar", "mtkahypar", "typer", "click", "rich", "safetensors"} | {
    "torch_geometric",
    "sklearn",
    "tensorboard",
    "psutil",
    "triton",
    "pyarrow",
    "cloudpickle",
}


class Import(NamedTuple):
    path: str  # relative to the package
    line: int
    name: str  # absolute dotted name
    top: bool  # runs when the module is imported


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file, with relative ones made absolute and `from a import b` read as `a.b`."""
    parts = ("fullgraph", *path.relative_to(PACKAGE).with_suffix("").parts)
    package = parts[:-1]
    tree = ast.parse(path.read_text(), str(path))
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(str(path.relative_to(PACKAGE)), node.lineno, name, id(node) not in inside)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def all_imports() -> list[Import]:
    return [found for path in sorted(PACKAGE.rglob("*.py")) for found in imports_of(path)]


def folder_of(found: Import) -> str:
    """The row of a file: its first folder, or module; of the lab, its second."""
    names = found.path.removesuffix(".py").split("/")
    return ".".join(names[: 1 + (names[0] == "lab" and names[1] != "__init__")])


def target_of(found: Import) -> str | None:
    """The part of the name after `fullgraph.`; None for another package's module."""
    root, _, rest = found.name.partition(".")
    return rest if root == "fullgraph" else None


def is_allowed(source: str, target: str) -> bool:
    names = target.split(".")
    prefixes = {".".join(names[: i + 1]) for i in range(len(names))}
    return bool(prefixes & (TABLE[source] | {source}))


def lines(found: list[Import]) -> str:
    return "\n".join(f"{f.path}:{f.line}: {f.name}" for f in found) + "\nThe arrows:" + ARROWS


def test_the_table_has_no_cycle() -> None:
    """A row names only rows above it, so the arrows are an order."""
    rows = list(TABLE)
    wrong = [
        (row, name)
        for i, row in enumerate(rows)
        for name in TABLE[row]
        if (name if name in TABLE else name.split(".")[0]) not in rows[:i] and row not in ("__init__", "__main__")
    ]
    assert wrong == [], ARROWS


def test_every_folder_is_in_the_table() -> None:
    present = {folder_of(Import(str(path.relative_to(PACKAGE)), 0, "", True)) for path in PACKAGE.rglob("*.py")}
    assert present - set(TABLE) == set(), f"give the new folder a row in ARROWS: {ARROWS}"


def test_the_arrows_hold() -> None:
    ours = [(found, target_of(found)) for found in all_imports()]
    wrong = [f for f, target in ours if target is not None and not is_allowed(folder_of(f), target)]
    assert wrong == [], lines(wrong)


def test_the_core_knows_the_lab_by_reference_alone() -> None:
    """Two texts name it: `auto` among the strategies, and the page at the end of a run."""
    named = {
        (str(path.relative_to(PACKAGE)), node.value)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and str(node.value).startswith("fullgraph.lab")
    }
    core = {(path, text) for path, text in named if not path.startswith("lab/")}
    assert core == {("axes.py", "fullgraph.lab.cost.auto:Auto"), ("worker.py", "fullgraph.lab.html:write_report")}


def test_nn_knows_only_torch() -> None:
    """A layer sees torch, ops and its view; the PyG adapter names torch_geometric where it is used."""
    outside = [f for f in all_imports() if folder_of(f) == "nn" and target_of(f) is None]
    roots = {f: f.name.split(".")[0] for f in outside}
    wrong = [
        f
        for f, root in roots.items()
        if root not in sys.stdlib_module_names and root != "torch" and (f.top or root != "torch_geometric")
    ]
    assert wrong == [], lines(wrong)


def test_torch_distributed_stays_in_the_transport() -> None:
    wrong = [
        f
        for f in all_imports()
        if (f.name + ".").startswith("torch.distributed.") and not f.path.startswith(MAY_IMPORT_DISTRIBUTED)
    ]
    assert wrong == [], lines(wrong)


def test_imports_with_the_core_alone() -> None:
    """Only torch, numpy and scipy are needed to import any folder; other packages are imported where they are used."""
    modules = [
        "fullgraph.api",
        "fullgraph.worker",
        *sorted(f"fullgraph.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")),
        *sorted(f"fullgraph.lab.{path.parent.name}" for path in PACKAGE.glob("lab/*/__init__.py")),
    ]
    code = f"""
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (hidden by the test)", name=name)
sys.meta_path.insert(0, Missing())
for name in {modules!r}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    real: dict[str, set[str]] = {row: set() for row in TABLE}
    for found in all_imports():
        name = target_of(found)
        row = name and next((row for row in TABLE if "." in row and name.startswith(row)), name.split(".")[0])
        if row and row != folder_of(found):
            real[folder_of(found)].add(row)
    for row, allowed in TABLE.items():
        print(f"{row:10} imports {' '.join(sorted(real[row])) or '-':60} may {' '.join(sorted(allowed)) or '-'}")
