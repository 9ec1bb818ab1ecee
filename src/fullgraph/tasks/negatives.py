"""Draw nodes for pairs as a function of (seed, epoch, pair) alone, so that all ranks agree without communication."""

import zlib

import torch
from torch import Tensor

from fullgraph.ops.hashing import dropout_key, pair_ids

Stream = tuple[int, int, str]  # seed, epoch, purpose of the draws


def draw_nodes(stream: Stream, index_p: Tensor, first_p: Tensor, ids: range, count: int) -> Tensor:
    """`count` nodes for every pair [p, count], each drawn uniformly from `ids` but the pair's first node."""
    key = torch.tensor(_key(stream), device=index_p.device)
    hashed = pair_ids(pair_ids(index_p, key)[:, None], torch.arange(count, device=index_p.device))
    among_p = ((first_p >= ids.start) & (first_p < ids.stop))[:, None]
    drawn = ids.start + hashed % (len(ids) - among_p.long())
    return drawn + (among_p & (drawn >= first_p[:, None]))


def sampled(seed: int, index_p: Tensor, share: float) -> Tensor:
    """Mark the pairs of a random sample of about that share, [p]."""
    hashed = pair_ids(index_p, torch.tensor(_key((seed, 0, "sample")), device=index_p.device))
    return hashed.double() / 2.0**63 < share


def _key(stream: Stream) -> int:
    seed, epoch, what = stream
    return dropout_key(seed, epoch, zlib.crc32(what.encode()))
