"""The kernels against torch's own: `python benchmarks/campaign.py kernels [--nodes N --arcs E --width D --threads T]`.

All rows are timed in turns, and the best time of each is kept: a busy machine slows them all equally.
"""

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from fullgraph.ops import Adjacency, Structure, act_dropout, add_rows, gather_rows, spmm


def random_structure(nodes: int, arcs: int) -> Structure:
    rng = np.random.default_rng(0)
    counts = np.bincount(rng.integers(0, nodes, arcs), minlength=nodes)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return Structure(torch.from_numpy(indptr), torch.from_numpy(rng.integers(0, nodes, arcs, dtype=np.int32)), nodes)


def rounds(cases: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the best time of each case in seconds; the first call of each compiles and does not count."""
    for case in cases.values():
        case()
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(repeats):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--arcs", type=int, default=4_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    s = random_structure(args.nodes, args.arcs)
    with warnings.catch_warnings():  # torch warns that its CSR tensors are in beta
        warnings.simplefilter("ignore")
        csr = torch.sparse_csr_tensor(s.indptr, s.indices.long(), torch.ones(s.num_arcs), s.shape)
    x, base = torch.randn(args.nodes, args.width), torch.zeros(args.nodes, args.width)
    mean = Adjacency(s, None, 1 / s.indptr.diff().clamp(min=1).float())
    full = Adjacency(s, torch.rand(s.num_arcs), torch.rand(args.nodes), torch.rand(args.nodes))
    ids, half = torch.arange(args.nodes), torch.randperm(args.nodes)[: args.nodes // 2].sort().values
    rows = x[half]
    grad, leaf = torch.randn_like(x), x.clone().requires_grad_()
    ours_y = act_dropout(leaf, ids, key=1, p=0.5, act="relu")
    torch_y = F.dropout(F.relu(leaf), 0.5)

    table: list[tuple[str, str, Callable[[], object], Callable[[], object]]] = [
        ("A x", "torch.sparse CSR", lambda: spmm(Adjacency(s), x), lambda: csr @ x),
        ("mean over arcs", "torch.sparse CSR", lambda: spmm(mean, x), lambda: csr @ x),
        ("weights and scales", "torch.sparse CSR", lambda: spmm(full, x), lambda: csr @ x),
        ("base += A x", "torch.sparse CSR", lambda: spmm(Adjacency(s), x, base), lambda: base.add_(csr @ x)),
        ("relu + dropout", "torch", lambda: act_dropout(x, ids, key=1, p=0.5, act="relu"),
         lambda: F.dropout(F.relu(x), 0.5)),
        ("its backward", "torch", lambda: torch.autograd.grad(ours_y, leaf, grad, retain_graph=True),
         lambda: torch.autograd.grad(torch_y, leaf, grad, retain_graph=True)),
        ("dropout", "a copy", lambda: act_dropout(x, ids, key=1, p=0.5, act="none"), x.clone),
        ("add half of the rows", "index_add_", lambda: add_rows(base, half, rows),
         lambda: base.index_add_(0, half, rows)),
        ("gather half of the rows", "x[rows]", lambda: gather_rows(x, half), lambda: x[half]),
    ]  # fmt: skip
    cases = {f"{side}/{name}": case for name, _, ours, other in table for side, case in (("us", ours), ("them", other))}
    best = rounds(cases, args.repeats)
    print(f"{args.nodes} nodes, {args.arcs} arcs, width {args.width}, {args.threads} threads; best of {args.repeats}")
    print(f"{'operation':26}{'fullgraph':>12}{'against':>12}   {'ratio':>6}")
    for name, against, _, _ in table:
        us, them = best[f"us/{name}"], best[f"them/{name}"]
        print(f"{name:26}{us * 1e3:9.1f} ms{them * 1e3:9.1f} ms   {them / us:5.1f}x  {against}")
