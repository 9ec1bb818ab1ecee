"""This machine as a cluster, and its rates, measured once and saved.

A short test of the links between ranks measures the latency of small messages, the bandwidth of large ones, and their
core time.
"""

import os
import platform
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from fullgraph.data import load
from fullgraph.device import device_of
from fullgraph.environ import number
from fullgraph.errors import InputError
from fullgraph.lab.cost.calibrate import calibrated, fitted, of_matrix
from fullgraph.lab.cost.cluster import Cluster, Link
from fullgraph.lab.cost.counting import counted_parts
from fullgraph.lab.cost.dry import dry_run
from fullgraph.lab.cost.predict import predict
from fullgraph.lab.cost.rates import DEVICES, Rates, rates_of
from fullgraph.lab.cost.script import Work
from fullgraph.nn import GraphSAGE
from fullgraph.ops import Adjacency, Structure
from fullgraph.partition import Part, cut_parts, partition
from fullgraph.proc import num_cores
from fullgraph.resources import free_memory
from fullgraph.run import Run, build_trainer
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Key, SingleRank, Transport, join
from fullgraph.transport.ranks import run_processes

SAMPLE = "sbm:nodes=20000,edges=200000,features=64,classes=16,seed=0"  # a real step on this graph checks the rates
TINY = "sbm:nodes=64,edges=128,features=8,classes=4,seed=0"  # here operations take time, and numbers almost none
STEPS = 9
# Between processes of one machine: gloo over the loopback interface, fitted to measured epochs (docs/planning.md).
# The latency is that of a message from one rank's step to another's, through the threads of both.
LOOPBACK = Link(bits_per_s=20e9, latency_s=1e-3, message_s=3e-5, core_s_per_byte=1e-10)


def rates_for(name: str, device: str = "cpu") -> Rates:
    """Rates by name: of this machine ("here"), of a device's data sheet, or of a file."""
    if name == "here":
        return rates_here(device)
    if name in DEVICES:
        return rates_of(name)
    if Path(name).suffix == ".json":
        return Rates.read(Path(name))
    return rates_of(name)  # raises with the known names


def cluster_here(ranks: int) -> Cluster:
    memory = free_memory() // max(1, ranks)
    return Cluster(ranks_per_machine=ranks, cores=num_cores(), memory_bytes=memory, inside=LOOPBACK)


def probe_here(ranks: int) -> Cluster:
    """This machine as a cluster with that many ranks, and the measured link between two of its processes."""
    found: Cluster = run_processes(ranks, _probed_alone, ranks)[0]
    return found


def _probed_alone(transport: Transport, ranks: int) -> Cluster:
    here = cluster_here(ranks)
    return probed(transport, ranks, here.cores, here.memory_bytes * ranks)


def probe_in_job() -> Cluster | None:
    """The machines of a torchrun or Slurm job; None on all ranks but the first."""
    transport = join()
    try:
        each = number("LOCAL_WORLD_SIZE", 1)
        here = cluster_here(each)
        found = probed(transport, each, here.cores, here.memory_bytes * each)
        return found if transport.rank == 0 else None
    finally:
        transport.close()


def rates_here(device: str = "cpu", threads: int = 1) -> Rates:
    """The saved rates of the same device, threads and torch; measures and saves them if there are none."""
    path = kept_at(device, threads)
    with suppress(InputError, OSError):
        return Rates.read(path)
    rates = measured(device, threads)
    with suppress(InputError, OSError):  # if the home folder is read-only, every call measures again
        path.parent.mkdir(parents=True, exist_ok=True)
        rates.write(path)
    return rates


def kept_at(device: str, threads: int) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    stem = f"rates-{platform.node()}-{device}-{threads}-torch{torch.__version__}".replace("/", "-").replace(":", "-")
    return cache / "fullgraph" / f"{stem}.json"


def measured(device: str, threads: int) -> Rates:
    """Measure each kind of work separately, then two real steps.

    A tiny step gives the time of an operation without data. The ratio of a larger step's measured and predicted time
    scales all rates.
    """
    before = torch.get_num_threads()
    try:
        there = device_of(device)
        rates = calibrated(there, threads=threads)
        taken, part, run = _real_step(TINY, device)
        works = [event for event in dry_run(run, counted_parts([part], ()), 0, 3)[-1].events if isinstance(event, Work)]
        rates = replace(rates, call=max(rates.call, taken / len(works)))
        taken, part, run = _real_step(SAMPLE, device)
        structure = Structure(part.indptr, part.indices, len(part.ids)).to(there)
        own = of_matrix(rates, Adjacency(structure, None, torch.ones(len(part.ids), device=there), None), there)
        return fitted(rates, taken, predict(run, counted_parts([part], ()), Cluster(), own).taken.epoch_s)
    finally:
        torch.set_num_threads(before)


def _real_step(name: str, device: str) -> tuple[float, Part, Run]:
    """Seconds of a training step on a graph with one part, and the run."""
    graph = load(name)
    run = Run(model=GraphSAGE(layers=3, hidden=128), train=TrainConfig(epochs=STEPS, device=device, all_rows=True))
    part = cut_parts(graph, partition(graph, 1), 0)
    trainer = build_trainer(run, part, SingleRank())
    return sorted(trainer.train_step()[1].step_s for _ in range(STEPS))[STEPS // 2], part, run


SMALL, LARGE = 64, 16 << 20
PINGS, CROSSINGS = 50, 6


def probed(transport: Transport, ranks_per_machine: int, cores: int, memory_bytes: int) -> Cluster:
    """The cluster that these ranks are on; all ranks call it and get the same value."""
    machines = -(-transport.size // ranks_per_machine)
    inside = _link(transport, 1, "inside") if ranks_per_machine > 1 else Link()
    link = _link(transport, ranks_per_machine, "between") if machines > 1 else Link()
    return Cluster(
        machines=machines, ranks_per_machine=ranks_per_machine, cores=cores,
        memory_bytes=memory_bytes // ranks_per_machine, link=link, inside=inside,
    )  # fmt: skip


def _link(transport: Transport, other: int, name: str) -> Link:
    """Measure the link between rank 0 and another rank; the other ranks receive the result."""
    there = {0: other, other: 0}.get(transport.rank)
    figures = torch.zeros(3, dtype=torch.float64)
    if there is not None:
        ping = _exchange(transport, there, SMALL, PINGS, f"{name} small")[0]
        taken, busy = _exchange(transport, there, LARGE, CROSSINGS, f"{name} large")
        if transport.rank == 0:
            figures = torch.tensor([ping, taken, busy], dtype=torch.float64)
    ping, taken, busy = transport.all_reduce(Key(f"probe/{name}", 0), figures).wait().tolist()
    rate = 8 * LARGE / max(1e-9, taken - ping)
    return Link(
        bits_per_s=min(1e16, max(1e3, rate)), latency_s=max(0.0, ping), message_s=0.0, core_s_per_byte=busy / LARGE / 2
    )


def _exchange(transport: Transport, peer: int, nbytes: int, times: int, name: str) -> tuple[float, float]:
    """The best of several times, in seconds and core seconds, in which both ranks send that many bytes."""
    rows = torch.zeros(nbytes, dtype=torch.uint8)
    best = busiest = float("inf")
    for turn in range(times):
        start, busy = time.perf_counter(), time.process_time()
        transport.begin(Key(f"probe/{name}", turn), {peer: rows}, {peer: nbytes}).wait()
        best, busiest = min(best, time.perf_counter() - start), min(busiest, time.process_time() - busy)
    return best, busiest
