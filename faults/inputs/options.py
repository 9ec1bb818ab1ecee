"""Options on the command line, in a TOML file and in the environment, with hostile values."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np

from faults.command import small_graph
from faults.inputs.case import Case, Ended
from faults.inputs.edits import NUMBERS, WORDS, any_value
from fullgraph.exchange import SCHEDULES
from fullgraph.nn import MODELS
from fullgraph.partition import PARTITIONERS
from fullgraph.recipes import STRATEGIES

Again = Callable[[list[str], Path], Ended]

PATHS = [
    "file", "file/inside", "folder", "folder/inside", "a[/b]", "[red]x[/red]", "é ü", "\x1b[31m", "a\nb", "n" * 300,
    "/".join(["d" * 200] * 30), ".", "..", "./.", "", " ", "-", "--", "-o", "loop", "dangling", "fifo", "/dev/null/x",
    "/proc/self/x", "/proc/1/x", "/sys/x", "/dev/full", "full/of/new/folders", "~", "$HOME", "*", "a:b", "http://x/y",
    "\udcff", "with space/x", "run", "held", "/dev/zero", "/dev/stdin",
]  # fmt: skip
INTS = ["--parts", "--layers", "--hidden", "--linear-layers", "--heads", "--seed", "--split", "--eval-every",
        "--patience", "--checkpoint-every", "--threads", "--max-restarts", "--epochs"]  # fmt: skip
FLOATS = ["--dropout", "--alpha", "--lam", "--lr", "--weight-decay", "--timeout"]
CHOICES = {
    "--strategy": list(STRATEGIES), "--model": list(MODELS), "--norm": ["none", "layer", "batch"],
    "--optimizer": ["adam", "adamw", "sgd"], "--lr-schedule": ["constant", "cosine", "step"],
    "--partitioner": list(PARTITIONERS), "--features": ["none", "row", "standard"],
    "--metric": ["auto", "accuracy", "micro_f1", "roc_auc"], "--dtype": ["float32", "float64", "float16"],
    "--device": ["cpu", "cuda", "cuda:0", "meta"], "--backend": ["gloo", "nccl", "mpi"],
    "--on-signal": ["checkpoint", "stop"],
}  # fmt: skip
FLAGS = ["--residual", "--inductive", "--no-precompute", "--tensorboard", "--no-inductive"]
SMALL = {"--epochs": "2", "--hidden": "4", "--layers": "2", "--threads": "1", "--out": "run"}
VARIABLES = ["WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
             "SLURM_JOB_ID", "SLURM_LOCALID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "FULLGRAPH_KERNELS",
             "GLOO_SOCKET_IFNAME", "FULLGRAPH_DATA", "MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT",
             "COLUMNS", "FULLGRAPH_REPORT", "OMP_NUM_THREADS"]  # fmt: skip
MANY = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
# A large valid number for these options means much work; try only numbers that must be refused, or are small.
SLOW = ("--epochs", "--layers")


def number(random: Random) -> str:
    if random.random() < 0.4:
        return random.choice(
            ["0", "1", "2", "3", "4", "5", "8", "10", "0.1", "0.5", "0.95", "1.0", "2.5", "128", "1e-3"]
        )
    value = random.choice(NUMBERS)
    kind = random.choice(["plain", "plain", "plain", "word", "odd"])
    if kind == "plain":
        return str(value)
    if kind == "word":
        return random.choice(WORDS)
    return random.choice([f"{value}.0", f" {value}", f"+{value}", f"{value}x", "1e3", "1e-3", "0x1", "1_0", "٣", "nan",
                          "inf", "-inf", "1e400", "9" * 5000, "True", "None", "--", "1,2", "1;2"])  # fmt: skip


def option(random: Random) -> list[str]:
    """Return one option with any value, mostly an invalid one."""
    kind = random.choice(["int", "int", "float", "float", "choice", "flag", "path", "word", "unknown"])
    if kind == "int":
        name = random.choice(INTS)
        text = number(random)
        if name in SLOW:
            text = random.choice(["0", "-1", "1", "3", "x", "1e3", "10000000000", "1.5", ""])
        return [name, text]
    if kind == "float":
        return [random.choice(FLOATS), number(random)]
    if kind == "choice":
        name = random.choice(list(CHOICES))
        return [name, random.choice([*CHOICES[name], *CHOICES[name], *WORDS])]
    if kind == "flag":
        return [random.choice(FLAGS)]
    if kind == "path":
        return [random.choice(["--out", "--resume", "--config"]), random.choice(PATHS)]
    if kind == "word":
        return [random.choice([*INTS, *FLOATS, *CHOICES]), random.choice(WORDS)]
    return [random.choice(["--magic", "-x", "--", "--help=x", "extra", "-o", "--parts=", "--lr=1e-2", "--out="])]


def pairs(random: Random, known: dict[str, object], flag: str) -> list[str]:
    """Return -o KEY=VALUE with options of strategies, codecs and schedules."""
    out = []
    for _ in range(random.choice([1, 1, 2])):
        key = random.choice([*list(known) * 9, "magic", ""] if known else ["magic", ""])
        default = known.get(key)
        numeric = isinstance(default, int | float) or default is None
        value = number(random) if numeric and random.random() < 0.7 else random.choice(WORDS)
        if isinstance(default, str) and random.random() < 0.5:
            value = random.choice(
                ["full", "half", "lowbit", "subsample", "sync", "skip", "bounded", "pipelined", "f", "gf", "exact", "1",
                 "1,2", "both", "sparse,dense", "cpu", "cpu+cpu", "cuda:0", "mixture", "linear", "exponential", "step",
                 "0,0", "99", "auto", "volume", "quality"]
            )  # fmt: skip
        if isinstance(default, bool) and random.random() < 0.5:
            value = random.choice(["true", "false", "1", "0"])
        out += [flag, random.choice([f"{key}={value}"] * 40 + [key, f"{key}=", f"={value}", f"{key}=={value}"])]
    return out


def spec(random: Random) -> str:
    """Return the name of a graph."""
    kind = random.choice(["sbm", "sbm", "rmat", "rmat", "saint", "pyg", "ogb", "path", "word"])
    if kind == "path":
        return random.choice(PATHS)
    if kind == "word":
        return random.choice([*WORDS, "demo ", "DEMO", "sbm", "rmat", "sbm:", "pyg:", "ogb:", "saint:", ":", "npz:x"])
    if kind in ("saint", "ogb"):
        return f"{kind}:" + random.choice([*PATHS, *WORDS, "ogbn-arxiv", "ogbn-products", "ogbn-papers100M"])
    if kind == "pyg":
        return "pyg:" + random.choice(["", "/", "Nothing/Here", "__name__", "os", "__builtins__", "../x", "Planetoid",
                                       "Planetoid/", "a.b/c", "\x1b[31m", "e" * 3000, "Dataset/x", "download_url/x",
                                       "HeteroData", "1/2", "Planetoid/../../x"])  # fmt: skip
    keys = ["nodes", "edges", "classes", "features", "noise", "train", "val", "directed", "seed"]
    keys += ["blocks", "p_in"] if kind == "sbm" else ["scale", "a", "b", "c", "d"]
    given = {key: number(random) for key in random.sample(keys, random.choice([1, 1, 2, 3]))}
    if random.random() < 0.6:
        given.setdefault("nodes", random.choice(["3", "30", "60"]))
        given.setdefault("features", "3")
    if kind == "rmat" and "scale" in given:
        given.pop("nodes", None)
    text = ",".join(f"{key}={value}" for key, value in given.items())
    forms = [text] * 6 + [f"{text},", f"{text},{text}", text.replace("=", ""), f"magic=1,{text}"]
    return f"{kind}:" + random.choice(forms)


def case(random: Random, here: Path, shared: Path, again: Again) -> Case:
    _surround(here)
    make = random.choice([_train, _train, _train, _toml, _toml, _strategy, _strategy, _partitioner, _partitioner,
                          _spec, _spec, _variables, _others])  # fmt: skip
    made = make(random, here)
    made.what = f"options, {make.__name__[1:]}"
    made.right = lambda ended: _assert_sound(made, ended)
    return made


def _surround(here: Path) -> None:
    """Create a graph, and objects that paths may collide with."""
    small_graph(here)
    (here / "file").write_text("a file, not a folder")
    (here / "folder").mkdir()
    (here / "held").mkdir()
    (here / "held" / "metrics.jsonl").write_text("the user's own\n")
    (here / "loop").symlink_to("loop")
    (here / "dangling").symlink_to("nowhere/at/all")
    os.mkfifo(here / "fifo")


def _command(given: dict[str, str], more: list[str], graph: str = "g.npz") -> list[str]:
    return ["train", graph, *(word for pair in {**SMALL, **given}.items() for word in pair), *more]


def _train(random: Random, here: Path) -> Case:
    more = [word for _ in range(random.choice([1, 1, 2, 3])) for word in option(random)]
    if "--resume" in more:
        return Case("", ["train", *more])
    given = {name: value for name, value in SMALL.items() if name not in more}
    return Case("", ["train", "g.npz", *(word for pair in given.items() for word in pair), *more])


def _strategy(random: Random, here: Path) -> Case:
    name = random.choice(list(STRATEGIES))
    parts = random.choice(["1", "1", "2"]) if name != "gnnpipe-hybrid" else "2"
    return Case("", _command({"--strategy": name, "--parts": parts}, pairs(random, STRATEGIES.options(name), "-o")))


def _partitioner(random: Random, here: Path) -> Case:
    name = random.choice(list(PARTITIONERS))
    known = {field.name: field.default for field in fields(PARTITIONERS[name])}
    common = ["--partitioner", name, "--parts", random.choice(["1", "2", "3", number(random)])]
    if random.random() < 0.3:
        common += ["--seed", number(random)]
    command = random.choice(["train", "partition", "inspect"])
    if command == "train":
        return Case("", _command({}, [*common, *pairs(random, known, "-p")]))
    out = ["--out", random.choice(["shards", "shards", *PATHS])] if command == "partition" else []
    return Case("", [command, "g.npz", *common, *out, *pairs(random, known, "-p")])


def _spec(random: Random, here: Path) -> Case:
    graph = spec(random)
    if random.random() < 0.5:
        return Case("", _command({}, [], graph))
    return Case("", ["inspect", graph, "--partitioner", random.choice(["metis", "random"])])


def _toml(random: Random, here: Path) -> Case:
    """Write options to a file: of wrong types, nested, or not TOML."""
    names = [name.removeprefix("--") for name in [*INTS, *FLOATS, *CHOICES, *FLAGS, "--out", "--resume", "--option"]]
    lines = []
    for _ in range(random.choice([1, 2, 3])):
        name = random.choice([*names, *names, "magic", "graph", "config", "partitioner_option", "ctx", "Parts"])
        lines.append(f"{json.dumps(name)} = {_toml_value(name, random)}")
    text = "\n".join(dict.fromkeys(lines))
    kind = random.choice(["good"] * 6 + ["table", "bytes", "nul", "deep", "twice", "huge", "half"])
    data = text.encode("utf-8", "surrogatepass")
    if kind == "table":
        data = f"[{random.choice(names)}]\n{text}".encode("utf-8", "surrogatepass")
    elif kind == "bytes":
        data = random.randbytes(200)
    elif kind == "nul":
        data = random.choice([b'out = "a\\u0000b"', b'resume = "\\u0000"', b'graph = "a\\u0000.npz"', b"\0"])
    elif kind == "deep":
        data = b"a = " + b"[" * 5000
    elif kind == "twice":
        data += b"\n" + data
    elif kind == "huge":
        data = b"# " + b"x" * (2 << 20)
    elif kind == "half":
        data = data[: len(data) // 2]
    (here / "c.toml").write_bytes(data)
    given = {name: value for name, value in SMALL.items() if f'"{name[2:]}"' not in text or name in SLOW}
    arguments = ["train", "g.npz", "--config", "c.toml", *(word for pair in given.items() for word in pair)]
    return Case("", arguments, named=[word for word in WORDS if json.dumps(word) in text])


def _toml_value(name: str, random: Random) -> str:
    if name == "option":
        some = [["codec=half"], {"codec": "half"}, "codec", [1], {"codec": [1]}, 3, [["a"]], any_value(random)]
        value = random.choice(some)
    else:
        value = any_value(random)
    return _as_toml(value)


def _as_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_toml, value)) + "]"
    if isinstance(value, float):
        return "nan" if math.isnan(value) else "inf" if math.isinf(value) else repr(value)
    if value is None:
        return "1979-05-27T07:32:00Z"
    return json.dumps(value)


def _variables(random: Random, here: Path) -> Case:
    names = random.sample(VARIABLES, random.choice([1, 1, 2]))
    words = [word for word in WORDS if "\0" not in word and "\ud800" not in word]
    values = ["abc", "", "-1", "0", "1", "1.5", "1e3", " 1", "\uff19", "1" * 50, "torch", "numba", "nowhere", *words]
    environ = {name: random.choice(values) for name in names}
    made = Case("", _command({"--timeout": "2"}, []), environ=environ)
    if any(_above_one(environ.get(name, "")) for name in MANY):
        made.real, made.status = True, (0, 1, 2)  # it waits for ranks that never start
    return made


def _above_one(text: str) -> bool:
    try:
        return int(text) > 1
    except ValueError:
        return False


def _others(random: Random, here: Path) -> Case:
    kind = random.choice(["schedule", "compare", "predict", "resume", "inspect", "bare"])
    if kind == "schedule":
        name = random.choice([*SCHEDULES, *SCHEDULES, *WORDS])
        known = {f.name: f.default for f in fields(SCHEDULES[name])} if name in SCHEDULES else {}
        return Case("", ["schedule", name, "--steps", number(random), *pairs(random, known, "-o")])
    if kind == "compare":
        return Case("", ["compare", random.choice(PATHS), *random.choice([[], ["--target", number(random)]])])
    if kind == "predict":
        return Case("", ["predict", random.choice(PATHS), *random.choice([[], ["--out", random.choice(PATHS)]])])
    if kind == "resume":
        return Case("", ["train", "--resume", random.choice(PATHS), *option(random)])
    if kind == "inspect":
        return Case("", ["inspect", random.choice(PATHS), "--parts", number(random)])
    bare = [[], ["--help"], ["magic"], ["train", "--help"], ["strategies"], ["strategies", "x"], ["-"]]
    return Case("", random.choice(bare))


def _assert_sound(made: Case, ended: Ended) -> None:
    """Check that an accepted run is complete, has finite numbers, and recorded the requested options."""
    arguments = made.arguments
    if arguments[:1] != ["train"] or "--help" in arguments:
        assert ended.out.strip(), "it says nothing"
        return
    out = dict(pairwise(arguments)).get("--out", ".")
    found = [path.parent for path in ended.here.rglob("result.json")] or [ended.here / out]  # which may be above
    assert len(found) == 1, f"runs: {found}"
    texts = [(found[0] / name).read_text() for name in ("result.json", "config.json")]
    result, config = (json.loads(text, parse_constant=_no) for text in texts)
    assert np.isfinite(np.load(found[0] / "predictions" / "probabilities.npy")).all()
    assert result["epochs"] <= 3
    asked = dict(pairwise(arguments))
    for name, text in asked.items():
        key = name.removeprefix("--").replace("-", "_")
        if arguments.count(name) == 1 and name in (*INTS, *FLOATS) and key in config["train"]:
            assert config["train"][key] == float(text), f"{name} {text} became {config['train'][key]}"


def _no(name: str) -> float:
    raise AssertionError(f"{name} in a file of ours")
