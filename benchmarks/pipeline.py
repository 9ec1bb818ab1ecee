"""Deep models where the wire is slow: a 32-layer GCN on emulated hosts, by layers (gnnpipe) against by nodes (vanilla).

    sudo .venv/bin/python benchmarks/pipeline.py [--hosts 2 4] [--share 0.8] [--epochs 4] [--rounds 2]

The link is such that messages are `share` of vanilla's epoch, were nothing hidden. A stage's own work is the processor
time of its training thread. gnnpipe's ideal is compute plus bubble: the busiest stage's work x (K + S - 1) / K for K
chunks and S stages, but no less than all work over the cores there are. All strategies in turn in one run; of each,
the best of the rounds.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from common import fullgraph, seconds, show, size

from fullgraph.testing.hosts import Hosts

UNLIMITED = 40e9


def strategies(hosts: int) -> dict[str, tuple[str, dict[str, Any], int]]:
    """Name -> recipe, options, stages."""
    chosen: dict[str, tuple[str, dict[str, Any], int]] = {
        "vanilla": ("vanilla", {}, 1),
        "gnnpipe": ("gnnpipe", {}, hosts),
        "gnnpipe, half": ("gnnpipe", {"codec": "half"}, hosts),
    }
    if hosts > 2:
        chosen["hybrid, 2 ways"] = ("gnnpipe-hybrid", {"ways": 2}, hosts // 2)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="sbm:nodes=20000,edges=300000,features=64,p_in=0.9,seed=0")
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--body", nargs=2, type=Path, help=argparse.SUPPRESS)  # what each host runs: SHARDS OUT
    options = parser.parse_args()
    if options.body:
        body(*options.body, options)
        return
    rows = []
    for count in options.hosts:
        rows += measure(count, options)
    columns = ["hosts, link", "strategy", "bytes", "epoch", "waiting", "busiest", "ideal", "of ideal", "to vanilla"]
    show(f"{options.graph}, GCN {options.layers}x{options.hidden}, {os.cpu_count()} cores", columns, rows)


def measure(count: int, options: argparse.Namespace) -> list[tuple[str, ...]]:
    with tempfile.TemporaryDirectory() as name, Hosts(count) as hosts:
        shards = Path(name) / "shards"
        fullgraph("partition", options.graph, "--parts", count, "--out", shards)

        def run(rate: float, **changed: int) -> dict[str, Any]:
            hosts.rate(rate)
            chosen = {key: getattr(options, key) for key in ("hidden", "layers", "epochs", "rounds")} | changed
            flags = [text for key, value in chosen.items() for text in (f"--{key}", value)]
            out = Path(name) / f"{rate:.0f}.json"
            hosts.run([__file__, *flags, "--body", shards, out])
            found: dict[str, Any] = json.loads(out.read_text())
            return found

        free = run(UNLIMITED, epochs=2, rounds=1)["vanilla"]
        print(f"{count} hosts, unlimited: vanilla {seconds(free['epoch_s'])}", flush=True)
        crossing = free["epoch_s"] * options.share / (1 - options.share)  # seconds of the wire an epoch
        rate = 8 * free["bytes"] / count / crossing
        found = run(rate)
    rows = []
    for label, (_, _, stages) in strategies(count).items():
        got, ideal = found[label], ""
        if stages > 1:
            chunks = 4 * stages
            best = max(got["busy_s"] * (chunks + stages - 1) / chunks, got["work_s"] / (os.cpu_count() or 1))
            ideal = f"{100 * best / got['epoch_s']:.0f} %"
        rows.append(
            (
                f"{count}: {rate / 1e6:.0f} Mbit/s",
                label,
                size(got["bytes"]),
                seconds(got["epoch_s"]),
                seconds(got["wait_s"]),
                seconds(got["busy_s"]),
                seconds(best) if ideal else "",
                ideal,
                f"{found['vanilla']['epoch_s'] / got['epoch_s']:.2f}x",
            )
        )
    return rows


def body(shards: Path, out: Path, options: argparse.Namespace) -> None:
    """One rank: every strategy in turn; the first rank writes what was found."""
    from rank import Rank, best

    from fullgraph import nn
    from fullgraph.recipes import STRATEGIES

    rank = Rank(shards)
    spec = nn.GCN(layers=options.layers, hidden=options.hidden, norm="layer", residual=True)
    trainers = {
        label: rank.trainer(STRATEGIES.make(name, **chosen), spec, epochs=options.epochs)
        for label, (name, chosen, _) in strategies(rank.link.size).items()
    }
    rounds = [
        {label: rank.timed(trainer, f"{label} {turn}", options.epochs) for label, trainer in trainers.items()}
        for turn in range(options.rounds)
    ]
    if rank.link.rank == 0:
        out.write_text(json.dumps(best(rounds)))
    rank.over_ranks("done")
    rank.link.close()


if __name__ == "__main__":
    main()
