"""Seconds of a prediction of all nodes beside an epoch of the same run, in turns, on the run's number of ranks.

    fullgraph train sbm:nodes=100000,edges=1000000,features=64,classes=8 --parts 4 --partitioner fennel --hidden 64 \
        --epochs 8 --eval-every 8 --all-rows --out RUN
    torchrun --standalone --nproc-per-node 4 benchmarks/predict_pass.py RUN
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fullgraph.report import Phases
from fullgraph.tasks import task_for
from fullgraph.train.predict import Order, write_predictions
from fullgraph.transport import Key, barrier, join
from fullgraph.transport.gather import text_of_first
from fullgraph.worker import Rank

TURNS = 6  # the first one is left out


def main(folder: Path) -> None:
    transport = join(timeout=300)
    rank = Rank(folder, transport, Phases())
    trainer, facts = rank.trainer, rank.part.manifest.graph
    spec = task_for(rank.run.train.task, facts, cut=True)
    out = text_of_first(tempfile.mkdtemp() if transport.rank == 0 else "", transport, Key("bench/folder", 0))
    seconds = []
    for turn in range(TURNS):
        marks = []
        for work in ("begin", "epoch", "predictions"):
            if work == "epoch":
                trainer.train_step()
            elif work == "predictions":
                write_predictions(Order(out=out), trainer.model, trainer.shard, trainer.task, spec)
            barrier(transport, Key(f"bench/{work}", turn))
            marks.append(time.perf_counter())
        seconds.append((marks[1] - marks[0], marks[2] - marks[1]))
    epoch, predictions = map(statistics.median, zip(*seconds[1:], strict=True))
    if transport.rank == 0:
        print(f"epoch {epoch:.3f} s, predictions {predictions:.3f} s, ratio {predictions / epoch:.2f}", flush=True)
        shutil.rmtree(out)
    os._exit(0)  # the backend's threads may not survive an orderly exit


if __name__ == "__main__":
    main(Path(sys.argv[1]))
