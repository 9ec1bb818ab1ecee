"""Turn the options that a user typed, or wrote into a file, into the values of a run."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fullgraph.axes import CALLBACKS, MODELS, PARTITIONERS, STRATEGIES
from fullgraph.errors import InputError, nearest, one_line
from fullgraph.model_options import KINDS
from fullgraph.named import made, pairs_of
from fullgraph.storage import read_text
from fullgraph.train.config import FILE, TrainConfig
from fullgraph.values import hints_of, read_option

if TYPE_CHECKING:
    from fullgraph.run import Run

MODEL_OPTIONS = {name for kind in KINDS for name in hints_of(kind)}
PLAIN = ("graph", "parts", "features", "split", "reverses")  # options of `train` that are fields of a run


def read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take defaults of options from a TOML file; options on the command line win.

    A run's config.json, or its folder, holds a whole run: `run_of` reads it.
    """
    if path is None:
        return None
    if path.is_dir():
        return path / FILE
    if path.suffix == ".json":
        return path
    text = read_text(path, fix="name a TOML file of options, or a run's config.json", limit=1 << 20)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        at = re.search(r"at line (\d+)", str(error))
        line = int(at[1]) if at else len(text.splitlines())
        raise InputError(f"{path}:{line} is not TOML: {one_line(error, 100)}") from error
    known = {parameter.name for parameter in ctx.command.params} - {"config"}
    table = {key.replace("-", "_"): value for key, value in table.items()}
    unknown = [key for key in table if key not in known]
    if unknown:
        told = f"{path} has unknown options {', '.join(unknown)}{nearest(unknown[0], map(str, known))}"
        raise InputError(f"{told}; known: {', '.join(sorted(map(str, known)))}")
    for key in (key for key in table if key.endswith("option") and isinstance(table[key], dict)):
        table[key] = [f"{name}={value}" for name, value in table[key].items()]
    many = {parameter.name for parameter in ctx.command.params if getattr(parameter, "multiple", False)}
    # one value of an option that may be repeated
    table |= {key: [table[key]] for key in many & table.keys() if not isinstance(table[key], list)}
    ctx.default_map = {**(ctx.default_map or {}), **table}
    return path


def place_in_config(error: Any) -> str:
    """`FILE:LINE: ` of a value in the options file, if that value was refused; else an empty text."""
    ctx, name = getattr(error, "ctx", None), getattr(getattr(error, "param", None), "name", None)
    if ctx is None or name is None or _source(ctx, name) != "DEFAULT_MAP":
        return ""
    path = Path(ctx.params["config"])
    spelled = re.compile(rf"\s*[\"']?{re.escape(name).replace('_', '[-_]')}[\"']?\s*[.=]")
    lines = read_text(path, fix="name a TOML file", limit=1 << 20).splitlines()
    return f"{path}:{next((number for number, text in enumerate(lines, 1) if spelled.match(text)), 1)}: "


def options_of(ctx: typer.Context) -> dict[str, Any]:
    """The options given on the command line or in a file; all others keep their owners' defaults."""
    typed = {name: value for name, value in ctx.params.items() if _source(ctx, name) != "DEFAULT"}
    return {"config": None, "resume": None, "out": None, **typed}


def over_a_run(given: dict[str, Any]) -> bool:
    """Whether the options' defaults come from an existing run."""
    return given["config"] is not None and given["config"].suffix == ".json"


def run_of(given: dict[str, Any]) -> "Run":
    """The run that a command's options describe."""
    from fullgraph.run import Run

    if over_a_run(given):
        return _laid_over(Run.read_file(given["config"]), given)
    return Run(
        **{"parts": 0, **plain_of(given)},
        partitioner=PARTITIONERS.make(
            given.get("partitioner", "metis"), **pairs_of(given.get("partitioner_option", []), "-p")
        ),
        model=model_of(given),
        strategy=STRATEGIES.make(given.get("strategy", "vanilla"), **pairs_of(given.get("option", []))),
        train=made(TrainConfig, train_options(given), "training"),
    )


def plain_of(given: dict[str, Any]) -> dict[str, Any]:
    """Options that are fields of a run; a split is a number, or the shares of a split to draw."""
    from fullgraph.run import Run

    plain = {name: given[name] for name in PLAIN if name in given}
    if "split" in plain:
        plain["split"] = read_option(hints_of(Run)["split"], "split", plain["split"])
    return plain


def model_of(given: dict[str, Any]) -> Any:
    """The named model, or the task's default model, with its options."""
    from fullgraph.nn import GraphSAGE, Usual

    if "model" in given:
        return MODELS.make(given["model"], **model_options(MODELS[given["model"]], given, given["model"]))
    options = model_options(GraphSAGE, given, "sage")
    return replace(made(Usual, options, "model 'sage'"), given=tuple(options))


def _laid_over(run: "Run", given: dict[str, Any]) -> "Run":
    """Copy `run` with overrides. Options given together with a new strategy, model or partitioner belong to the new
    one.
    """

    def chosen(axis: Any, value: Any, field: str, options: dict[str, Any]) -> Any:
        if field in given:
            return axis.make(given[field], **options)
        return axis.changed(value, **options) if options else value

    kind = MODELS[given["model"]] if "model" in given else type(run.model)
    model = model_options(kind, given, given.get("model", run.model.name))
    return replace(
        run,
        id="",
        shards="",
        shards_checksum=0,
        **plain_of(given),
        partitioner=chosen(
            PARTITIONERS, run.partitioner, "partitioner", pairs_of(given.get("partitioner_option", []), "-p")
        ),
        model=chosen(MODELS, run.model, "model", model),
        strategy=chosen(STRATEGIES, run.strategy, "strategy", pairs_of(given.get("option", []))),
        train=made(TrainConfig, train_options(given), "training", run.train),
    )


def model_options(kind: type, given: dict[str, Any], name: str) -> dict[str, Any]:
    """Options of a model: the command's options that it has, and those given with -m; refuse another model's
    options.
    """
    strange = [option for option in sorted(MODEL_OPTIONS - hints_of(kind).keys()) if option in given]
    if strange:
        known = [other for other in MODELS if strange[0] in hints_of(MODELS[other])]
        option = f"--{strange[0].replace('_', '-')}"
        raise InputError(f"{option} is an option of --model {' or '.join(known)}, not of {name}; leave it out")
    return fields_of(kind, given) | pairs_of(given.get("model_option", []), "-m")


def train_options(given: dict[str, Any]) -> dict[str, Any]:
    """Fields of TrainConfig, and options of the task, loss and optimizer that these name."""
    options = fields_of(TrainConfig, given) | pairs_of(given.get("train_option", []), "-t")
    options |= {"decoder": given["decoder"]} if "decoder" in given else {}
    if given.get("callback"):
        named = [text.split(",") for text in given["callback"]]
        options["callbacks"] = tuple(CALLBACKS.make(name, **pairs_of(pairs, "--callback")) for name, *pairs in named)
    return options


def by_hand(ctx: typer.Context) -> list[str]:
    """The options on the command line."""
    return [name for name in ctx.params if _source(ctx, name) == "COMMANDLINE"]


def _source(ctx: typer.Context, name: str) -> str:
    """The source of an option's value: DEFAULT, DEFAULT_MAP (a file) or COMMANDLINE."""
    return str(ctx.get_parameter_source(name)).rpartition(".")[2]


def only(ctx: typer.Context, mode: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that a mode would silently ignore."""
    extra = [name for name in by_hand(ctx) if name not in allowed]
    if extra:
        raise InputError(f"{mode} keeps the run's own options; leave out {', '.join(extra)}")


def fields_of(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """The given options that are fields of the value."""
    return {name: given[name] for name in hints_of(kind) if name in given}
