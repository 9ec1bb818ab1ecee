"""LowBit against copying the block: `python benchmarks/campaign.py codecs [--rows N --width D --threads T]`.

There are two cases: into buffers in use, compared with `copy_`, and as the codec is called, into fresh memory, compared
with `clone` (the system then allocates new pages, which costs most of the time). All cases are timed in turns, and the
best time of each is kept.
"""

import argparse

import torch
from campaigns.kernels import rounds
from common import seconds, show
from torch import Tensor

from fullgraph.codec import LowBit
from fullgraph.ops import reference
from fullgraph.ops.kernels import backend
from fullgraph.transport.key import Key

KEY = Key("benchmark", 0)
COLUMNS = ["bits", "copy", "encode", "decode", "both / copy", "torch reference, both", "times faster"]


def measure(bits: int, x: Tensor, repeats: int, slow_repeats: int) -> tuple[list[str], list[str]]:
    """Return a row of each table: buffers in use, and fresh memory."""
    codec, kernel, shape = LowBit(bits), backend(x), tuple(x.shape)
    assert kernel is not reference, "there is no kernel to measure; install numba and unset FULLGRAPH_KERNELS"
    out, flat = torch.zeros_like(x), codec.encode(x, KEY)
    wire = flat.view(x.shape[0], -1)
    quick = rounds(
        {
            "copy": lambda: out.copy_(x),
            "encode": lambda: kernel.lowbit_encode(x, KEY.seed, bits, wire),
            "decode": lambda: kernel.lowbit_decode(wire, bits, out),
            "clone": lambda: x.clone(),
            "fresh encode": lambda: codec.encode(x, KEY),
            "fresh decode": lambda: codec.decode(flat, shape, x.dtype, KEY),
        },
        repeats,
    )
    slow = rounds(
        {
            "encode": lambda: reference.lowbit_encode(x, KEY.seed, bits, wire),
            "decode": lambda: reference.lowbit_decode(wire, bits, out),
        },
        slow_repeats,
    )

    def row(copy: float, encode: float, decode: float) -> list[str]:
        both, reference_both = encode + decode, sum(slow.values())
        times = map(seconds, (copy, encode, decode))
        return [str(bits), *times, f"{both / copy:.2f}", seconds(reference_both), f"{reference_both / both:.1f}"]

    return (
        row(quick["copy"], quick["encode"], quick["decode"]),
        row(quick["clone"], quick["fresh encode"], quick["fresh decode"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--reference-repeats", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    x = torch.randn(args.rows, args.width)
    warm, fresh = zip(*(measure(bits, x, args.repeats, args.reference_repeats) for bits in (1, 2, 4, 8)), strict=True)
    title = f"{args.rows} x {args.width} float32, {args.threads} thread(s), "
    show(title + "buffers in use", COLUMNS, warm)
    show(title + "fresh memory, as the codec is called", COLUMNS, fresh)
