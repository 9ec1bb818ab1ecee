"""The numba loops over ids: 128 bits of hash per id, and a search among the ids of nodes.

A number is its own second half, so numbers never collide. Two texts collide with a probability of 2^-128.
"""

import numpy as np

from fullgraph.compiled import Array, compiled

_jit = compiled()
_A, _B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_C, _D = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _29, _30, _31, _32 = np.uint64(27), np.uint64(29), np.uint64(30), np.uint64(31), np.uint64(32)


@_jit
def hash_numbers(ids: Array, high: Array, low: Array) -> None:
    for i in range(ids.size):
        low[i] = np.uint64(ids[i])
        high[i] = _mixed(low[i] + _A)


@_jit
def hash_texts(starts: Array, text: Array, high: Array, low: Array) -> None:
    """Hash text[starts[i]:starts[i+1]], eight bytes at a time, into two halves with different constants."""
    for i in range(starts.size - 1):
        first, last = starts[i], starts[i + 1]
        h = np.uint64(last - first) * _A
        g = np.uint64(last - first) + _B
        for word in range(first, last, 8):
            w = np.uint64(0)
            for at in range(min(word + 8, last) - 1, word - 1, -1):
                w = (w << np.uint64(8)) | np.uint64(text[at])
            h = (h ^ w) * _C
            h ^= h >> _32
            g = (g + w) * _D
            g ^= g >> _29
        high[i], low[i] = _mixed(h), _mixed(g ^ _A)


@_jit
def _mixed(z: np.uint64) -> np.uint64:
    """The finalizer of SplitMix64."""
    z = (z ^ (z >> _30)) * _C
    z = (z ^ (z >> _27)) * _D
    return z ^ (z >> _31)


@_jit
def look_up(high: Array, low: Array, shift: np.uint64, first: Array, highs: Array, lows: Array, number: Array,
            out: Array) -> None:  # fmt: skip
    """out[i] = the number of the node with the hash (high[i], low[i]), or -1; bucket b = first[b] .. first[b+1]."""
    for i in range(high.size):
        bucket = np.int64(high[i] >> shift)
        found = -1
        for at in range(first[bucket], first[bucket + 1]):
            if highs[at] == high[i] and lows[at] == low[i]:
                found = number[at]
                break
        out[i] = found
