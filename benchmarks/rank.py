"""One rank of a benchmark on emulated hosts: trainers over one link, and what their epochs take."""

import statistics
import time
from pathlib import Path

import torch

from fullgraph.nn import ModelSpec
from fullgraph.partition import open_part
from fullgraph.recipes import Strategy
from fullgraph.run import Run, build_trainer
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Key, join

WARM_UP = 2  # epochs; they also fill what is late


class Rank:
    """This host's rank of the job that torchrun started, with one thread."""

    def __init__(self, shards: Path) -> None:
        torch.set_num_threads(1)
        self.link = join(timeout=600.0)
        self.part = open_part(shards, self.link.rank)
        self.facts = self.part.manifest.graph

    def over_ranks(self, name: str, value: float = 0.0) -> torch.Tensor:
        """Every rank's value; no rank returns before all have come."""
        values = torch.zeros(self.link.size, dtype=torch.float64)
        values[self.link.rank] = value
        return self.link.all_reduce(Key(name, 0), values).wait()

    def trainer(self, strategy: Strategy, spec: ModelSpec, *, epochs: int, shards: Path | None = None) -> Trainer:
        """Of this rank's part; of another cut of the graph if it is given."""
        part = self.part if shards is None else open_part(shards, self.link.rank)
        return build_trainer(
            Run(model=spec, strategy=strategy, train=TrainConfig(epochs=epochs, all_rows=True)), part, self.link
        )

    def timed(self, trainer: Trainer, name: str, epochs: int) -> dict[str, float]:
        """Means of an epoch: seconds, of the slowest rank's waiting and of the busiest one's own; bytes; the wire's."""
        before = counters()  # here and at the end nothing is on its way
        for _ in range(WARM_UP):
            trainer.train_step()
        self.over_ranks(f"{name} begins")
        start, busy = time.perf_counter(), time.thread_time()
        tallies = [trainer.train_step()[1] for _ in range(epochs)]
        busy = time.thread_time() - busy
        self.over_ranks(f"{name} ends")
        took = time.perf_counter() - start
        trainer.shard.state()  # waits for what is still on its way
        sent = [(now - then) / (WARM_UP + epochs) for now, then in zip(counters(), before, strict=True)]
        of_ranks = self.over_ranks(f"{name} busy", busy / epochs)
        return {
            "epoch_s": took / epochs,
            "wait_s": float(self.over_ranks(f"{name} waits", statistics.mean(t.wait_s for t in tallies)).max()),
            "busy_s": float(of_ranks.max()),
            "work_s": float(of_ranks.sum()),
            "bytes": float(self.over_ranks(f"{name} bytes", tallies[-1].halo_bytes).sum()),
            "weight_bytes": tallies[-1].weight_bytes,
            "counted": sent[0],
            "packets": sent[1],
        }


def best(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Of each name, the round that took the least, for machines are shared."""
    return {name: min((r[name] for r in rounds), key=lambda run: run["epoch_s"]) for name in rounds[0]}


def counters() -> tuple[int, int]:
    """Bytes and packets that this host has sent."""
    folder = Path("/sys/class/net/wire/statistics")
    return int((folder / "tx_bytes").read_text()), int((folder / "tx_packets").read_text())
