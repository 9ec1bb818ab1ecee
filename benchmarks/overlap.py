"""How much of the wire is hidden: an epoch on two emulated hosts against its ideal, at two rates of the link.

    sudo .venv/bin/python benchmarks/overlap.py [--graph sbm:nodes=100000,...] [--epochs 10] [--rounds 2]

C is the epoch of `none` in the same run, less what it waits for weights: all compute, no halo. M is the time in which
an epoch's halo messages cross when nothing else is done. The rates are chosen such that M = C (communication is half of
C + M) and M = 9 C. ideal = max(C, M), and max(C, M / compression) for low bits. Every time is the best of the rounds'
means, for machines are shared. Also: the bytes that the interface counted (less Ethernet, IP and TCP headers, by its
count of packets) against the formula's. The graph is about as dense, and cut about as well, as ogbn-products.
"""

import argparse
import json
import math
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import fullgraph, seconds, show, size

from fullgraph.testing.hosts import Hosts

if TYPE_CHECKING:
    from fullgraph.nn import ModelSpec
    from fullgraph.recipes import Given

STRATEGIES = ("none", "vanilla", "pipegcn", "sylvie-s", "sylvie-a")
HEADERS = 14 + 20 + 32  # Ethernet, IP, TCP with timestamps
UNLIMITED = 40e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="sbm:nodes=100000,edges=2500000,features=64,p_in=0.99,seed=0")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--body", nargs=2, type=Path, help=argparse.SUPPRESS)  # what each host runs: SHARDS OUT
    options = parser.parse_args()
    if options.body:
        body(*options.body, options)
        return
    with tempfile.TemporaryDirectory() as name, Hosts(2) as hosts:
        shards = Path(name) / "shards"
        fullgraph("partition", options.graph, "--parts", 2, "--out", shards)

        def measure(rate: float) -> dict[str, Any]:
            hosts.rate(rate)
            chosen = {key: getattr(options, key) for key in ("hidden", "layers", "epochs", "rounds")}
            flags = [text for key, value in chosen.items() for text in (f"--{key}", value)]
            out = Path(name) / f"{rate:.0f}.json"
            hosts.run([__file__, *flags, "--body", shards, out])
            found: dict[str, Any] = json.loads(out.read_text())
            return found

        free = measure(UNLIMITED)
        print(f"unlimited: C = {seconds(compute(free))}, vanilla {seconds(free['vanilla']['epoch_s'])}", flush=True)
        rows, counted = [], []
        for share, ratio in (("1/2", 1), ("9/10", 9)):
            rate = 8 * free["vanilla"]["bytes"] / 2 / (ratio * compute(free))
            found = measure(rate)
            C, M = compute(found), found["wire"]["epoch_s"]
            for strategy in STRATEGIES[1:]:
                run = found[strategy]
                compression = found["vanilla"]["bytes"] / run["bytes"]
                ideal, whole = max(C, M / compression), C + M / compression
                rows.append(
                    (f"{share}: {rate / 1e6:.0f} Mbit/s", strategy, seconds(C), seconds(M),
                     f"{compression:.1f}", seconds(whole), seconds(ideal), seconds(run["epoch_s"]),
                     seconds(run["wait_s"]), f"{100 * ideal / run['epoch_s']:.0f} %")
                )  # fmt: skip
                if run["packets"]:
                    crossed = run["counted"] - HEADERS * run["packets"]
                    formula = run["bytes"] / 2 + run["weight_bytes"]
                    counted.append((rows[-1][0], strategy, size(formula), size(run["counted"]), f"{run['packets']:.0f}",
                                    f"{crossed / formula:.4f}"))  # fmt: skip
    cores = f"{os.cpu_count()} cores, 2 hosts"
    columns = ["link", "strategy", "C", "M", "compression", "C + M", "ideal", "measured", "waiting", "of ideal"]
    show(f"{options.graph}, GraphSAGE {options.layers}x{options.hidden}, {cores}", columns, rows)
    show("bytes an epoch, of one host", ["link", "strategy", "formula", "interface", "packets", "ratio"], counted)


def compute(found: dict[str, Any]) -> float:
    """C: what an epoch takes without a halo, and without waiting for the sum of the weights' gradients."""
    none: dict[str, float] = found["none"]
    return none["epoch_s"] - none["wait_s"]


def wide(name: str, spec: "ModelSpec") -> "Given":
    """A strategy in which a layer's input crosses, as in all others here, so that all send the same rows."""
    from fullgraph.recipes import STRATEGIES, Given

    strategy = STRATEGIES.make(name)
    return Given(
        wire=strategy.wires(epochs=100, layers=spec.graph_layers),
        placement=replace(strategy.layout(), narrow_first=False),
    )


def body(shards: Path, out: Path, options: argparse.Namespace) -> None:
    """One rank: every strategy in turn, then the bare wire; the first rank writes what was found."""
    import torch
    from rank import Rank, best

    from fullgraph import nn
    from fullgraph.plan import HaloRoute
    from fullgraph.transport import Key

    rank = Rank(shards)
    link, part = rank.link, rank.part
    spec = nn.GraphSAGE(layers=options.layers, hidden=options.hidden)

    def cross(turn: int) -> float:
        """Seconds in which an epoch's messages cross: all layers but the first, there and back."""
        route = HaloRoute(part.send_rows, part.send_counts, part.recv_counts, len(part.ids))
        there, back = ({peer: math.prod(shape) * 4 for peer, shape in way.shapes((options.hidden,)).items()}
                       for way in (route.T, route))  # fmt: skip
        rank.over_ranks(f"wire {turn}")
        start, messages = time.perf_counter(), []
        for layer in range(1, options.layers):
            for way, sent, come in (("forward", there, back), ("backward", back, there)):
                rows = {peer: torch.zeros(nbytes, dtype=torch.uint8) for peer, nbytes in sent.items()}
                messages.append(link.begin(Key(f"wire {layer}", turn, way), rows, come))
        for message in messages:
            message.wait()
        return float(rank.over_ranks(f"wire {turn} took", time.perf_counter() - start).max())

    trainers = {name: rank.trainer(wide(name, spec), spec, epochs=options.epochs) for name in STRATEGIES}
    rounds = []
    for turn in range(options.rounds):
        rounds.append({name: rank.timed(t, f"{name} {turn}", options.epochs) for name, t in trainers.items()})
        rounds[-1]["wire"] = {"epoch_s": cross(turn)}
    if link.rank == 0:
        out.write_text(json.dumps(best(rounds)))
    rank.over_ranks("done")
    link.close()


if __name__ == "__main__":
    main()
