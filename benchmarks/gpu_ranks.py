"""Ranks that share one GPU: equal to one rank, how much of their messages is hidden, roles on two devices, kills.

    PYTHONPATH=src python benchmarks/gpu_ranks.py [--only equal,overlap,mixture,kill] [--out FOLDER] [--device cpu]

equal: `fullgraph train` with 1, 2 and 4 ranks. The losses of `vanilla` must be those of one rank.

overlap: real processes, one trainer a strategy, all ranks at work at once. They share one GPU, so every time below is
that of all ranks together, from one barrier to the next.
    C      an epoch with messages switched off: the same products, packing and weight sums; what peers would have sent
           is zeros that lie on the device already.
    M      the messages of one such epoch, kept, and sent once more with nothing else to do: encoded, copied to pinned
           memory, moved by gloo, copied back, decoded.
    epoch  both at once; `wait` is how long the slowest rank's compute stream stood still for messages.
The target for pipegcn is an epoch of at most 1.15 max(C, M). The timeline is one epoch of every rank: CUDA events and
host times on one clock, into FOLDER/timeline-RANKS-STRATEGY.json, and drawn as text.

mixture: MixGCN with the sparse products on one device and the dense ones on another, beside one rank.
kill: a rank is killed at a random moment, the run resumed; files compared to the bit with those of a whole run.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gpu_common import Bench, community_graph, write_graph
from torch import Tensor

from fullgraph import nn, recipes
from fullgraph.partition import open_part
from fullgraph.report import Tally
from fullgraph.report.meter import Mark, stopwatch_of
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_processes
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import Trainer
from fullgraph.transport import PLAIN, Coding, Key, Pending, ProcessTransport, Ready
from tests.support import ranks_of

STRATEGIES = ("vanilla", "pipegcn", "sylvie-a")
WARM_UP = 3  # epochs; they compile kernels, and fill what is late
ROUNDS = 3  # of messages alone
Span = tuple[float, float]  # seconds of the host's clock


@dataclass(frozen=True)
class Setting:
    """A graph and the model trained on it."""

    device: str
    nodes: int
    arcs: int
    features: int
    hidden: int
    layers: int
    inside: float  # share of edges that stay in one of 40 communities; the others make the halo
    epochs: int

    @property
    def shape(self) -> str:
        return f"{self.nodes:,} nodes, {self.arcs:,} arcs, GraphSAGE {self.layers}x{self.hidden}, {self.device}"

    @property
    def model(self) -> list[object]:
        return ["--layers", self.layers, "--hidden", self.hidden, "--norm", "layer", "--input-dropout"]

    def write(self, path: Path) -> Path:
        s = community_graph(self.nodes, self.arcs, 40, inside=self.inside, order="community", device=self.device)
        write_graph(path, s, self.features, 40, train=0.66)
        del s
        if self.device == "cuda":
            torch.cuda.empty_cache()  # what follows runs in other processes
        return path


# The switch between a trainer and its ranks


class Late:
    """A pending message, and when it came."""

    def __init__(self, key: Key, nbytes: int, ready: Mark, pending: Any) -> None:
        self.key, self.nbytes, self.ready, self.pending = key, nbytes, ready, pending
        self.came: float | None = None
        if hasattr(pending, "future"):  # a transport of processes
            pending.future.add_done_callback(self._note)

    def _note(self, future: object) -> None:
        self.came = time.perf_counter()

    def wait(self) -> dict[int, Tensor]:
        rows: dict[int, Tensor] = self.pending.wait()
        return rows


@dataclass(frozen=True)
class Message:
    key: Key
    outgoing: dict[int, Tensor]
    incoming: dict[int, int]
    coding: Coding


class Switch:
    """Passes everything on; the halo's messages may be traced, kept, or switched off."""

    def __init__(self, inner: ProcessTransport, device: torch.device) -> None:
        self.inner, self.rank, self.size = inner, inner.rank, inner.size
        self.watch = stopwatch_of(device)
        self.muted = False
        self.traced: list[Late] | None = None
        self.kept: list[Message] | None = None
        self._zeros: dict[Any, Tensor] = {}

    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
        if key.use != "rows":
            return self.inner.begin(key, outgoing, incoming, coding)
        if self.muted:
            return Ready({peer: self._nothing(coding, peer) for peer in incoming})
        if self.kept is not None:
            self.kept.append(Message(key, outgoing, incoming, coding))
        if self.traced is None:
            return self.inner.begin(key, outgoing, incoming, coding)
        ready = self.watch.mark()
        nbytes = sum(coding.nbytes(peer, rows) for peer, rows in outgoing.items())
        self.traced.append(Late(key, nbytes, ready, self.inner.begin(key, outgoing, incoming, coding)))
        return self.traced[-1]

    def _nothing(self, coding: Any, peer: int) -> Tensor:
        """Zeros in place of a peer's rows, made once."""
        inner = coding.coding  # without the meter
        about = (inner.shapes[peer], inner.like.dtype, inner.like.device)
        if about not in self._zeros:
            self._zeros[about] = torch.zeros(about[0], dtype=about[1], device=about[2])
        return self._zeros[about]

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        return self.inner.all_reduce(key, x)

    def fork(self) -> "Switch":
        raise AssertionError("no trainer of this benchmark forks")

    def away(self, text: str) -> Any:
        return self.inner.away(text)

    def close(self) -> None:
        pass


# One rank


class Rank:
    """One process: the part it owns, and what is measured on it."""

    def __init__(self, link: ProcessTransport, shards: Path, setting: Setting) -> None:
        self.link, self.setting = link, setting
        self.device = torch.device("cuda", 0) if setting.device == "cuda" else torch.device("cpu")
        self.part = open_part(shards, link.rank)
        self.count = 0

    @cached_property
    def spec(self) -> nn.GraphSAGE:
        return nn.GraphSAGE(layers=self.setting.layers, hidden=self.setting.hidden, norm="layer", input_dropout=True)

    def over_ranks(self, value: float = 0.0) -> Tensor:
        """Every rank's value; no rank returns before all have come."""
        self.count += 1
        values = torch.zeros(self.link.size, dtype=torch.float64)
        values[self.link.rank] = value
        return self.link.all_reduce(Key("bench", self.count), values).wait()

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Appends the seconds from when all ranks are here to when all, and the device, are done."""
        self.finish()
        self.over_ranks()
        start, took = time.perf_counter(), []
        yield took
        self.finish()
        self.over_ranks()
        took.append(time.perf_counter() - start)

    def trainer(self, name: str, switch: Switch) -> Trainer:
        strategy = recipes.STRATEGIES.make(name)
        # A layer's input crosses in every strategy, so that all send the same rows.
        wide = recipes.Given(
            wire=strategy.wires(epochs=10**6, layers=self.spec.graph_layers),
            placement=replace(strategy.layout(), sends="input"),
        )
        config = TrainConfig(device=self.device.type)
        return build_trainer(Run(model=self.spec, strategy=wide, train=config), self.part, switch)

    def strategy(self, name: str) -> dict[str, Any]:
        """C, M and the epoch of a strategy, and its timeline."""
        switch = Switch(self.link, self.device)
        trainer = self.trainer(name, switch)
        epoch_s, tallies = self.epochs(trainer)
        waits = statistics.median(tally.wait_s for tally in tallies)
        found: dict[str, Any] = {"epoch_s": epoch_s, "wait_s": float(self.over_ranks(waits).max())}
        found["bytes"] = float(self.over_ranks(tallies[-1].halo_bytes).sum())
        found["timeline"] = self.timeline(trainer, switch)
        switch.kept = []
        trainer.train_step()
        self.finish()
        kept, switch.kept = switch.kept, None
        found["M"] = min(self.cross(name, turn, kept) for turn in range(ROUNDS))
        del kept
        switch.muted = True
        found["C"], _ = self.epochs(trainer)
        return found

    def epochs(self, trainer: Trainer) -> tuple[float, list[Tally]]:
        """Seconds of an epoch, the mean over some in a row, for nothing waits between them."""
        for _ in range(WARM_UP):
            trainer.train_step()
        with self.timed() as took:
            tallies = [trainer.train_step()[1] for _ in range(self.setting.epochs)]
        return took[0] / self.setting.epochs, tallies

    def cross(self, name: str, turn: int, messages: list[Message]) -> float:
        """Seconds in which an epoch's messages cross with nothing else to do."""
        with self.timed() as took:
            pending = [
                self.link.begin(
                    replace(m.key, channel=f"again {name} {turn}/{m.key.channel}"), m.outgoing, m.incoming, m.coding
                )
                for m in messages
            ]
            for one in pending:
                one.wait()
        return took[0]

    def timeline(self, trainer: Trainer, switch: Switch) -> dict[str, Any]:
        """When this rank computed, and when its messages were under way, in the second of three epochs."""
        zero = switch.watch.mark()
        self.finish()
        start, tallies, late = time.perf_counter(), [], []
        self.over_ranks()
        for _ in range(3):
            switch.traced = []
            tallies.append(trainer.train_step()[1])
            late.append(switch.traced)
        switch.traced = None
        trainer.shard.state()  # waits for what is on its way
        self.finish()

        def at(mark: Mark) -> float:
            """A mark on the host's clock. The device had passed `zero` when the host read `start`."""
            return float(mark) if self.device.type == "cpu" else start + switch.watch.seconds((zero, mark))

        assert tallies[1].step is not None
        step = at(tallies[1].step[0]), at(tallies[1].step[1])
        waits = [(at(a), at(b)) for a, b in tallies[1].waits]
        # Also those of the epoch before that arrive in this one.
        messages = [
            {"name": str(m.key), "bytes": m.nbytes, "span": (at(m.ready), m.came)}
            for m in [*late[0], *late[1]]
            if m.came is not None and m.came > step[0]
        ]
        return {"rank": self.link.rank, "step": step, "compute": without(step, waits), "messages": messages}


def without(whole: Span, holes: list[Span]) -> list[Span]:
    """What is left of a span without some parts of it."""
    left, begin = [], whole[0]
    for low, high in sorted(holes):
        if low > begin:
            left.append((begin, low))
        begin = max(begin, high)
    return [*left, (begin, whole[1])] if begin < whole[1] else left


def body(ordered: Any, shards: Path, setting: Setting, strategies: tuple[str, ...]) -> dict[str, Any]:
    """What every rank runs."""
    rank = Rank(ordered.inner, shards, setting)
    return {name: rank.strategy(name) for name in strategies}


def covered(spans: list[Span], by: list[Span]) -> float:
    """Which share of the union of `spans` lies under the union of `by`."""
    inside, total = 0.0, 0.0
    cuts = sorted({edge for span in (*spans, *by) for edge in span})
    for low, high in pairwise(cuts):
        middle = (low + high) / 2
        if any(a <= middle < b for a, b in spans):
            total += high - low
            inside += (high - low) * any(a <= middle < b for a, b in by)
    return inside / total if total else float("nan")


def draw(lines: list[dict[str, Any]], width: int = 110) -> str:
    """Two rows a rank: # where it computes, . where it waits; below, how many of its messages are under way."""
    low, high = min(line["step"][0] for line in lines), max(line["step"][1] for line in lines)
    moments = [low + (high - low) * (k + 0.5) / width for k in range(width)]
    text = [f"{(high - low) * 1e3:.1f} ms, a column {(high - low) / width * 1e3:.2f} ms"]
    for line in lines:
        compute = ["#" if any(a <= t < b for a, b in line["compute"]) else "." for t in moments]
        under = [sum(m["span"][0] <= t < m["span"][1] for m in line["messages"]) for t in moments]
        text.append(f"rank {line['rank']} computes  {''.join(compute)}")
        text.append(f"       messages  {''.join(str(min(n, 9)) if n else ' ' for n in under)}")
    return "\n".join(text)


# Sections


class Sections:
    """What they write goes to a temporary folder."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.bench = Bench("gpu_ranks", options.device, options.out)
        few = options.device == "cpu"
        self.ranks = tuple(map(int, options.ranks.split(",")))

        def setting(nodes: int, arcs: int, width: int, layers: int, inside: float) -> Setting:
            scale = options.scale
            return Setting(
                options.device, max(2000, int(nodes * scale)), max(20_000, int(arcs * scale)), 8 if few else width,
                8 if few else width, layers, inside, options.epochs,
            )  # fmt: skip

        self.large = setting(options.nodes, options.arcs, 256, 4, options.inside)
        self.middle = setting(100_000, 5_000_000, 128, 3, 0.9)
        self.small = setting(30_000, 1_500_000, 64, 3, 0.9)

    def run(self) -> None:
        sections = (self.equal, self.overlap, self.mixture, self.kill)
        only = [name for name in self.options.only.split(",") if name]
        self.bench.run({section.__name__: section for section in sections}, only)

    def shards(self, ranks: int) -> Path:
        """The large graph in as many parts, cut once; its communities are in order, so runs of nodes are good parts."""
        graph, shards = self.folder / "graph.npz", self.folder / f"shards {ranks}"
        if not graph.exists():
            self.large.write(graph)
        if not shards.exists():
            start = time.perf_counter()
            fullgraph("partition", graph, "--partitioner", "contiguous", "--parts", ranks, "--out", shards)
            print(f"cut into {ranks} in {time.perf_counter() - start:.1f} s", flush=True)
        return shards

    def equal(self) -> None:
        """One, two and four ranks by the command line: losses, epochs, what is waited for."""
        print(self.large.shape, flush=True)
        flags = [*self.large.model, "--epochs", self.large.epochs + 5, "--eval-every", 10**6]
        flags += ["--checkpoint-every", 0, "--device", self.large.device]
        alone: list[float] = []
        for ranks in dict.fromkeys((1, *self.ranks)):
            shards = self.shards(ranks)
            columns = f"{'ranks':>5} {'strategy':10} {'epoch':>9} {'waits':>9} {'start':>8} {'last loss':>10}"
            print(f"{columns}  losses off by", flush=True)
            for strategy in STRATEGIES if ranks > 1 else STRATEGIES[:1]:
                out = self.folder / f"{strategy} {ranks}"
                fullgraph("train", shards, "--strategy", strategy, *flags, "--out", out)
                result, losses = json.loads((out / "result.json").read_text()), losses_of(out)
                alone = alone or losses
                off = max(abs(a - b) / abs(b) for a, b in zip(losses, alone, strict=True))
                start = sum(result["startup_s"].values())
                self.bench.note(f"equal/{ranks} {strategy}", {"result": result, "losses": losses, "off": off})
                wrong = "  WRONG: more than 1e-4" if strategy == "vanilla" and off > 1e-4 else ""
                print(
                    f"{ranks:5} {strategy:10} {result['epoch_s'] * 1e3:6.1f} ms {result['wait_s'] * 1e3:6.1f} ms "
                    f"{start:6.1f} s {losses[-1]:10.5f}  {off:.1e}{wrong}",
                    flush=True,
                )

    def overlap(self) -> None:
        """What an epoch takes beside its compute alone and its messages alone, and a timeline."""
        setting, drawn = self.large, dict[str, str]()
        print(f"{setting.shape}, {setting.inside:.2%} of the edges inside communities", flush=True)
        for ranks in [n for n in self.ranks if n > 1]:
            shards = self.shards(ranks)
            print(f"{'ranks':>5} {'strategy':10} {'C':>9} {'M':>9} {'epoch':>9} {'waits':>9} {'MB sent':>8} "
                  f"{'/ max(C, M)':>11} {'/ (C + M)':>9} {'under compute':>13}", flush=True)  # fmt: skip
            for strategy in STRATEGIES:  # each in processes of its own, so that one failure does not end the others
                try:
                    self._overlap(ranks, strategy, shards, drawn)
                except Exception as error:
                    self.bench.note(f"overlap/{ranks} {strategy}/failed", str(error))
                    print(f"{ranks:5} {strategy:10} failed: {error}", flush=True)
        for title, text in drawn.items():
            print(f"\n{title}: {text}", flush=True)

    def _overlap(self, ranks: int, strategy: str, shards: Path, drawn: dict[str, str]) -> None:
        of_ranks = run_processes(
            ranks, body, shards, self.large, (strategy,), timeout=400, silence=60.0, device=self.large.device
        )
        found = [of_rank[strategy] for of_rank in of_ranks]
        first, lines = found[0], [one["timeline"] for one in found]
        C, M, epoch = first["C"], first["M"], first["epoch_s"]
        hidden = [covered([m["span"] for m in line["messages"]], line["compute"]) for line in lines]
        drawn[f"{strategy}, {ranks} ranks"] = draw(lines)
        figures = {key: first[key] for key in ("C", "M", "epoch_s", "wait_s", "bytes")}
        figures |= {"to_ideal": epoch / max(C, M), "under_compute": hidden, "timeline": lines}
        self.bench.note(f"overlap/{ranks} {strategy}", figures)
        print(
            f"{ranks:5} {strategy:10} {C * 1e3:6.1f} ms {M * 1e3:6.1f} ms {epoch * 1e3:6.1f} ms "
            f"{first['wait_s'] * 1e3:6.1f} ms {first['bytes'] / 1e6:8.1f} {epoch / max(C, M):11.2f} "
            f"{epoch / (C + M):9.2f} {statistics.mean(hidden):13.0%}",
            flush=True,
        )
        if self.bench.out:
            Path(self.bench.out).mkdir(parents=True, exist_ok=True)
            (Path(self.bench.out) / f"timeline-{ranks}-{strategy}.json").write_text(json.dumps(lines, indent=1))

    def mixture(self) -> None:
        """MixGCN: sparse products on one device, dense ones on another."""
        gpu = "cuda:0" if self.middle.device == "cuda" else "cpu"
        runs: dict[str, list[object]] = {
            "one rank, vanilla": ["--parts", 1],
            f"one rank, cpu+{gpu}": ["--parts", 1, *mix(f"cpu+{gpu}")],
            f"both on {gpu}": ["--parts", 2, *mix(f"{gpu},{gpu}")],
            f"two ranks, cpu+{gpu}": ["--parts", 2, *mix(f"cpu+{gpu},cpu+{gpu}")],
            f"two ranks, {gpu}+cpu": ["--parts", 2, *mix(f"{gpu}+cpu,{gpu}+cpu")],
            f"sparse on cpu, dense on {gpu}": ["--parts", 2, *mix(f"cpu,{gpu}", "sparse,dense")],
            f"sparse on {gpu}, dense on cpu": ["--parts", 2, *mix(f"{gpu},cpu", "sparse,dense")],
        }
        with tempfile.TemporaryDirectory() as name:
            graph = self.middle.write(Path(name) / "graph.npz")
            print(self.middle.shape, flush=True)
            flags = [*self.middle.model, "--epochs", self.middle.epochs, "--eval-every", 10**6]
            flags += ["--checkpoint-every", 0, "--device", self.middle.device]
            alone: list[float] = []
            for number, (title, chosen) in enumerate(runs.items()):
                out = Path(name) / str(number)
                try:
                    fullgraph("train", graph, *chosen, *flags, "--out", out)
                except RuntimeError as error:
                    self.bench.note(f"mixture/{title}/failed", str(error))
                    print(f"{title:32} failed: {error}", flush=True)
                    continue
                result, losses = json.loads((out / "result.json").read_text()), losses_of(out)
                alone = alone or losses
                off = max(abs(a - b) / abs(b) for a, b in zip(losses, alone, strict=True))
                self.bench.note(f"mixture/{title}", {"result": result, "losses": losses, "off": off})
                wrong = "  WRONG: more than 1e-4" if off > 1e-4 else ""
                epoch, wait = result["epoch_s"] * 1e3, result["wait_s"] * 1e3
                print(f"{title:32} {epoch:8.1f} ms, waits {wait:8.1f} ms, losses off by {off:.1e}{wrong}", flush=True)

    def kill(self) -> None:
        """Two ranks, one killed at a random moment, resumed: model and predictions equal to the bit."""
        draws = random.Random(self.options.seed)
        flags = [*self.small.model, "--parts", 2, "--partitioner", "contiguous", "--device", self.small.device]
        flags += ["--checkpoint-every", 5, "--eval-every", 7]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            graph = self.small.write(folder / "graph.npz")
            print(self.small.shape, flush=True)
            for strategy in STRATEGIES:
                cut, whole, victim = folder / f"{strategy} cut", folder / f"{strategy} whole", draws.randrange(2)
                train = ["train", graph, "--strategy", strategy, *flags]
                after = kill_one(command([*train, "--epochs", 10**6, "--out", cut]), cut, victim, draws.uniform(0, 2))
                newest = max(int(path.name.removeprefix("epoch-")) for path in (cut / "checkpoints").glob("epoch-*"))
                fullgraph("train", "--resume", cut, "--epochs", newest + 9)
                fullgraph(*train, "--epochs", newest + 9, "--out", whole)
                files = ["model.safetensors", "predictions/classes.npy", "predictions/probabilities.npy"]
                losses = losses_of(cut) == losses_of(whole)
                same = {file: tensors_of(cut / file) == tensors_of(whole / file) for file in files}
                self.bench.note(f"kill/{strategy}", {"victim": victim, "after_s": after, "losses": losses, **same})
                verdict = "the same bits" if losses and all(same.values()) else "DIFFERENT"
                print(
                    f"{strategy:10} rank {victim} killed {after:.2f} s after the first checkpoint, resumed from epoch "
                    f"{newest}: {verdict} ({same}, losses {losses})",
                    flush=True,
                )


def mix(devices: str, roles: str = "") -> list[object]:
    chosen: list[object] = ["--strategy", "mixgcn", "-o", f"devices={devices}"]
    return [*chosen, "-o", f"roles={roles}"] if roles else chosen


def command(arguments: list[object]) -> list[str]:
    return [sys.executable, "-m", "fullgraph", *map(str, arguments)]


def fullgraph(*arguments: object) -> None:
    """`fullgraph ARGUMENTS`; its last words are the error's."""
    done = subprocess.run(
        command(list(arguments)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500, check=False
    )
    if done.returncode:
        words = list(map(str, arguments))
        raise RuntimeError(f"fullgraph {' '.join(words)} exited with {done.returncode}: {done.stdout[-1500:].strip()}")


def losses_of(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def tensors_of(path: Path) -> Any:
    """What two files must share; a model's file also names its run, which is another's."""
    if path.suffix != ".safetensors":
        return path.read_bytes()
    from safetensors.torch import load_file

    return {name: value.numpy().tobytes() for name, value in load_file(path).items()}


def kill_one(arguments: list[str], out: Path, victim: int, delay: float) -> float:
    """Start a run, kill a rank some time after its first checkpoint, wait for the end; returns that time."""
    with tempfile.TemporaryFile("w+") as words:
        run = subprocess.Popen(arguments, stdout=words, stderr=subprocess.STDOUT, text=True)
        try:
            deadline = time.monotonic() + 180
            while not any((out / "checkpoints").glob("epoch-*")):
                if run.poll() is not None or time.monotonic() > deadline:
                    words.seek(0)
                    raise RuntimeError(f"no checkpoint came: {words.read()[-1500:]}")
                time.sleep(0.02)
            time.sleep(delay)
            os.kill(ranks_of(run.pid)[victim], signal.SIGKILL)
            status = run.wait(120)
            if status != 1:
                raise RuntimeError(f"a run of which a rank was killed exited with {status}")
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()
    return delay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sections, separated by commas")
    parser.add_argument("--out", default="", help="a folder for JSON; else $OUT")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--nodes", type=int, default=232_960)
    parser.add_argument("--arcs", type=int, default=100_000_000)
    parser.add_argument("--inside", type=float, default=0.9997, help="share of edges inside communities")
    parser.add_argument("--scale", type=float, default=1.0, help="make all graphs smaller, for a trial")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the moment of the kill")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device == "cuda" else "no GPU: a trial of the script"
    print(f"{where}, torch {torch.__version__}, {os.cpu_count()} cores, kills drawn from {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Sections(options, Path(folder)).run()


if __name__ == "__main__":
    main()
