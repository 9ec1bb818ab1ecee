"""The numba loops of the streaming partitioner: each reads the arcs of the rows [first, last) in order.

They release the GIL. Besides arcs, they use arrays with one entry per node and arrays with one entry per part.

Legend: N nodes, P parts, T node types (one in a homogeneous graph, whose `kind` is empty).
"""

import math

import numpy as np

from fullgraph.compiled import Array, compiled, inlined

_jit = compiled()  # no fastmath: every machine computes the same parts


@_jit
def weight_of(degree: int, a: float, b: float) -> int:
    """a + b * degree, rounded; at least 1, because nodes without weight could pile up in one part."""
    return max(1, int(np.rint(a + b * degree)))


@_jit
def add_weights(indptr: Array, kind: Array, a: Array, b: Array, part: Array, load: Array, total: Array) -> None:
    """load[t, p] += the weight of every node of type t in part p; total [T]: also of nodes without a part."""
    for i in range(part.size):
        t = kind[i] if kind.size else 0
        w = weight_of(indptr[i + 1] - indptr[i], a[t], b[t])
        total[t] += w
        if part[i] >= 0:
            load[t, part[i]] += w


@_jit
def place(
    indptr: Array, indices: Array, first: int, last: int, home: tuple[int, int], kind: Array, a: Array, b: Array,
    part: Array, seen: Array, load: Array, cap: Array, price: Array, everyone: bool, count: Array, vote: Array,
    votes: Array, light: Array, told: Array,
) -> tuple[int, int]:  # fmt: skip
    """Move each row to the part with the best  count[p] - price * w * sqrt(load[p]).

    count[p]: neighbours in p. load, cap [T, P], price [T]: those of the row's type. Candidates are the row's part, its
    neighbours' parts and a light part, if the row fits under `cap`. If it fits nowhere, it goes to the lightest part.
    If `everyone` is False, the row gets no part, and the light part is not a candidate.

    home: the nodes of this lane, whose parts are those of now; those of other nodes are `seen`. light [T, 2]: a part
    with little load, and the part to compare it with next; both are kept between calls. told [2, arcs]: receives votes
    for nodes of other lanes. Return how many rows moved, and how many votes were told.
    """
    moved = num_told = 0
    begin, end = home
    for i in range(first, last):
        low, high, own = indptr[i], indptr[i + 1], part[i]
        t = kind[i] if kind.size else 0
        w = weight_of(high - low, a[t], b[t])
        if own >= 0:
            load[t, own] -= w
        light[t, 1] = (light[t, 1] + 1) % load.shape[1]
        if load[t, light[t, 1]] < load[t, light[t, 0]]:
            light[t, 0] = light[t, 1]

        rate = price[t] * w
        majority = vote[i] if votes.size and votes[i] > 0 else -1
        for e in range(low, high):
            j = indices[e]
            p = part[j] if begin <= j < end else seen[j]
            if j != i and p >= 0 and (e == low or j != indices[e - 1]):  # rows are sorted: duplicates count once
                count[p] += 1
        if majority >= 0:
            count[majority] += votes[i]

        best, score = _better(own, count[own], load[t, own], -1, -np.inf, cap[t, own] - w, rate)
        best, score = _better(majority, count[majority], load[t, majority], best, score, cap[t, majority] - w, rate)
        for e in range(low, high):
            j = indices[e]
            p = part[j] if begin <= j < end else seen[j]
            best, score = _better(p, count[p], load[t, p], best, score, cap[t, p] - w, rate)
        if everyone:
            p = light[t, 0]
            best, score = _better(p, count[p], load[t, p], best, score, cap[t, p] - w, rate)
            if best < 0:
                best = int(np.argmin(load[t]))

        for e in range(low, high):
            j = indices[e]
            p = part[j] if begin <= j < end else seen[j]
            if p >= 0:
                count[p] = 0
        if votes.size:
            if majority >= 0:
                count[majority] = 0
            votes[i] = 0
            num_told = _tell(indices, low, high, i, best, home, vote, votes, told, num_told)
        part[i] = best
        if best >= 0:
            load[t, best] += w
        moved += best != own
    return moved, num_told


@_jit
def _better(p: int, neighbours: int, load: int, best: int, score: float, room: float, rate: float) -> tuple[int, float]:
    """Return the better of part p, if it is valid and has room, and the best part so far."""
    if p >= 0 and p != best and load <= room:
        s = neighbours - rate * math.sqrt(load)
        if s > score:
            return p, s
    return best, score


@inlined
def _tell(indices: Array, low: int, high: int, i: int, own: int, home: tuple[int, int], vote: Array, votes: Array,
          told: Array, num_told: int) -> int:  # fmt: skip
    """Row i, in part `own`, votes at each node that it reads; the majority is kept (Boyer and Moore 1981).

    In a directed graph, a row lists only the nodes that it reads. Votes give it the parts of the nodes that read it.
    Votes for nodes of other lanes wait in `told`; return how many wait.
    """
    for e in range(low, high):
        j = indices[e]
        if own < 0 or j == i or (e > low and j == indices[e - 1]):
            continue
        if home[0] <= j < home[1]:
            if votes[j] == 0:
                vote[j] = own
            votes[j] += 1 if vote[j] == own else -1
        else:
            told[0, num_told] = j
            told[1, num_told] = own
            num_told += 1
    return num_told


@_jit
def hear(told: Array, num_told: int, home: tuple[int, int], vote: Array, votes: Array) -> None:
    """Count the votes that another lane told, for the nodes of this lane."""
    for k in range(num_told):
        j, p = told[0, k], told[1, k]
        if home[0] <= j < home[1]:
            if votes[j] == 0:
                vote[j] = p
            votes[j] += 1 if vote[j] == p else -1


@_jit
def add_links(indptr: Array, indices: Array, first: int, last: int, part: Array, links: Array) -> None:
    """links[p, q] += the arcs into rows of p from nodes of another part q."""
    for i in range(first, last):
        own = part[i]
        for e in range(indptr[i], indptr[i + 1]):
            if part[indices[e]] != own:
                links[own, part[indices[e]]] += 1


@_jit
def lopsided(indptr: Array, indices: Array, first: int, last: int) -> np.uint64:
    """The sum over arcs j -> i of  hash(i, j) - hash(j, i),  in 64 bits; zero over a whole symmetric graph."""
    total = np.uint64(0)
    for i in range(first, last):
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            total += _mixed(np.uint64(i), np.uint64(j)) - _mixed(np.uint64(j), np.uint64(i))
    return total


@_jit
def _mixed(i: np.uint64, j: np.uint64) -> np.uint64:
    """The finalizer of SplitMix64, applied to a pair."""
    z = i * np.uint64(0x9E3779B97F4A7C15) + j
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
