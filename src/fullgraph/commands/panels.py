"""The options of `fullgraph train` by subject: the order of its help, and of the reference of `fg.train`."""

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

PANELS: Mapping[str, tuple[str, ...]] = {
    "Common": ("parts", "strategy", "option", "epochs", "seed", "device", "config", "out", "resume"),
    "Model": (
        "model", "model_option", "layers", "hidden", "dropout", "norm", "linear_layers", "residual", "input_dropout",
        "heads", "alpha", "lam", "bases", "blocks", "scale_types", "embedding_dropout", "decoder", "check",
    ),
    "Learning": (
        "task", "loss", "metric", "train_option", "optimizer", "lr", "lr_schedule", "schedule_epochs", "weight_decay",
        "embedding_weight_decay", "eval_every", "patience", "callback", "inductive",
    ),
    "Data and partition": ("partitioner", "partitioner_option", "features", "split", "reverses"),
    "Memory and speed": (
        "precision", "dtype", "precompute", "all_rows", "order", "features_on", "message_memory", "host_memory",
        "scratch", "checkpoint_layers", "backend", "threads",
    ),
    "Output": ("report", "log", "tensorboard", "trace", "trace_epochs", "trace_skip", "trace_torch"),
    "Faults": ("checkpoint_every", "on_signal", "max_restarts", "timeout"),
}  # fmt: skip
OTHER = "Other"


def panel_of(option: str) -> str:
    return next((panel for panel, options in PANELS.items() if option in options), OTHER)


class InPanels(TyperCommand):
    """A command whose help shows its options by subject."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        found: dict[str, dict[str, tuple[str, str]]] = {"Arguments": {}, **{panel: {} for panel in PANELS}, OTHER: {}}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                found["Arguments" if argument else panel_of(str(parameter.name))][str(parameter.name)] = record
        for panel, records in found.items():
            order = [*PANELS.get(panel, ()), *records]
            if records:
                with formatter.section(panel):
                    formatter.write_dl([records[name] for name in dict.fromkeys(order) if name in records])
