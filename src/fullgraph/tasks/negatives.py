"""Nodes drawn for pairs: a function of (seed, epoch, pair) alone, so that all ranks agree without talking."""

import zlib

import torch
from torch import Tensor

from fullgraph.ops.hashing import dropout_key, pair_ids

Stream = tuple[int, int, str]  # seed, epoch, what the draws are for


def draw_nodes(stream: Stream, index_p: Tensor, first_p: Tensor, num_nodes: int, count: int) -> Tensor:
    """`count` nodes for every pair [p, count], each any node but the pair's first one with the same chance."""
    key = torch.tensor(_key(stream), device=index_p.device)
    hashed = pair_ids(pair_ids(index_p, key)[:, None], torch.arange(count, device=index_p.device))
    drawn = hashed % (num_nodes - 1)
    return drawn + (drawn >= first_p[:, None])


def sampled(seed: int, index_p: Tensor, share: float) -> Tensor:
    """Which pairs are in a sample of about that share, [p]."""
    hashed = pair_ids(index_p, torch.tensor(_key((seed, 0, "sample")), device=index_p.device))
    return hashed.double() / 2.0**63 < share


def _key(stream: Stream) -> int:
    seed, epoch, what = stream
    return dropout_key(seed, epoch, zlib.crc32(what.encode()))
