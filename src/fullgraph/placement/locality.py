"""An order of a rank's rows in which neighbours stand close together, so that a product finds their rows in a cache.

Rows are clustered by label propagation (Raghavan et al., arXiv:0709.2938) with a limit on a cluster's size. The clusters
are then rows of a smaller graph, which is ordered in the same way with twice the limit, and so on.

Legend: n owned rows, c clusters, e arcs, m rows that may move, k arcs of a row that vote.
"""

import torch
from torch import Tensor

from fullgraph.ops.hashing import draws, row_keys
from fullgraph.ops.transpose import rows_of
from fullgraph.placement.adjacency import Arcs

DEVICES = ("cuda",)  # where an order is looked for
MIN_ROWS = 100_000  # fewer rows fit into a cache as they are
NEAR = 25_000  # rows; of 512 bytes, they fill a quarter of a cache of 50 MB
LOCAL = 0.5  # an order with so many near arcs is kept
GAIN = 1.2  # a new order has so many times the near arcs of the given one
ROUNDS, VOTES = 8, 32
ARCS_AT_ONCE = 1 << 24
SAMPLE = 1 << 24  # arcs that tell which clusters are neighbours
SAMPLE_NEAR = 1 << 20


def local_order(arcs: Arcs) -> Tensor | None:
    """Owned rows in an order with more near neighbours, [n]; None if the given one is kept."""
    if arcs.device.type not in DEVICES or arcs.num_owned < MIN_ROWS:
        return None
    given = near_share(arcs, torch.arange(arcs.num_owned, device=arcs.device))
    if given >= LOCAL:
        return None
    order_n = clustered(arcs)
    return order_n if near_share(arcs, _numbers(order_n)) > GAIN * given else None


def near_share(arcs: Arcs, place_n: Tensor) -> float:
    """The share of arcs between owned rows whose ends have places at most NEAR apart, from a sample."""
    target, source = _between(arcs, SAMPLE_NEAR)
    near = (place_n[target] - place_n[source]).abs() <= NEAR
    return float(near.double().mean()) if len(near) else 1.0


def clustered(arcs: Arcs, size_n: Tensor | None = None, limit: int | None = None) -> Tensor:
    """Owned rows with every cluster in one run, and clusters that have many arcs between them close together, [n].

    size_n: how many rows of the graph each row stands for; limit: of a cluster's size.
    """
    size_n = torch.ones(arcs.num_owned, dtype=torch.int64, device=arcs.device) if size_n is None else size_n
    limit = NEAR if limit is None else limit
    label_n = clusters(arcs, size_n, limit)
    number_n = (torch.bincount(label_n, minlength=arcs.num_owned) > 0).cumsum(0) - 1
    cluster_n = number_n[label_n]
    few = _contracted(arcs, cluster_n)
    if len(few.indices) and limit < int(size_n.sum()):
        size_c = size_n.new_zeros(few.num_owned).index_add_(0, cluster_n, size_n)
        cluster_n = _numbers(clustered(few, size_c, 2 * limit))[cluster_n]
    return torch.argsort(cluster_n, stable=True)


def clusters(arcs: Arcs, size_n: Tensor, limit: int) -> Tensor:
    """The label of every owned row, [n]; rows of one label have at most `limit` in all, or are one row.

    In a round, a random half of the rows look at some of their neighbours. Each takes the label that most of them have,
    if there is room.
    """
    n = arcs.num_owned
    label_n = torch.argsort(_draw(n, 0, arcs.device))  # a lower label wins a tie; no row is favoured
    for round in range(1, ROUNDS + 1):
        size_l = size_n.new_zeros(n).index_add_(0, label_n, size_n)
        movers_m = (_draw(n, round, arcs.device) & 1).nonzero()[:, 0]
        wanted_m = torch.cat([
            _vote(arcs, rows, label_n, size_l >= limit) for rows in movers_m.split(max(1, ARCS_AT_ONCE // VOTES))
        ])
        moves = wanted_m != label_n[movers_m]
        movers_m, wanted_m = movers_m[moves], wanted_m[moves]
        fits = _fits(wanted_m, size_n[movers_m], limit - size_l)
        label_n[movers_m[fits]] = wanted_m[fits]
    return label_n


def _vote(arcs: Arcs, rows_m: Tensor, label_n: Tensor, full_l: Tensor) -> Tensor:
    """The label that most neighbours of a row have, [m]; of full labels a row may only keep its own."""
    n, slot = arcs.num_owned, torch.arange(VOTES, device=arcs.device)
    first, degree = arcs.indptr[rows_m, None], arcs.indptr.diff()[rows_m, None]
    votes = degree.clamp(max=VOTES)
    arc = first + slot * degree // votes.clamp(min=1)  # spread over the row
    source = arcs.indices[arc.clamp_(max=max(0, len(arcs.indices) - 1))] if len(arcs.indices) else arc * 0 + n
    counts = (slot < votes) & (source < n)
    own = label_n[rows_m, None].int()
    label = label_n[source.clamp(max=n - 1).long()].int()
    counts &= (label == own) | ~full_l[label.long()]
    label = torch.where(counts, label, n).sort(dim=1).values
    length = slot.int() - torch.searchsorted(label, label, out_int32=True)
    length = torch.where(label < n, length, -1)
    best = length.argmax(1, keepdim=True)  # the first one of the longest
    return torch.where(length.gather(1, best) >= 0, label.gather(1, best), own)[:, 0].long()


def _fits(wanted_m: Tensor, size_m: Tensor, room_l: Tensor) -> Tensor:
    """Which of the rows that want a label find room, [m]: the first ones, as many as it has room for."""
    order = torch.argsort(wanted_m, stable=True)
    label, filled = wanted_m[order], torch.nn.functional.pad(size_m[order].cumsum(0), (1, 0))
    fits = torch.empty_like(order, dtype=torch.bool)
    fits[order] = filled[1:] - filled[torch.searchsorted(label, label)] <= room_l[label]
    return fits


def _contracted(arcs: Arcs, cluster_n: Tensor) -> Arcs:
    """The graph of clusters: an arc for each of a sample of arcs between two of them."""
    target, source = (cluster_n[rows] for rows in _between(arcs, SAMPLE))
    apart = target != source
    target, order = target[apart].sort(stable=True)
    indptr = torch.bincount(target, minlength=int(cluster_n.max()) + 1).cumsum(0)
    return Arcs(torch.nn.functional.pad(indptr, (1, 0)), source[apart][order].int(), None, 0)


def _between(arcs: Arcs, most: int) -> tuple[Tensor, Tensor]:
    """Targets and sources of arcs between owned rows, of at most so many arcs at even distances."""
    every = -(-len(arcs.indices) // most) or 1
    source = arcs.indices[::every].long()
    target = rows_of(arcs.indptr, torch.arange(0, len(arcs.indices), every, device=arcs.device)).long()
    owned = source < arcs.num_owned
    return target[owned], source[owned]


def _numbers(order_n: Tensor) -> Tensor:
    """Where every row stands in an order."""
    number_n = torch.empty_like(order_n)
    number_n[order_n] = torch.arange(len(order_n), device=order_n.device)
    return number_n


def _draw(n: int, key: int, device: torch.device) -> Tensor:
    """A number for every row, [n], that depends on the row and the key alone."""
    return draws(*row_keys(key, torch.arange(n, device=device)), torch.zeros((), dtype=torch.int64, device=device))
