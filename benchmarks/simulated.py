"""`fullgraph train FOLDER ...` with threads for ranks: the same losses and scores, in a process that waits for nobody.

    .venv/bin/python benchmarks/simulated.py CUT --out FILE.jsonl --strategy "bns -o p=0.1" --epochs 200

For campaigns on a machine that others use: four processes that wait for one another lose most of their time there.
"""

import argparse
import json
import shlex
from pathlib import Path

import torch

from fullgraph import nn
from fullgraph.partition import open_part, read_manifest
from fullgraph.recipes import STRATEGIES
from fullgraph.report import EpochRecord
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Transport


def records(transport: Transport, cut: Path, run: Run) -> list[dict[str, float | None]]:
    """What metrics.jsonl would hold."""
    lines: list[dict[str, float | None]] = []

    def watch(trainer: Trainer, record: EpochRecord) -> None:
        lines.append({"bytes": record.bytes, "val": record.val, "test": record.test})

    build_trainer(run, open_part(cut, transport.rank), transport).fit([watch])
    return lines


def strategy_of(text: str) -> tuple[str, dict[str, str]]:
    """The name and the options in `sancus -o bound=0.3 -o longest=10`."""
    name, *rest = shlex.split(text)
    return name, dict(pair.split("=", 1) for pair in rest if pair != "-o")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cut", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--model", default="sage")
    for name, kind in (("layers", int), ("hidden", int), ("dropout", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    for name, kind in (("epochs", int), ("seed", int), ("eval-every", int), ("lr", float), ("weight-decay", float)):
        parser.add_argument(f"--{name}", type=kind, default=getattr(TrainConfig, name.replace("-", "_")))
    options = parser.parse_args()
    torch.set_num_threads(1)
    name, chosen = strategy_of(options.strategy)
    train = TrainConfig(
        epochs=options.epochs, seed=options.seed, eval_every=options.eval_every, lr=options.lr,
        weight_decay=options.weight_decay,
    )  # fmt: skip
    model = nn.MODELS.make(options.model, layers=options.layers, hidden=options.hidden, dropout=options.dropout)
    run = Run(model=model, strategy=STRATEGIES.make(name, **chosen), train=train)
    lines, *_ = run_threads(read_manifest(options.cut).parts, records, options.cut, run, timeout=10**6)
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
