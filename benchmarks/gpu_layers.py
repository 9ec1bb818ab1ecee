"""Models of PyG layers as users write them, compared with plain PyG: time and peak memory of an epoch.

    PYTHONPATH=src python benchmarks/gpu_layers.py --sizes small,large --alternatives edge,csr,compile --seconds 170
    PYTHONPATH=src python benchmarks/gpu_layers.py --all-layers --sizes large --message-memory 2GiB
    PYTHONPATH=src python benchmarks/gpu_layers.py --device cpu --sizes medium --only GATv2,SAGEMax

Our side is the trainer of `fullgraph train GRAPH --model layer_nets.py:NAME --device DEVICE` in this process, with its
self-check; PyG runs the same class with Adam. An epoch is the forward pass, the loss of the training nodes, the
backward pass and the update. Its time is a median: on a GPU of times between CUDA events, on a CPU of processor time
(set OMP_NUM_THREADS=1: idle threads count). Memory on a GPU is torch's peak with the graph in it; on a CPU it is the
growth of the process since the graph was built. Both sides compute all rows of all layers unless --live is given: then
ours leaves out the rows that the loss does not read, if it can determine them.
"""

import argparse
import gc
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from gpu_common import Bench, Shape, community_graph, data_of, part_of
from layer_nets import ARC_WIDTH, FEATURED, PLAIN
from torch import Tensor, nn

from fullgraph.axes import MODELS
from fullgraph.errors import one_line
from fullgraph.ops import Structure
from fullgraph.partition import Part
from fullgraph.run import Run, build_trainer
from fullgraph.train.config import TrainConfig
from fullgraph.transport import SingleRank

warnings.simplefilter("ignore")  # warnings of torch's CSR and of PyG's scripted helpers
NETS = Path(__file__).with_name("layer_nets.py")
SIZES = {
    "tiny": Shape("tiny", 300, 4_000, 3, 16, 4, 0, 0, 0.66),
    "medium": Shape("medium", 20_000, 1_000_000, 41, 128, 41, 0, 0, 0.66),
    "small": Shape("small", 58_000, 20_000_000, 41, 128, 41, 0, 0, 0.66),
    "large": Shape("large", 232_965, 95_000_000, 41, 128, 41, 0, 0, 0.66),
    "products": Shape("products", 2_449_029, 123_718_280, 47, 100, 47, 0, 0, 0.08),
}
TABLE = ("SAGE", "GCN", "GATv2", "Transformer", "SAGEMax")
FORMS = ("edge", "csr", "compile")
LEAST_S = 2  # seconds that must be left for a run to begin
MOST_MS = 3000  # of timed epochs: slow models have fewer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
parser.add_argument("--sizes", default="small,large", help=f"of {', '.join(SIZES)}")
parser.add_argument("--only", default="", help="models, separated by commas; default: the table's, or all layers")
parser.add_argument("--all-layers", action="store_true", help="every layer of PyG's between two linear maps")
parser.add_argument("--alternatives", default="edge", help=f"PyG with: {', '.join(FORMS)}; empty: none")
parser.add_argument("--seconds", type=float, default=3600, help="of everything; what does not begin in it is left out")
parser.add_argument("--each", type=float, default=120, help="seconds of one model of PyG's, compilation included")
parser.add_argument("--epochs", type=int, default=5, help="that are timed, after two others; fewer where they are slow")
parser.add_argument("--message-memory", default="auto", help="as in fullgraph train")
parser.add_argument("--train", type=float, default=0.0, help="share of training nodes; default: as Reddit has, 0.66")
parser.add_argument("--live", action="store_true", help="leave out the rows that the loss does not read")
parser.add_argument("--no-ours", action="store_true", help="PyG alone")
parser.add_argument("--out", default="", help="a folder for JSON; else $OUT")


class Given(NamedTuple):
    """A graph on the device."""

    shape: Shape
    s: Structure
    x: Tensor
    y: Tensor
    train: Tensor
    edge_attr: Tensor

    def part(self, featured: bool) -> Part:
        return part_of(self.shape, self.s, self.x, self.y, self.train, self.edge_attr if featured else None)


class Case(NamedTuple):
    """A class of layer_nets.py, and its options."""

    name: str
    net: str
    options: dict[str, str | int]

    @property
    def featured(self) -> bool:
        return self.net == "OneFeaturedLayer"


class OutOfTime(BaseException):
    """A run exceeded its time limit; no `except Exception` of a compiler catches this."""


def cases() -> list[Case]:
    if not args.all_layers:
        return [Case(name, name, {}) for name in args.only.split(",") if name] or [Case(n, n, {}) for n in TABLE]
    narrow = {"NNConv": {"hidden": 16}}  # its weights are hidden x hidden for every edge
    found = [Case(name, "OneLayer", {"layer": name}) for name in PLAIN]
    found += [Case(name, "OneFeaturedLayer", {"layer": name, **narrow.get(name, {})}) for name in FEATURED]
    only = [name for name in args.only.split(",") if name]
    return sorted(case for case in found if not only or case.name in only)


def given(size: str) -> Given:
    shape = replace(SIZES[size], train=args.train or SIZES[size].train)
    s = community_graph(shape.nodes, shape.arcs, shape.communities, inside=0.8, order="random", device=args.device)
    x, y, train = data_of(shape, args.device)
    generator = torch.Generator(args.device).manual_seed(2)
    wanted = any(case.featured for case in cases())
    attr = torch.randn(s.num_arcs if wanted else 0, ARC_WIDTH, device=args.device, generator=generator)
    return Given(shape, s, x, y, train, attr)


def ours(g: Given, case: Case) -> Callable[[], object]:
    spec = MODELS.make(f"{NETS}:{case.net}", **case.options)
    config = TrainConfig(
        epochs=10**6, eval_every=10**6, device=args.device, message_memory=args.message_memory, report=False,
        all_rows=not args.live,
    )  # fmt: skip
    return build_trainer(Run(model=spec, train=config), g.part(case.featured), SingleRank()).train_step


def pyg(g: Given, case: Case, form: str) -> Callable[[], object]:
    """A training step of the user's class without fullgraph. form: the kind of edges for its layers, or `compile`."""
    import layer_nets

    torch.manual_seed(0)
    if form == "csr":
        ones = torch.ones(g.s.num_arcs, device=args.device)
        edges = torch.sparse_csr_tensor(g.s.indptr, g.s.indices.long(), ones, g.s.shape)
    else:
        rows = torch.repeat_interleave(torch.arange(g.s.num_rows, device=args.device), g.s.indptr.diff())
        edges = torch.stack([g.s.indices.long(), rows])
    net = getattr(layer_nets, case.net)(g.shape.features, g.shape.classes, **case.options).to(args.device)
    model: Callable[..., Tensor] = torch.compile(net) if form == "compile" else net
    inputs = (edges, g.edge_attr) if case.featured else (edges,)
    return step_of(net, lambda: model(g.x, *inputs)[g.train], g.y[g.train])


def step_of(net: nn.Module, logits: Callable[[], Tensor], y: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def step() -> None:
        F.cross_entropy(logits(), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Cost(NamedTuple):
    """The cost of an epoch."""

    ms: float
    gib: float
    start_gib: float  # of everything before: set-up, the self-check and the first epoch

    def __str__(self) -> str:
        start = f" ({self.start_gib:.3g} at the start)" if self.start_gib > 1.05 * self.gib else ""
        return f"{self.ms:.4g} ms, {self.gib:.3g} GiB{start}"


def measured(make: Callable[[], Callable[[], object]], limit: float) -> Cost | str:
    """The cost of an epoch, or the reason why there is none."""
    free()
    before = reset_peak()
    try:
        with at_most(limit):
            step = make()
            step()
            wait()
            start_gib = peak() - before
            reset_peak()
            times = [timed(step)]
            while len(times) <= args.epochs and sum(times) < MOST_MS:
                times.append(timed(step))
            times = times[1:] or times  # the second epoch is slower than later ones
        return Cost(statistics.median(times), peak() - before, start_gib)
    except torch.OutOfMemoryError:
        return "out of memory"
    except OutOfTime:
        return f"over {limit:.0f} s, stopped"
    except Exception as error:
        if "out of memory" in str(error) or "can't allocate memory" in str(error):
            return "out of memory"
        return f"fails: {type(error).__name__}: {one_line(error, 120)}"
    finally:
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def timed(step: Callable[[], object]) -> float:
    if args.device == "cpu":
        start = time.process_time()
        step()
        return (time.process_time() - start) * 1e3
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    step()
    after.record()
    after.synchronize()
    return before.elapsed_time(after)


def wait() -> None:
    if args.device == "cuda":
        torch.cuda.synchronize()


def free() -> None:
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()


def reset_peak() -> float:
    """Reset the peak; return the GiB in use on a CPU, and 0 on a GPU, where all memory counts."""
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return 0.0
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    if args.device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
    return int(status.split()[0]) / 2**20


def table(size: str, rows: dict[str, dict[str, str]]) -> None:
    heads = list(next(iter(rows.values())))
    print(f"\n| {size} | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}", flush=True)
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells[head] for head in heads)} |", flush=True)


def run(size: str, bench: Bench, began: float) -> None:
    g, rows = given(size), dict[str, dict[str, str]]()
    print(f"\n{size}: {g.s.num_rows:,} nodes, {g.s.num_arcs:,} edges, {g.shape.features} features", flush=True)
    forms = [form for form in FORMS if form in args.alternatives.split(",")]
    for case in cases():
        cells = rows[case.name] = {}
        ways: dict[str, Callable[[], Callable[[], object]]] = {}
        if not args.no_ours:
            ways["fullgraph"] = lambda case=case: ours(g, case)
        ways |= {f"PyG {form}": lambda case=case, form=form: pyg(g, case, form) for form in forms}
        for way, make in ways.items():
            left = args.seconds - (time.perf_counter() - began)
            limit = left if way == "fullgraph" else min(args.each, left)
            found = measured(make, limit) if left > LEAST_S else "left out, no time"
            bench.note(f"{size}/{case.name}/{way}", found)
            cells[way], first = str(found), bench.figures.get(f"{size}/{case.name}/fullgraph")
            if way != "fullgraph" and isinstance(found, Cost) and isinstance(first, Cost):
                cells[way] += f" = {found.ms / first.ms:.1f}x"
            print(f"{case.name:24} {way:12} {cells[way]}", flush=True)
            bench.write()
    table(size, rows)


if __name__ == "__main__":
    args = parser.parse_args()
    bench, start = Bench("gpu_layers", args.device, args.out), time.perf_counter()
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{device}, torch {torch.__version__}; {'live rows' if args.live else 'all rows'} on our side", flush=True)
    for one in args.sizes.split(","):
        run(one, bench, start)
        free()
