"""The cost of measuring for the report, and of tracing: epochs with and without them alternate in one launch.

    .venv/bin/python benchmarks/report.py [--nodes 20000] [--epochs 120]

An epoch is counted in CPU seconds of a rank, including all of its threads and the profiler. On a machine with other
users even these vary by more than the expected difference. The first table therefore shows the cost of measuring alone,
without an epoch: the marks of four messages in each direction, their sums, and a bin. For the trace, the marks of three
layers in both passes and their storage are added; the time of three layers of one number without marks is subtracted.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from common import seconds, show

from fullgraph import nn, recipes
from fullgraph.data import load
from fullgraph.partition import cut_parts, partition
from fullgraph.report import EpochRecord, Meter
from fullgraph.report.events import slices_of
from fullgraph.report.profile import Bins
from fullgraph.report.spans import Rows
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_processes
from fullgraph.train.config import TrainConfig
from fullgraph.train.profiler import Profiler
from fullgraph.train.tracing import Layers, Tracer
from fullgraph.transport import Key, Transport

MODES = ("off", "report", "report and trace")
STRATEGIES = {"vanilla": recipes.vanilla(), "pipegcn": recipes.pipegcn(), "sylvie-a": recipes.sylvie_a()}


class Nothing:
    """A coding that does nothing."""

    def nbytes(self, peer: int, rows: torch.Tensor) -> int:
        return rows.nbytes

    def encode(self, peer: int, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def decode(self, peer: int, wire: torch.Tensor) -> torch.Tensor:
        return wire


def alone(peers: int, *, layers: int = 0, trace: bool = False, messages: int = 4, epochs: int = 300) -> float:
    """Return the seconds per epoch for marks and sums, beside layers of one number; the minimum of five rounds."""
    meter, bins, rows = Meter(), Bins(), torch.zeros(4)
    model, one, places = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(layers))), torch.ones(1, 1), Rows()
    if trace:
        Layers(model, meter)
    outgoing, incoming = dict.fromkeys(range(peers), rows), dict.fromkeys(range(peers), 16)
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for epoch in range(epochs):
            meter.open_step(epoch)
            if layers:
                model(one).sum().backward()
            for message in range(messages):
                key = Key(f"halo/layer{message // 2}", epoch, use="rows")
                with meter.span("pack", key):
                    pass
                coding = meter.message(key, outgoing, incoming, Nothing())
                with meter.span("send", key):
                    pass
                for peer in range(peers):
                    coding.decode(peer, coding.encode(peer, rows))
                with meter.waiting(key), meter.span("unpack", key):
                    pass
            tally = meter.close_step()
            bins.add(tally.share(), tally.numbers, tally.halo_bytes, tally.lag)
            if trace:
                slices_of(meter.last, places)
        rounds.append((time.process_time() - start) / epochs)
    return min(rounds)


def body(transport: Transport, strategy: str, nodes: int, epochs: int, folder: str) -> dict[str, float]:
    """Return the fastest epoch by mode, on this rank: other programs disturbed the slower ones."""
    torch.set_num_threads(1)
    graph = load(f"sbm:nodes={nodes}")
    part = cut_parts(graph, partition(graph, transport.size), transport.rank)
    config = TrainConfig(epochs=10**6, trace=True, trace_epochs=1000, trace_skip=10**6)
    trainer = build_trainer(
        Run(model=nn.GraphSAGE(norm="none", input_dropout=True), strategy=STRATEGIES[strategy], train=config),
        part,
        transport,
    )
    profiler, tracer = Profiler(trainer, part, Path(folder)), Tracer(trainer, Path(folder))
    counting = trainer.shard.transport
    taken: dict[str, list[float]] = {mode: [] for mode in MODES}
    for epoch in range(epochs):
        mode = MODES[epoch % len(MODES)]
        probe = None if mode == "off" else trainer.meter
        counting.probe, trainer.shard.clock.meter = probe, probe  # type: ignore[attr-defined]
        tracer.layers = Layers(trainer.model, trainer.meter) if mode == MODES[2] else None
        start = time.process_time()
        _, tally = trainer.train_step()
        record = EpochRecord(
            epoch=epoch + 1, loss=0.0, lr=0.0, epoch_s=tally.step_s, wait_s=tally.wait_s, bytes=0, grad_bytes=0
        )
        if mode != "off":
            profiler(trainer, record)
            tracer(trainer, record)
        taken[mode].append(time.process_time() - start)
        if tracer.layers is not None:
            tracer.layers.remove()
    return {mode: min(times[2:]) for mode, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20000)
    parser.add_argument("--epochs", type=int, default=120)
    options = parser.parse_args()
    torch.set_num_threads(1)
    own = []
    for peers in (1, 3, 7):
        trace = alone(peers, layers=3, trace=True) - alone(peers, layers=3)
        own.append((str(peers), seconds(alone(peers)), seconds(trace)))
    show("cost of measuring per epoch", ["peers", "report", "additional for a trace"], own)
    rows = []
    for strategy in STRATEGIES:
        with tempfile.TemporaryDirectory() as folder:
            run = partial(body, strategy=strategy, nodes=options.nodes, epochs=options.epochs, folder=folder)
            found = run_processes(2, run, timeout=580.0)
        best = {mode: max(rank[mode] for rank in found) for mode in MODES}
        more = [f"{100 * (best[mode] / best['off'] - 1):+.1f} %" for mode in MODES[1:]]
        rows.append((strategy, *(seconds(best[mode]) for mode in MODES), *more))
    columns = ["strategy", *MODES, "report costs", "with trace"]
    show(f"CPU seconds of an epoch, worst of 2 ranks, {options.nodes} nodes, GraphSAGE 3x128", columns, rows)


if __name__ == "__main__":
    main()
