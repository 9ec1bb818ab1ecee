"""Order a rank's rows so that neighbours are close together and products find their rows in a cache.

Rows are clustered by label propagation (Raghavan et al., arXiv:0709.2938) with a limit on a cluster's size. The
clusters are then the rows of a smaller graph, which is ordered in the same way with twice the limit, and so on.

Legend: n owned rows, m of them that may move, l labels (as many as rows), c clusters, v votes of a row.
"""

import torch
from torch import Tensor

from fullgraph.ops.hashing import draws, row_keys
from fullgraph.ops.transpose import indptr_of, rows_of
from fullgraph.placement.holding.adjacency import Arcs

MIN_ROWS = 100_000  # fewer rows fit into a cache in any order
NEAR = 25_000  # rows; of 512 bytes, they fill a quarter of a cache of 50 MB
LOCAL = 0.5  # a given order with this share of near arcs is kept
GAIN = 1.2  # a new order must have this many times the near arcs of the given one
ROUNDS, VOTES = 8, 32
VOTES_AT_ONCE = 1 << 24
SAMPLE = 1 << 24  # arcs that determine which clusters are neighbours
SAMPLE_NEAR = 1 << 20


def worth_a_look(num_rows: int, device: torch.device) -> bool:
    """Whether the order of that many rows may matter on a device."""
    return device.type != "meta" and num_rows >= MIN_ROWS


def local_order(arcs: Arcs) -> Tensor | None:
    """An order of the owned rows [n] with clearly more near neighbours than the given order; None if none is found."""
    given = near_share(arcs, torch.arange(arcs.num_owned, device=arcs.device))
    if given >= LOCAL:
        return None
    order_n = clustered(arcs)
    return order_n if near_share(arcs, places(order_n)) > GAIN * given else None


def near_share(arcs: Arcs, place_n: Tensor) -> float:
    """The share of arcs between owned rows whose ends have places at most NEAR apart, from a sample."""
    target, source = _between(arcs, SAMPLE_NEAR)
    near = (place_n[target] - place_n[source]).abs() <= NEAR
    return float(near.double().mean()) if len(near) else 1.0


def clustered(arcs: Arcs, size_n: Tensor | None = None, limit: int | None = None) -> Tensor:
    """An order of the owned rows, [n]: each cluster is one run, and clusters with many arcs between them are close
    together.

    size_n: how many rows of the graph each row stands for (None: one); limit: of a cluster's size (None: NEAR).
    """
    row_n = torch.arange(arcs.num_owned, device=arcs.device)
    size_n, limit = torch.ones_like(row_n) if size_n is None else size_n, limit or NEAR
    label_n = clusters(arcs, size_n, limit)
    first_n = torch.full_like(row_n, len(row_n)).scatter_reduce_(0, label_n, row_n, "amin")[label_n]
    is_first = first_n == row_n  # first row of its cluster
    cluster_n = (is_first.cumsum(0) - 1)[first_n]
    if limit < int(size_n.sum()):
        size_c = size_n.new_zeros(int(is_first.sum())).index_add_(0, cluster_n, size_n)
        few = _contracted(arcs, cluster_n, len(size_c))
        if len(few.indices):
            cluster_n = places(clustered(few, size_c, 2 * limit))[cluster_n]
    return torch.argsort(cluster_n, stable=True)


def places(order_n: Tensor) -> Tensor:
    """The position of every row in an order, [n]."""
    place_n = torch.empty_like(order_n)
    place_n[order_n] = torch.arange(len(order_n), device=order_n.device)
    return place_n


def clusters(arcs: Arcs, size_n: Tensor, limit: int) -> Tensor:
    """A label for every owned row, [n]; the rows of a label have a total size of at most `limit`, or are a single row.

    Every row begins with its own label. In each round, a random half of the rows look at some of their neighbours, and
    each takes the most frequent label of these, if there is room.
    """
    n = arcs.num_owned
    label_n = torch.argsort(_draw(n, 0, arcs.device))  # the lower label wins a tie, so labels must be random
    if not len(arcs.indices):
        return label_n
    for turn in range(1, ROUNDS + 1):
        size_l = size_n.new_zeros(n).index_add_(0, label_n, size_n)
        full_n = (size_l >= limit)[label_n]
        mover_m = (_draw(n, turn, arcs.device) & 1).nonzero()[:, 0]
        pieces = mover_m.split(max(1, VOTES_AT_ONCE // VOTES))
        wanted_m = torch.cat([_wanted(arcs, rows, label_n.int(), full_n) for rows in pieces]).long()
        moves = wanted_m != label_n[mover_m]
        mover_m, wanted_m = mover_m[moves], wanted_m[moves]
        fits = _fits(wanted_m, size_n[mover_m], limit - size_l)
        label_n[mover_m[fits]] = wanted_m[fits]
    return label_n


def _wanted(arcs: Arcs, row_m: Tensor, label_n: Tensor, full_n: Tensor) -> Tensor:
    """The most frequent label among a row's neighbours, [m], without full clusters; else the row's own label."""
    n, vote_v = arcs.num_owned, torch.arange(VOTES, device=arcs.device)
    first, degree = arcs.indptr[row_m, None], (arcs.indptr[row_m + 1] - arcs.indptr[row_m])[:, None]
    votes = degree.clamp(max=VOTES)
    arc_mv = first + vote_v * degree // votes.clamp(min=1)  # spread over the row
    source_mv = arcs.indices[arc_mv.clamp_(max=len(arcs.indices) - 1)].long()
    counts_mv = (vote_v < votes) & (source_mv < n)
    source_mv.clamp_(max=n - 1)
    own, label_mv = label_n[row_m, None], label_n[source_mv]
    counts_mv &= ~full_n[source_mv] | (label_mv == own)
    label_mv = torch.where(counts_mv, label_mv, n).sort(dim=1).values
    before_mv = vote_v.int() - torch.searchsorted(label_mv, label_mv, out_int32=True)  # equal votes before each vote
    best = torch.where(label_mv < n, before_mv, -1).argmax(1, keepdim=True)  # the first of the most frequent labels
    label = label_mv.gather(1, best)
    return torch.where(label < n, label, own)[:, 0]


def _fits(wanted_m: Tensor, size_m: Tensor, room_l: Tensor) -> Tensor:
    """Mask [m] of the rows that fit into the cluster that they want; the first ones have priority."""
    wanted, order = wanted_m.sort(stable=True)
    filled = torch.nn.functional.pad(size_m[order].cumsum(0), (1, 0))
    fits = torch.empty_like(order, dtype=torch.bool)
    fits[order] = filled[1:] - filled[torch.searchsorted(wanted, wanted)] <= room_l[wanted]
    return fits


def _contracted(arcs: Arcs, cluster_n: Tensor, num_clusters: int) -> Arcs:
    """The graph whose nodes are clusters; its arcs are a sample of the arcs between rows of different clusters."""
    target, source = (cluster_n[rows] for rows in _between(arcs, SAMPLE))
    apart = target != source
    target, order = target[apart].sort(stable=True)
    indptr = indptr_of(torch.bincount(target, minlength=num_clusters))
    return Arcs(indptr, source[apart][order].int(), None, 0)


def _between(arcs: Arcs, most: int) -> tuple[Tensor, Tensor]:
    """Targets and sources of arcs between owned rows; a sample of `most` evenly spaced arcs if there are more."""
    every = max(1, -(-len(arcs.indices) // most))
    source = arcs.indices[::every].long()
    target = rows_of(arcs.indptr, torch.arange(0, len(arcs.indices), every, device=arcs.device)).long()
    owned = source < arcs.num_owned
    return target[owned], source[owned]


def _draw(n: int, key: int, device: torch.device) -> Tensor:
    """A random number for every row, [n], equal in every call with this key."""
    return draws(*row_keys(key, torch.arange(n, device=device)), torch.zeros((), dtype=torch.int64, device=device))
